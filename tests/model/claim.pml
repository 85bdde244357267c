/* claim.pml - a claim at one level: pending, scan, compare-and-swap to committed.
 *
 * Each member claims, may keep, give back, settle with less, or claim again on top. With CRASH one of them is killed
 * at any step; a sweeper clears its word under the slot's lock held shared (and may itself be killed or stopped); a
 * new member takes the slot under the lock held exclusively and claims. A stop anywhere for ever is an unfinished
 * run, and every prefix of every run is explored, so it is always included.
 *
 * Shown by assertion:  - the sum of what is truly granted never passes CAP;
 *                      - nothing leaks: when all have ended, each live word says what its member truly holds;
 *                      - (LONE) at every moment, whoever is stopped where, a member that runs alone is granted in its
 *                        first attempt what fits beside the committed units of the others.
 *
 * The age in the word is left out: it only decides who waits how long before he aborts. Here anybody may abort
 * anybody at once, and words are equal more often, so every behaviour of the real protocol is among those explored.
 * Memory is sequentially consistent; each access of a shared word is one step. */

#ifndef N
#define N 3                     /* slots */
#endif
#ifndef CAP
#define CAP 2                   /* T' in units */
#endif
#ifndef BIG
#define BIG 2                   /* a claim is of 1 or of BIG units */
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 1              /* of each claim, aborted ones included */
#endif
#ifndef CLAIMS
#define CLAIMS 1                /* of each member, one on top of the other or one after the other */
#endif
#ifndef MEMBERS
#define MEMBERS N               /* with LONE the last slot belongs to the lone claimer */
#endif
#define NOBODY 255

#define WORD(committed, pending) ((committed) * 4 + (pending))
#define PENDING(w)   ((w) & 3)
#define COMMITTED(w) ((w) >> 2)
#define HAS(set, i)  (((set) >> (i)) & 1)

byte word[N];
byte bits;                      /* the pool's publishers: who is scanned at all */
byte truth[N];                  /* ghost: units that the slot's living owner may use */
byte truth_sum;

bool owned[N];                  /* the slot's lock held exclusively; dropped by the kernel at death */
byte sweeping;                  /* how many hold the victim's lock shared */
byte victim = NOBODY;
byte running;

inline grant(units)
{
    truth[me] = truth[me] + (units);
    truth_sum = truth_sum + (units);
    assert(truth_sum <= CAP)
}

inline free_memory(units)
{
    atomic { truth[me] = truth[me] - (units); truth_sum = truth_sum - (units) }
}

/* The own committed part is changed by the owner alone, so loading it and setting the pending is one step. */
inline announce()
{
    atomic { c = COMMITTED(word[me]); word[me] = WORD(c, n) }
}

inline withdraw()
{
    word[me] = WORD(c, 0)
}

/* One load per member. `gone` holds those that were once seen without the attempt they had when we began: what they
 * start later has seen our pending, so it counts for them to see, not for us. */
inline scan()
{
    atomic { known = bits; i = 0; p = 0;
#ifdef BROKEN_OWN_NOT_COUNTED
        g = n
#else
        g = c + n
#endif
    };
    do
    :: i < N ->
        atomic {
            if
            :: i != me && HAS(known, i) ->
                seen[i] = word[i];
                g = g + COMMITTED(seen[i]);
                if
                :: !HAS(gone, i) && PENDING(seen[i]) != 0 -> p = p + PENDING(seen[i])
                :: !HAS(gone, i) && PENDING(seen[i]) == 0 -> gone = gone | (1 << i)
                :: else
                fi
            :: else
            fi;
            i++
        }
    :: else -> break
    od;
#ifdef BROKEN_PENDING_NOT_COUNTED
    p = 0
#endif
}

/* Only pendings are in the way. Take them away, each by one compare-and-swap from the very word that was seen. */
inline abort_others()
{
    i = 0;
    do
    :: i < N ->
        if
        :: HAS(known, i) && i != me && !HAS(gone, i) ->
#if defined(BROKEN_NO_ABORT)
            result = LOST;      /* and so the claimer gives way to whoever is pending, stopped or not */
#elif defined(BROKEN_ABORT_BY_STORE)
            seen[i] = WORD(COMMITTED(word[i]), 0);
            word[i] = seen[i];
#else
            atomic {
                if
                :: word[i] == seen[i] -> word[i] = WORD(COMMITTED(seen[i]), 0)
                :: else         /* it has moved: that attempt is over */
                fi
            };
#endif
            gone = gone | (1 << i)
        :: else
        fi;
        i++
    :: else -> break
    od
}

inline commit()
{
    atomic {
#ifdef BROKEN_NO_CAS
        word[me] = WORD(c + n, 0);
        grant(n);
        result = GRANTED
#else
        if
        :: word[me] == WORD(c, n) -> word[me] = WORD(c + n, 0); grant(n); result = GRANTED
        :: else -> result = LOST
        fi
#endif
    }
}

mtype = { RUNNING, GRANTED, REFUSED, LOST };

/* What is not needed any more must not tell states apart. */
inline forget()
{
    i = 0; g = 0; p = 0; gone = 0; known = 0; seen[0] = 0; seen[1] = 0; seen[N - 1] = 0
}

/* Ends: each round but the last one adds at least one member to `gone`. */
inline attempt()
{
    gone = 0;
    result = RUNNING;
#ifndef BROKEN_SCAN_FIRST
    announce();
#else
    c = COMMITTED(word[me]);
#endif
    do
    :: result == RUNNING ->
        scan();
#ifdef BROKEN_SCAN_FIRST
        announce();
#endif
        if
        :: g > CAP -> withdraw(); result = REFUSED
        :: g <= CAP && g + p > CAP ->
            abort_others();
            if
            :: word[me] != WORD(c, n) -> result = LOST
            :: else
            fi
        :: else -> commit()
        fi
    :: else -> break
    od;
    if
    :: result == LOST -> withdraw()
    :: else
    fi;
    d_step { forget() }
}

/* Memory first, then the word: others may use the units as soon as the word says so. */
inline give_back(units)
{
#ifdef BROKEN_WORD_BEFORE_FREE
    word[me] = WORD(COMMITTED(word[me]) - (units), 0);
    free_memory(units)
#else
    free_memory(units);
    word[me] = WORD(COMMITTED(word[me]) - (units), 0)
#endif
}

/* Death frees the memory and the lock at once, the memory no later than the lock. */
#ifdef CRASH
#define UNLESS_KILLED \
    unless { \
        atomic { generation == 0 && victim == me -> \
            truth_sum = truth_sum - truth[me]; \
            truth[me] = 0; \
            owned[me] = false \
        } \
    }
#else
#define UNLESS_KILLED
#endif

proctype member(byte me; byte generation)
{
    byte c, n, i, g, p, gone, known, seen[N], tries, claims;
    mtype result;
    {
        if
        :: generation > 0 ->
            /* The owner's lock is there already; whatever the dead one left is cleared, whether it was swept or not. */
            word[me] = 0
        :: else
        fi;
#ifndef BROKEN_LATE_BIT
        /* Before the first scan, not just before the first publish: else it may be granted what others do not see. */
        atomic { bits = bits | (1 << me) };
#endif
        do
        :: claims < CLAIMS ->
            claims++;
            tries = 0;
            if :: n = 1 :: n = BIG fi;
            do
            :: tries < ATTEMPTS ->
                tries++;
                attempt();
                if
                :: result != LOST -> break
                :: else
                fi
            :: else -> break
            od;
            if
            :: result == GRANTED ->
#ifdef BROKEN_LATE_BIT
                atomic { bits = bits | (1 << me) };
#endif
                if
                :: skip                                 /* keep it */
                :: give_back(n)                         /* free, or cancel */
                :: n > 1 -> give_back(n - 1)            /* settle with less */
                fi
            :: else
            fi
        :: else -> break
        od
    } UNLESS_KILLED;
    atomic { forget(); c = 0; n = 0; tries = 0; claims = 0; result = RUNNING; running-- }
}

#ifdef CRASH
/* One that has ended its run is not killed any more; being killed before the last step of the run is the same. */
proctype killer()
{
    if :: victim = 0 :: victim = N - 1 fi;
    running--
}

proctype sweeper()
{
end_alive:
    victim != NOBODY;
#ifdef BROKEN_SWEEP_WITHOUT_LOCK
    if
    :: !owned[victim] -> word[victim] = 0
    :: else
    fi;
#else
    if
    :: atomic { !owned[victim] -> sweeping++ };
        if
        :: word[victim] = 0
        :: skip                 /* killed before it cleared */
        fi;
        sweeping--
    :: owned[victim]            /* a new owner has it */
    fi;
#endif
    running--
}

proctype newcomer()
{
end_alive:
    atomic { victim != NOBODY && !owned[victim] && sweeping == 0 -> owned[victim] = true; run member(victim, 1) }
}
#endif

#ifdef LONE
/* Everybody else stands still from here: the whole claim is one step of the model. What it found aborted stays so. */
proctype lone()
{
    byte me = N - 1;
    byte c, n, i, g, p, gone, known, seen[N], free_units;
    mtype result;
    atomic {
        n = BIG;
        bits = bits | (1 << me);
        free_units = CAP;
        do
        :: i < N -> free_units = free_units - COMMITTED(word[i]); i++
        :: else -> break
        od;
        attempt();
        assert((result == GRANTED) == (n <= free_units));
        if
        :: result == GRANTED -> give_back(n)
        :: else
        fi
    };
    running--
}
#endif

init {
    byte k;
    atomic {
        do
        :: k < MEMBERS -> owned[k] = true; running++; run member(k, 0); k++
        :: else -> break
        od;
#ifdef CRASH
        running = running + 3;
        run killer();
        run sweeper();
        run newcomer();
#endif
#ifdef LONE
        owned[N - 1] = true;
        running++;
        run lone();
#endif
        k = 0
    };
end_alive:
    atomic {
        running == 0;
        do
        :: k < N -> assert(owned[k]); assert(word[k] == WORD(truth[k], 0)); k++
        :: else -> break
        od
    }
}
