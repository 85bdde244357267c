/* slots.pml - join, leave and sweep of one slot that is used again and again.
 *
 * States: free, joining, live, dying; the state word carries the generation and changes by compare-and-swap. An owner
 * holds the slot's lock exclusively for life, the kernel drops it at death; sweepers hold it shared. Owners may be
 * killed at any step, sweepers too; a stop anywhere is an unfinished run and so always included.
 *
 * Shown by assertion:  - never two owners, and the generation of a live owner never changes under it;
 *                      - a live owner's record is never cleared by anybody else, and holds only what it published;
 *                      - a dead one's bytes go away provided anyone else runs: at every moment one more sweep, made
 *                        while everybody else stands still, leaves no bytes without a live owner. */

#ifndef OWNERS
#define OWNERS 2                /* one after the other, each joins once */
#endif
#ifndef SWEEPERS
#define SWEEPERS 2
#endif
#ifndef KILLS
#define KILLS 1                 /* of owners */
#endif

#define FREE    0
#define JOINING 1
#define LIVE    2
#define DYING   3
#define WORD(generation, state) ((generation) * 4 + (state))
#define STATE(word) ((word) & 3)
#define GENERATION(word) ((word) >> 2)
#define NOBODY 255

byte state;                     /* the slot's state word */
byte record;                    /* bytes that count for the slot */

byte holder = NOBODY;           /* ghost name of the exclusive holder of the slot's lock */
byte shared_holders;            /* sweepers that hold it shared */
byte exclusive_sweepers;        /* only where the broken variant lets a sweeper exclude the others */
byte killed = NOBODY;           /* the owner that must die next */
byte killed_sweeper = NOBODY;

#define UNLOCKED (shared_holders == 0 && exclusive_sweepers == 0 && holder == NOBODY)

/* Compare-and-swap whose failure means that somebody else has done it. */
inline swap_state(from, to)
{
    atomic {
        if
        :: state == from -> state = to
        :: else
        fi
    }
}

proctype owner(byte me)
{
    byte generation, seen;
end_waiting:                    /* somebody may keep the slot; a real joiner tries the other slots */
    atomic { UNLOCKED -> holder = me };
    {
        seen = state;
        /* The slot may be dead and not swept: it is cleared here whatever the state says. */
#ifndef BROKEN_JOIN_DOES_NOT_CLEAR
        record = 0;
#endif
        generation = GENERATION(seen) + 1;
        swap_state(seen, WORD(generation, JOINING));
        assert(state == WORD(generation, JOINING));
        assert(record == 0);    /* nothing of the one before counts for the new owner */
        swap_state(WORD(generation, JOINING), WORD(generation, LIVE));
        assert(state == WORD(generation, LIVE));
        record = 1;             /* it publishes: first through a smaller figure, then a larger one */
        assert(record == 1 && state == WORD(generation, LIVE));
        atomic { assert(record == 1); record = 2 };
        assert(record == 2 && state == WORD(generation, LIVE));
        assert(holder == me);
        /* Leave: the bytes go first, the lock last, so that nobody can be in the slot yet. */
        swap_state(WORD(generation, LIVE), WORD(generation, DYING));
#ifdef BROKEN_LEAVE_UNLOCKS_FIRST
        holder = NOBODY;
        record = 0;
        swap_state(WORD(generation, DYING), WORD(generation, FREE))
#else
        record = 0;
        swap_state(WORD(generation, DYING), WORD(generation, FREE));
        assert(holder == me);
        holder = NOBODY
#endif
    } unless {
        /* Death: the kernel drops the lock, nothing else happens. */
        atomic {
            killed == me -> killed = NOBODY;
            if
            :: holder == me -> holder = NOBODY
            :: else
            fi
        }
    };
    atomic { generation = 0; seen = 0 }
}

/* Kills whoever holds the slot at that moment, at any step between taking and dropping the lock. */
proctype killer()
{
    byte left = KILLS;
    do
    :: left > 0 ->
end_nobody:
        atomic { holder != NOBODY && killed == NOBODY -> killed = holder };
        left--
    :: else -> break
    od
}

/* At any step, or never. The lock of a killed sweeper is dropped, as that of a stopped one is not. */
proctype killer_of_a_sweeper()
{
    killed_sweeper = 0
}

inline lock_as_sweeper()
{
#ifdef BROKEN_EXCLUSIVE_SWEEP
    atomic {
        if
        :: UNLOCKED -> exclusive_sweepers++; locked = true
        :: else -> locked = false
        fi
    }
#elif defined(BROKEN_SWEEP_WITHOUT_LOCK)
    locked = (holder == NOBODY)
#else
    atomic {
        if
        :: holder == NOBODY -> shared_holders++; locked = true
        :: else -> locked = false
        fi
    }
#endif
}

inline unlock_as_sweeper()
{
#ifdef BROKEN_EXCLUSIVE_SWEEP
    exclusive_sweepers--
#elif defined(BROKEN_SWEEP_WITHOUT_LOCK)
    skip
#else
    shared_holders--
#endif
}

/* Idempotent: any number may do it at once, each may stop or die at any step, the next one finishes. */
inline clear_slot()
{
    seen = state;
    if
    :: STATE(seen) != FREE ->
        swap_state(seen, WORD(GENERATION(seen), DYING));
        record = 0;
        swap_state(WORD(GENERATION(seen), DYING), WORD(GENERATION(seen), FREE))
    :: else                     /* whoever made it free had cleared the record before */
    fi
}

proctype sweeper(byte me)
{
    byte seen;
    bool locked;
    lock_as_sweeper();
    if
    :: locked ->
        clear_slot() unless { killed_sweeper == me };
        unlock_as_sweeper()
    :: else
    fi;
    atomic { seen = 0; locked = false }
}

/* One more sweeper that runs alone from here to its end, at any moment. */
proctype last_resort()
{
    byte seen;
    bool locked;
    atomic {
        lock_as_sweeper();
        if
        :: locked -> clear_slot(); unlock_as_sweeper()
        :: else
        fi;
        assert(holder != NOBODY || record == 0);
        seen = 0;
        locked = false
    }
}

init {
    byte k;
    atomic {
        do
        :: k < OWNERS -> run owner(k); k++
        :: else -> break
        od;
        k = 0;
        do
        :: k < SWEEPERS -> run sweeper(k); k++
        :: else -> break
        od;
        run killer();
        run killer_of_a_sweeper();
        run last_resort();
        k = 0
    }
}
