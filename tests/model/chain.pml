/* chain.pml - a claim over two levels: pending at both, one scan of both, one compare-and-swap each, undo.
 *
 * Level 0 is the outer pool, level 1 the inner one. Members 0 and 1 draw from both, member 2 from the outer one alone.
 * With CRASH member 0 is killed at any step, between the levels too; a sweeper clears all its words under the slot's
 * lock held shared, and a new member takes the slot under the lock held exclusively. A stop anywhere is an unfinished
 * run, and so always included.
 *
 * Shown by assertion:  - at each level the sum of what is truly granted never passes its CAP;
 *                      - nothing leaks: when all have ended, the words say at every level what is truly held;
 *                      - the word's committed part is never below the record, so a scan never sees too little;
 *                      - what committed grew by is published before it is taken back, by an undo or a sweep too, so
 *                        that no units come and go without a new version (refusal.pml says why this matters).
 *
 * A publish is one step here; record.pml has its inside. */

#ifndef MEMBERS
#define MEMBERS 3
#endif
#ifndef OUTER_CAP
#define OUTER_CAP 1
#endif
#ifndef INNER_CAP
#define INNER_CAP 1
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 1
#endif
#define LEVELS 2
#define CAP(level) ((level) == 0 -> OUTER_CAP : INNER_CAP)
#define AT(level, slot) ((level) * MEMBERS + (slot))
#define NOBODY 255

#define WORD(committed, pending) ((committed) * 4 + (pending))
#define PENDING(w)   ((w) & 3)
#define COMMITTED(w) ((w) >> 2)
#define HAS(set, i)  (((set) >> (i)) & 1)

byte word[LEVELS * MEMBERS];
byte record[LEVELS * MEMBERS];  /* units of granted claims as published */
bit unpublished[LEVELS * MEMBERS]; /* ghost: committed has grown since the last publish */
byte truth[LEVELS * MEMBERS];   /* ghost: units that the living owner may use */
byte truth_sum[LEVELS];

bool owned[MEMBERS];
bool sweeping;                  /* somebody holds the dead member's lock shared */
bool killed;                    /* member 0 */
byte running;

inline set_word(at, value)
{
    atomic {
        if
        :: COMMITTED(value) > COMMITTED(word[at]) -> unpublished[at] = 1
        :: COMMITTED(value) < COMMITTED(word[at]) -> assert(!unpublished[at])
        :: else
        fi;
        word[at] = value;
        assert(COMMITTED(word[at]) >= record[at])
    }
}

inline publish(at, units)
{
    atomic { record[at] = units; unpublished[at] = 0; assert(COMMITTED(word[at]) >= record[at]) }
}

/* Every claim is of one unit. */
inline scan()
{
    l = 0;
    refused = false;
    hindered = NOBODY;
    do
    :: l < levels ->
        atomic { i = 0; p = 0; g = c[l] + 1 };
        do
        :: i < MEMBERS ->
            atomic {
                if
                :: i != me ->
                    seen[AT(l, i)] = word[AT(l, i)];
                    g = g + COMMITTED(seen[AT(l, i)]);
                    if
                    :: !HAS(gone[l], i) && PENDING(seen[AT(l, i)]) != 0 -> p = p + PENDING(seen[AT(l, i)])
                    :: !HAS(gone[l], i) && PENDING(seen[AT(l, i)]) == 0 -> gone[l] = gone[l] | (1 << i)
                    :: else
                    fi
                :: else
                fi;
                i++
            }
        :: else -> break
        od;
        if
        :: g > CAP(l) -> refused = true; break
        :: g <= CAP(l) && g + p > CAP(l) -> hindered = l; break
        :: else -> l++
        fi
    :: else -> break
    od
}

inline abort_others(level)
{
    i = 0;
    do
    :: i < MEMBERS ->
        if
        :: i != me && !HAS(gone[level], i) ->
            atomic {
                if
                :: word[AT(level, i)] == seen[AT(level, i)] ->
                    word[AT(level, i)] = WORD(COMMITTED(seen[AT(level, i)]), 0)
                :: else
                fi
            };
            gone[level] = gone[level] | (1 << i)
        :: else
        fi;
        i++
    :: else -> break
    od
}

/* Outermost first: that one is the likeliest to be lost. Only the last one grants. */
inline commit()
{
    won = 0;
    do
    :: won < levels ->
        atomic {
            if
            :: word[AT(won, me)] == WORD(c[won], 1) ->
                set_word(AT(won, me), WORD(c[won] + 1, 0));
                won++;
                if
                :: won == levels -> take()
                :: else
                fi
            :: else -> lost = true; break
            fi
        }
    :: else -> break
    od
}

inline take()
{
    l = 0;
    do
    :: l < levels ->
        truth[AT(l, me)]++;
        truth_sum[l]++;
        assert(truth_sum[l] <= CAP(l));
        l++
    :: else -> break
    od
}

inline free_memory()
{
    atomic {
        l = 0;
        do
        :: l < levels -> truth_sum[l] = truth_sum[l] - truth[AT(l, me)]; truth[AT(l, me)] = 0; l++
        :: else -> break
        od
    }
}

/* Innermost first. A level that was won has been committed, so it goes back with a publish of its own; the others
 * only lose their pending. */
inline undo()
{
    l = levels;
    do
    :: l > 0 ->
        l--;
        if
        :: l < won ->
#ifndef BROKEN_NO_UNDO
#ifdef BROKEN_UNDO_WITHOUT_PUBLISH
            set_word(AT(l, me), WORD(c[l], 0))
#else
            publish(AT(l, me), c[l]);
            set_word(AT(l, me), WORD(c[l], 0))
#endif
#else
            skip
#endif
        :: else -> set_word(AT(l, me), WORD(c[l], 0))
        fi
    :: else -> break
    od
}

inline forget()
{
    i = 0; p = 0; g = 0; l = 0; won = 0; c[0] = 0; c[1] = 0; gone[0] = 0; gone[1] = 0; lost = false; refused = false;
    hindered = NOBODY;
    do
    :: i < LEVELS * MEMBERS -> seen[i] = 0; i++
    :: else -> break
    od;
    i = 0
}

#ifdef CRASH
/* Death frees the memory and the lock at once, the memory no later than the lock. */
#define UNLESS_KILLED \
    unless { \
        atomic { generation == 0 && me == 0 && killed -> free_memory(); owned[0] = false } \
    }
#else
#define UNLESS_KILLED
#endif

proctype member(byte me; byte levels; byte generation)
{
    byte c[LEVELS], gone[LEVELS], seen[LEVELS * MEMBERS], i, l, g, p, won, hindered, tries;
    bool lost, refused;
    {
        if
        :: generation > 0 ->    /* cleared at all levels, whatever the state says */
            l = 0;
            do
            :: l < LEVELS -> publish(AT(l, me), 0); set_word(AT(l, me), 0); l++
            :: else -> break
            od
        :: else
        fi;
        do
        :: tries < ATTEMPTS ->
            tries++;
            atomic { forget() };
            do
            :: l < levels ->
                atomic { c[l] = COMMITTED(word[AT(l, me)]); set_word(AT(l, me), WORD(c[l], 1)); l++ }
            :: else -> break
            od;
            do
            :: scan();
                if
                :: refused -> break
                :: !refused && hindered != NOBODY ->
                    abort_others(hindered);
                    if
                    :: word[AT(hindered, me)] != WORD(c[hindered], 1) -> lost = true; break
                    :: else
                    fi
                :: else -> commit(); break
                fi
            od;
            if
            :: lost || refused -> undo()
            :: else ->
                l = 0;
                do
                :: l < levels -> publish(AT(l, me), c[l] + 1); l++
                :: else -> break
                od;
                if
                :: skip         /* keep it */
                :: free_memory();
                    l = levels; /* given back innermost first, the record before the word */
                    do
                    :: l > 0 -> l--; publish(AT(l, me), c[l]); set_word(AT(l, me), WORD(c[l], 0))
                    :: else -> break
                    od
                fi
            fi;
            if
            :: refused || !lost -> break
            :: else
            fi
        :: else -> break
        od
    } UNLESS_KILLED;
    atomic { forget(); tries = 0; running-- }
}

#ifdef CRASH
proctype killer()
{
    killed = true;
    running--
}

/* A publish goes with every sweep of committed units, even where the record is zero: the dead one may have been
 * killed between its word and its record. */
proctype sweeper()
{
    byte l;
end_alive:
    atomic { killed && !owned[0] -> sweeping = true };
    do
    :: l < LEVELS ->
        if
#ifdef BROKEN_SWEEP_BY_RECORD_ALONE
        :: record[AT(l, 0)] != 0 -> publish(AT(l, 0), 0)
#else
        :: record[AT(l, 0)] != 0 || word[AT(l, 0)] != 0 -> publish(AT(l, 0), 0)
#endif
        :: else
        fi;
        set_word(AT(l, 0), 0);
        l++
    :: break                    /* done, or killed in the middle */
    od;
    atomic { sweeping = false; l = 0; running-- }
}

proctype newcomer()
{
end_alive:
    atomic { killed && !owned[0] && !sweeping -> owned[0] = true; run member(0, 2, 1) }
}
#endif

init {
    byte k;
    atomic {
        do
        :: k < MEMBERS -> owned[k] = true; running++; run member(k, (k == 2 -> 1 : 2), 0); k++
        :: else -> break
        od;
#ifdef CRASH
        running = running + 3;
        run killer();
        run sweeper();
        run newcomer();
#endif
        k = 0
    };
end_alive:
    atomic {
        running == 0;
        do
        :: k < LEVELS * MEMBERS -> assert(word[k] == WORD(truth[k], 0)); assert(record[k] == truth[k]); k++
        :: else -> break
        od
    }
}
