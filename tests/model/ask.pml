/* ask.pml - one member asks another to release bytes: the ask word, the answer, the credit.
 *
 * Two members; each asks the other and answers it, on its main thread while it waits (as busy) and afterwards, and one of
 * them on a second thread too. A member may be killed at any step; it is swept, and its slot gets a new owner who serves.
 * A stop anywhere is an unfinished run and so always included.
 *
 * Shown by assertion:  - an answer is credited at most once, to its asker alone, with no more than was freed for it;
 *                      - nobody is asked what was meant for an earlier owner of its slot;
 *                      - an asker never throws away an answer that was given to it, unless its victim took it for stopped;
 *                      - after the sweep of a member no word names it as the asker of something open.
 * Shown by the search for blocked states (without DEADLINE, so that nothing but an answer ends a wait): two members that
 * ask each other never wait for each other for ever. */

#ifndef ASKS
#define ASKS 1                  /* that each first owner makes */
#endif
#ifndef ASKERS
#define ASKERS 2                /* members that ask; member 1 is asked by 0 anyhow */
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef THREADS
#define THREADS 1               /* of member 1: 2 adds one that only serves */
#endif

#define IDLE     0
#define ASKED    1
#define ACCEPTED 2
#define ANSWERED 3
/* The name stands for asker and sequence; each ask has its own (the sequence does not wrap in the model). */
#define WORD(state, name, generation) ((state) + 4 * (name) + 64 * (generation))
#define STATE(word) ((word) & 3)
#define NAME(word) (((word) >> 2) & 15)
#define GENERATION(word) ((word) >> 6)
#define SAME_BUT(state, word) ((word) - STATE(word) + (state))
#define NAMES 8
#ifndef BROKEN_NO_GENERATION
#define FOR_ME(word, own) (STATE(word) == ASKED && GENERATION(word) == (own))
#else
#define FOR_ME(word, own) (STATE(word) == ASKED)
#endif

byte word[2];                   /* beside each member's record */
byte answer[2], answer_bytes[2];
byte asking[2];                 /* ticket of who is inside an ask */
byte tickets;
byte generation[2] = 1;         /* of the slots, and whether their state says live: one word in the code */
bool live[2] = true;
bool lock[2];                   /* M of each process */
bool killed[2];                 /* the first owner is dead */

/* Ghost: read by assertions only, except asker_of, which the word itself says. */
byte names;
byte asker_of[NAMES], meant_for[NAMES], freed[NAMES];
bool answered[NAMES], credited[NAMES], dropped[NAMES];

#define IS_AWAITED(w) (live[asker_of[NAME(w)]] && asking[asker_of[NAME(w)]] != 0)

inline swap(slot, from, to, done)
{
    d_step {
        if
        :: word[slot] == from -> word[slot] = to; done = true
        :: else -> done = false
        fi
    }
}

inline say_answered(me, w)
{
    d_step {
        if
        :: word[me] == SAME_BUT(ACCEPTED, w) -> word[me] = SAME_BUT(ANSWERED, w); answered[NAME(w)] = true
        :: else                     /* taken back meanwhile */
        fi
    }
}

/* The victim: take what is asked of it, free `most` bytes or none, and answer. */
inline serve(me, own, w, n, done, most)
{
    w = word[me];
    if
    :: FOR_ME(w, own) -> swap(me, w, SAME_BUT(ACCEPTED, w), done)
    :: else -> done = false     /* taken back meanwhile */
    fi;
    if
    :: done ->
        assert(meant_for[NAME(w)] == own);
        /* The holder; what it frees is published as gone before the answer. */
        n = 0;
        if
        :: most > 0 -> n = most; freed[NAME(w)] = n
        :: true
        fi;
        atomic { !lock[me] -> lock[me] = true };
        done = true;
#ifndef BROKEN_LATE_ANSWER
        done = (word[me] == SAME_BUT(ACCEPTED, w));
#endif
        if
        :: done ->
#ifdef BROKEN_ANSWER_FIRST
            say_answered(me, w);
            answer[me] = NAME(w);
            answer_bytes[me] = n;
#else
            answer_bytes[me] = n;
            answer[me] = NAME(w);
            say_answered(me, w);
#endif
        :: else
        fi;
        lock[me] = false
    :: else
    fi;
    w = 0; n = 0; done = false
}

inline credit(name, n)
{
    d_step {
        assert(!credited[name]);
        credited[name] = true;
        assert(n <= freed[name])
    }
}

/* The asker: an answer that is there, by one CAS to idle. */
inline fetch(victim, mine, n, w, done)
{
    w = answer[victim];
    n = answer_bytes[victim];
    swap(victim, SAME_BUT(ANSWERED, mine), SAME_BUT(IDLE, mine), done);
    if
    :: done && w == NAME(mine) -> credit(NAME(mine), n)
    :: else
    fi;
    w = 0; n = 0
}

proctype member(byte me; byte own)
{
    byte asks, ticket, seen, mine, w, n;
    bool done;
    {
        do
        :: asks < ASKS && own == 1 && me < ASKERS ->
            asks++;
            d_step { tickets++; ticket = tickets };
            asking[me] = ticket;
            /* One that asked before us is waiting for somebody, perhaps for us. */
            if
            :: asking[1 - me] != 0 && asking[1 - me] < ticket -> goto over
            :: else
            fi;
            d_step { seen = (live[1 - me] -> generation[1 - me] : 0) };
            if
            :: seen == 0 -> goto over
            :: else
            fi;
            w = word[1 - me];
            if
            :: STATE(w) != IDLE && GENERATION(w) == seen && !(STATE(w) == ANSWERED && !IS_AWAITED(w)) -> goto over
            :: else
            fi;
            d_step {
                if
                :: word[1 - me] == w ->
                    names++;
                    mine = WORD(ASKED, names, seen);
                    asker_of[names] = me;
                    meant_for[names] = seen;
                    word[1 - me] = mine
                :: else -> mine = 0
                fi;
                w = 0
            };
            if
            :: mine == 0 -> goto over
            :: else
            fi;
            do
            :: word[1 - me] == SAME_BUT(ANSWERED, mine) -> fetch(1 - me, mine, n, w, done); break
            :: !live[1 - me] || generation[1 - me] != seen -> break
            :: SAME_BUT(IDLE, word[1 - me]) != SAME_BUT(IDLE, mine) || STATE(word[1 - me]) == IDLE -> break
#ifndef BROKEN_NO_BUSY
            :: FOR_ME(word[me], own) -> serve(me, own, w, n, done, 0)
#endif
#ifdef DEADLINE
            :: true ->
#ifdef BROKEN_WITHDRAW_BY_STORE
                w = word[1 - me];
                if
                :: w == mine || w == SAME_BUT(ACCEPTED, mine) -> word[1 - me] = SAME_BUT(IDLE, mine); done = true
                :: else -> done = false
                fi;
                w = 0;
#else
                swap(1 - me, mine, SAME_BUT(IDLE, mine), done);
                if
                :: !done -> swap(1 - me, SAME_BUT(ACCEPTED, mine), SAME_BUT(IDLE, mine), done)
                :: else
                fi;
#endif
                if
                :: done -> assert(!answered[NAME(mine)] || dropped[NAME(mine)])
                :: word[1 - me] == SAME_BUT(ANSWERED, mine) && !done -> fetch(1 - me, mine, n, w, done)
                :: else
                fi;
                break
#endif
            od;
over:       skip;
            d_step { asking[me] = 0; mine = 0; seen = 0; ticket = 0; done = false }
        :: else -> break
        od;
end_serving:
        do
        :: FOR_ME(word[me], own) -> serve(me, own, w, n, done, 1)
#ifdef DROP
        :: STATE(word[me]) == ANSWERED ->  /* its asker may be stopped: a second is over */
            w = word[me];
            d_step {
                if
                :: word[me] == w && STATE(w) == ANSWERED -> word[me] = SAME_BUT(IDLE, w); dropped[NAME(w)] = true
                :: else
                fi;
                w = 0
            }
#endif
        od
    } unless { own == 1 && killed[me] }
}

/* Housekeeping: a second thread of the member that serves. */
proctype second(byte me; byte own)
{
    byte w, n;
    bool done;
    {
end_serving:
        do
        :: FOR_ME(word[me], own) -> serve(me, own, w, n, done, 1)
        od
    } unless { own == 1 && killed[me] }
}

inline clear(slot)
{
    /* As a victim: a plain load and store, since nobody can be asking who is not live, or it asks an earlier owner. */
    d_step { word[slot] = SAME_BUT(IDLE, word[slot]) };
#ifndef BROKEN_SWEEP_FORGETS_ASKS
    /* As an asker. */
    d_step {
        if
        :: STATE(word[1 - slot]) != IDLE && asker_of[NAME(word[1 - slot])] == slot ->
            word[1 - slot] = SAME_BUT(IDLE, word[1 - slot])
        :: else
        fi
    }
#endif
}

/* One death, anywhere; the sweep; the next owner. */
proctype death()
{
    byte slot;
    if
    :: slot = 0
    :: slot = 1
    fi;
    killed[slot] = true;
    lock[slot] = false;
    clear(slot);
    assert(STATE(word[1 - slot]) == IDLE || asker_of[NAME(word[1 - slot])] != slot);
    live[slot] = false;
    clear(slot);                /* by the next owner, before it is live */
    asking[slot] = 0;
    d_step { generation[slot] = 2; live[slot] = true };
    run member(slot, 2)
}

init
{
    atomic {
        run member(0, 1);
        run member(1, 1);
#if THREADS > 1
        run second(1, 1);
#endif
#if KILLS > 0
        run death()
#endif
    }
}
