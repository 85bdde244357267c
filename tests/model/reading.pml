/* reading.pml - who took the newest reading of a pool, and how users read it.
 *
 * One word `newest` {sequence, slot}. Whoever takes a reading loads it, calls the source, and then, under the lock of
 * its own handle: drops the reading if `newest` has moved since; else writes it, tagged sequence + 1, into its own
 * ring of two cells (tag 0, the fields, the tag) and compare-and-swaps `newest` from the value loaded. Cell
 * sequence % 2: the cell that `newest` points at is the other one. Two threads of one member take readings at the
 * same time (housekeeping, and a claimer that finds the newest one old). One member is killed at any step; a sweeper
 * carries its reading over into its own ring by the same way, then a new owner takes the slot and reads too.
 *
 * Shown by assertion:  - what is published was read after what was published before: a late reading never wins;
 *                      - the sequence grows by one;
 *                      - users never accept a torn cell, or one that is not the reading of that sequence;
 *                      - at every moment, wherever writers are stopped or killed, the newest reading can be read. */

#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef READINGS
#define READINGS 2              /* of each thread */
#endif
#ifndef THREADS
#define THREADS 2               /* of member 0, which may be killed; member 1 has one, which also sweeps */
#endif
#define SEQUENCES (SLOTS + (THREADS + 2) * READINGS + 3)

#ifdef BROKEN_RING_OF_ONE
#define CELL(slot, sequence) (slot)
#else
#define CELL(slot, sequence) ((slot) * 2 + (sequence) % 2)
#endif

typedef cell { byte tag; byte total; byte free };
cell ring[SLOTS * 2];

/* `newest` is one 64-bit word in the code: both parts change in one step here. */
byte newest_sequence;           /* 0: no reading yet */
byte newest_slot;

bool handle_locked[SLOTS];      /* process-local lock of the handle; never held over the source call */
bool killed;                    /* member 0: its lock and its threads are gone */
byte threads_left = THREADS;    /* of member 0, that have not noticed yet; the kernel frees the slot after them */
bool sweeping, owned_again;     /* the slot's lock, once the first owner of slot 0 is dead */

byte clock = 1;                 /* ghost: what the source says, new at each call */
byte published[SEQUENCES];      /* ghost: the reading that each sequence stands for */

/* One step after another: a user may look in between any two. */
inline write_cell(slot, sequence, value)
{
    ring[CELL(slot, sequence)].tag = 0;
    ring[CELL(slot, sequence)].total = value;
    ring[CELL(slot, sequence)].free = value;
    ring[CELL(slot, sequence)].tag = sequence
}

inline swap_newest(slot, value)
{
    atomic {
        if
#ifdef BROKEN_STORE_NEWEST
        :: true ->
#else
        :: newest_sequence == base && newest_slot == base_slot ->
#endif
            assert(value >= published[newest_sequence]);
            assert(base + 1 == newest_sequence + 1);
            published[base + 1] = value;
            newest_sequence = base + 1;
            newest_slot = slot
#ifndef BROKEN_STORE_NEWEST
        :: else                 /* it has moved: this reading is late, and dropped */
#endif
        fi
    }
}

/* `value` was taken after base was loaded. */
inline put_reading(slot, value)
{
    atomic { !handle_locked[slot] -> handle_locked[slot] = true };
    if
#ifndef BROKEN_NO_RECHECK
    :: newest_sequence != base  /* late; and another thread may have published from the very cell */
#endif
#ifdef BROKEN_NO_RECHECK
    :: true ->
#else
    :: else ->
#endif
        write_cell(slot, base + 1, value);
        swap_newest(slot, value)
    fi;
    handle_locked[slot] = false
}

inline load_newest()
{
    atomic { base = newest_sequence; base_slot = newest_slot }
}

inline call_source()
{
    atomic { clock++; value = clock }
}

/* A member's thread that takes readings. Only the first owner of slot 0 is killed. */
proctype reader(byte slot; bool mortal)
{
    byte base, base_slot, value, left = READINGS;
    {
        do
        :: left > 0 ->
            left--;
            load_newest();
            call_source();
            put_reading(slot, value)
        :: else -> break
        od
    } unless { mortal && killed };
    atomic {
        base = 0; base_slot = 0; value = 0; left = 0;
        if
        :: mortal -> threads_left--
        :: else
        fi
    }
}

/* Carries the dead one's reading over: old content, new sequence, own ring. Then the slot may be used again. */
proctype sweeper(byte slot)
{
    byte base, base_slot, value, total, free, tag;
end_alive:
    atomic { killed && threads_left == 0 && !owned_again -> sweeping = true };
    load_newest();
    if
    :: base != 0 && base_slot == 0 ->
        total = ring[CELL(0, base)].total;
        free = ring[CELL(0, base)].free;
        tag = ring[CELL(0, base)].tag;
        /* A dead owner writes no more, so a whole cell is what is expected. */
        assert(tag == base);
        assert(total == free);
        value = total;
        put_reading(slot, value)
    :: else
    fi;
    sweeping = false
}

/* Takes the slot, swept or not, and leaves the ring alone: `newest` may still point there; tags tell what counts. */
proctype next_owner()
{
end_alive:
    atomic { killed && threads_left == 0 && !sweeping -> owned_again = true; handle_locked[0] = false };
#ifdef BROKEN_JOIN_CLEARS_RING
    ring[0].tag = 0;
    ring[1].tag = 0;
#endif
    run reader(0, false)
}

/* Bounded: one try. A user that fails keeps what it had. */
proctype user()
{
    byte base, base_slot, tag, total, free;
    load_newest();
    tag = ring[CELL(base_slot, base)].tag;
    total = ring[CELL(base_slot, base)].total;
    free = ring[CELL(base_slot, base)].free;
    if
    :: base != 0 && tag == base && ring[CELL(base_slot, base)].tag == base ->
        assert(total == free);
        assert(total == published[base])
    :: else
    fi
}

/* At any moment, with everybody else standing still. */
proctype auditor()
{
    atomic {
        newest_sequence != 0;
        assert(ring[CELL(newest_slot, newest_sequence)].tag == newest_sequence);
        assert(ring[CELL(newest_slot, newest_sequence)].total == published[newest_sequence]);
        assert(ring[CELL(newest_slot, newest_sequence)].free == published[newest_sequence])
    }
}

proctype killer()
{
    killed = true
}

init {
    byte k;
    atomic {
        do
        :: k < THREADS -> run reader(0, true); k++
        :: else -> break
        od;
        k = 0;
        run reader(1, false);
        run sweeper(1);
        run next_owner();
        run user();
        run auditor();
        run killer()
    }
}
