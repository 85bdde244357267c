/* record.pml - the ring of copies and its version: one slot's record for one pool.
 *
 * An owner publishes; it may be killed between any two stores, or simply never run again (a stop: every prefix of
 * every run is explored, so a stop anywhere is always included). After a kill, sweepers publish zeros under the slot's
 * lock held shared, any number at once, and a new owner takes the slot under the lock held exclusively. A reader
 * copies field by field and keeps what it copied only if the version has not come round to that copy.
 *
 * Shown by assertion:  a reader never keeps a mix of two publishes, nor a publish that was not the current one when
 *                      the read began; the version never goes back.
 * Shown by progress:   no cycle at all: a reader's retries are the only loop without a bound, so a reader whose
 *                      writers are stopped or killed, wherever that is, comes to its end.
 *
 * One reader is enough: readers write nothing, so they cannot disturb each other or the writers.
 * Memory is sequentially consistent here; the orders of the C code are argued in docs/claims.md, not shown. */

#ifndef NB
#define NB 4                    /* ML_RING_COPIES */
#endif
#ifndef PUBLISHES
#define PUBLISHES 5             /* of the first owner; enough to come round the ring */
#endif
#ifndef SWEEPERS
#define SWEEPERS 2
#endif
#ifndef AGAIN
#define AGAIN 2                 /* publishes of the new owner, which follow on its clearing one */
#endif
#define VERSIONS (PUBLISHES + SWEEPERS + AGAIN + 2)

/* How many further publishes a reader may overlook: the copy that is being filled next is the only unsafe one. */
#ifdef BROKEN_OFF_BY_ONE
#define SLACK (NB - 1)
#else
#define SLACK (NB - 2)
#endif

typedef fields { byte generation; byte held; byte claims };
fields ring[NB];
byte version;
byte word;                      /* committed part of the claim word: what makes a sweeper act beside the record */
byte generation;                /* in the slot's state word */

bool owned = true;              /* the slot's lock is held exclusively; the kernel drops it at death */
byte sweeping;                  /* how many hold it shared */
bool killed;

/* Ghost: what publish number n contained. Written together with the version, so it is what readers may see. */
byte truth_held[VERSIONS];
byte truth_generation[VERSIONS];

/* The reader sees each publish as a pair of equal numbers, a different pair for each; a sweep's are zero. */
inline fill(at, of_generation, figure)
{
    ring[(at) % NB].generation = of_generation;
    ring[(at) % NB].held = figure;
    ring[(at) % NB].claims = figure
}

inline raise(to, of_generation, figure)
{
    atomic {
        assert(to == version + 1);
        truth_held[to] = figure;
        truth_generation[to] = of_generation;
        version = to
    }
}

inline publish(to, of_generation, figure)
{
#if defined(BROKEN_SEQLOCK)
    busy = true;
    fill(0, of_generation, figure);
    raise(to, of_generation, figure);
    busy = false
#elif defined(BROKEN_VERSION_FIRST)
    raise(to, of_generation, figure);
    fill(to, of_generation, figure)
#else
    fill(to, of_generation, figure);
    raise(to, of_generation, figure)
#endif
}

#ifdef BROKEN_SEQLOCK
bool busy;                      /* the low bit of a classic seqlock's version */
#endif

proctype owner()
{
    byte n;
    {
        do
        :: n < PUBLISHES ->
            n++;
            word = n;
            publish(n, generation, n)
        :: else -> break
        od
    } unless { killed }
}

/* The kernel frees the lock at the moment of death. */
proctype killer()
{
    atomic { killed = true; owned = false }
}

/* Several sweepers work at once, and one may be overtaken by others while it is stopped. A raise by compare-and-swap
 * makes that harmless: only the first one raises, and every copy that a late one still fills holds zeros anyway.
 * A plain store of the number computed long ago would take the version back. */
proctype sweeper()
{
    byte n;
    bool publishing;
end_owned:
    atomic { killed && !owned -> sweeping++ };
    n = version;
    publishing = (ring[n % NB].held != 0);
    publishing = (publishing || word != 0);
    if
    :: publishing ->
        n++;
        fill(n, generation, 0);
        atomic {
#ifdef BROKEN_SWEEP_STORES_VERSION
            assert(n >= version);
            truth_held[n] = 0;
            truth_generation[n] = generation;
            version = n
#else
            if
            :: version == n - 1 -> raise(n, generation, 0)
            :: else             /* another sweeper has raised it: the same zeros */
            fi
#endif
        };
        word = 0
    :: else
    fi;
    sweeping--
}

/* A sweeper that was killed is one that was stopped, but whose lock is gone: the new owner may come. */
proctype killed_sweeper()
{
    byte n;
end_owned:
    atomic { killed && !owned -> sweeping++ };
    n = version + 1;
    if
    :: sweeping--
    :: ring[n % NB].generation = generation;
        if
        :: sweeping--
        :: ring[n % NB].held = 0;
            sweeping--
        fi
    fi
}

/* The next owner clears the record itself, whatever the state says, before it raises the generation. */
proctype next_owner()
{
    byte n, last;
end_shared:
    atomic { killed && !owned && sweeping == 0 -> owned = true };
    n = version + 1;
    publish(n, generation, 0);
    word = 0;
    generation++;
    last = n + AGAIN;
    do
    :: n < last ->
        n++;
        publish(n, generation, n)
    :: else -> break
    od
}

proctype reader()
{
    byte v;
    fields got;
again:
#ifdef BROKEN_SEQLOCK
    if
    :: busy -> goto again       /* a stopped writer keeps its readers here */
    :: else
    fi;
#endif
    v = version;
#ifdef BROKEN_SEQLOCK
#define COPY 0
#else
#define COPY (v % NB)
#endif
    got.generation = ring[COPY].generation;
    got.held = ring[COPY].held;
    got.claims = ring[COPY].claims;
#if defined(BROKEN_SEQLOCK)
    if
    :: atomic { busy || version != v -> goto again }
    :: else
    fi;
#elif !defined(BROKEN_NO_RECHECK)
    if
    :: version - v > SLACK -> goto again
    :: else
    fi;
#endif
    assert(got.held == got.claims);
    assert(got.held == truth_held[v]);
    assert(got.generation == truth_generation[v]);
}

init {
    byte i;
    atomic {
        run owner();
        run killer();
        do
        :: i < SWEEPERS -> run sweeper(); i++
        :: else -> break
        od;
        run killed_sweeper();
        run next_owner();
        run reader();
        i = 0
    }
}
