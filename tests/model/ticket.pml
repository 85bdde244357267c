/* ticket.pml - the waiting ticket: later claimers leave room for those that wait.
 *
 * A member whose claim does not fit takes a ticket from the pool's counter and stores its waiting word {ticket, units};
 * between the two it may be stopped or killed like anywhere else. Every claimer notes, once, at its first scan, the
 * waiting words with an earlier ticket than its own (without one: all), and leaves room for those it noted, as long as
 * they stand there unchanged and its own clock has not run out for them. Then it takes them away, each by a
 * compare-and-swap from the word it saw. A claim itself is one step here; claim.pml has its inside.
 *
 * Time is a bound that each claimer keeps for itself: once per (claimer, word it noted) "half a second is over" may
 * happen, at any moment. A claimer that waits always comes to one of: there is room; the noted word is gone; its own
 * clock runs out. Up to STOPS members may be stopped for ever, each anywhere, and all others must end: whoever waits
 * for a stopped one for ever is reported as an invalid end state.
 *
 * Shown:  - the sum of what is granted never passes CAP, tickets or not;
 *         - a claimer is delayed only by words that stood there when its first scan ended, each at most once;
 *         - a waiting word is taken away only by its owner, by the sweep of a dead owner's slot, or after the clock of
 *           some observer ran out for that very ticket;
 *         - whoever begins while an earlier one waits does not take the room of that one before its own clock runs out;
 *         - a stopped or dead waiter or observer blocks nobody for ever. */

#ifndef N
#define N 3
#endif
#ifndef CAP
#define CAP 2
#endif
#ifndef ROUNDS
#define ROUNDS 2                /* claims of each member, given back in between */
#endif
#ifndef STOPS
#define STOPS 1
#endif
#define TICKETS (N * ROUNDS + 2)
#define HAS(set, i) (((set) >> (i)) & 1)

byte used;                      /* ghost and check in one: the committed units of all */
byte held[N];
byte counter = 1;               /* the pool's ticket counter; 0 means no ticket */

/* The waiting word: both parts are one 64-bit word, and change in one step. */
byte ticket[N];
byte units[N];

bool owned[N];
byte stopped;                   /* set of members that never take another step */
bool killed;                    /* member 0 */

bool expired[TICKETS];          /* ghost: some observer's clock has run out for it */

/* The set of slots that each claimer leaves room for, and the tickets it noted. Each claimer's own business: global only
 * for the assertion about two that wait for each other. */
byte noted[N];
byte seen[N * N];
#define SEEN(me, i) seen[(me) * N + (i)]
#define STANDS(me, i) (HAS(noted[me], i) && ticket[i] == SEEN(me, i))

#ifdef BROKEN_NOTE_ANY
#define EARLIER(i) true
#else
#define EARLIER(i) (mine == 0 || ticket[i] < mine)
#endif

inline note(i)
{
    if
    :: i != me && ticket[i] != 0 && !HAS(noted[me], i) && EARLIER(i) ->
        noted[me] = noted[me] | (1 << i);
        SEEN(me, i) = ticket[i]
    :: else
    fi
}

/* Sets `room` to what those noted still wait for. One load per member. */
inline scan()
{
    atomic { i = 0; room = 0 };
    do
    :: i < N ->
        atomic {
#if defined(BROKEN_NOTE_LATER) || defined(BROKEN_NOTE_ANY)
            note(i);
#else
            if
            :: first -> note(i)
            :: else
            fi;
#endif
            if
            :: STANDS(me, i) -> room = room + units[i]
            :: HAS(noted[me], i) && !STANDS(me, i) -> noted[me] = noted[me] & ~(1 << i)
            :: else
            fi;
            i++
        }
    :: else -> break
    od;
#ifdef BROKEN_NOT_HONOURED
    room = 0;
#endif
    i = 0
}

/* The claim's own check and grant, with the room that is left to others on top. */
inline try()
{
    atomic {
        refused = (used + n > CAP);
        if
        :: used + n + room <= CAP ->
            used = used + n;
            held[me] = held[me] + n;
            granted = true;
            assert(used <= CAP);
            standing = 0;
            do
            :: i < N ->
                if
                :: STANDS(me, i) -> standing = standing + units[i]
                :: else
                fi;
                i++
            :: else -> break
            od;
            assert(used + standing <= CAP);
            i = 0;
            standing = 0
        :: else
        fi
    }
}

/* Its clock has run out for one of those it noted. */
inline expire()
{
    if
    :: HAS(noted[me], 0) -> i = 0
    :: HAS(noted[me], 1) -> i = 1
    :: HAS(noted[me], N - 1) -> i = N - 1
    fi;
    expired[SEEN(me, i)] = true;
#ifdef BROKEN_CLEAR_BY_STORE
    if
    :: ticket[i] == SEEN(me, i) -> ticket[i] = 0
    :: else
    fi;
#else
    atomic {
        if
        :: ticket[i] == SEEN(me, i) -> ticket[i] = 0; units[i] = 0
        :: else                 /* it has changed: fine */
        fi
    };
#endif
    atomic { noted[me] = noted[me] & ~(1 << i); i = 0 }
}

inline count_noted(into)
{
    into = HAS(noted[me], 0) + HAS(noted[me], 1) + (N > 2 -> HAS(noted[me], N - 1) : 0)
}

/* A delay is charged to each word it is due to, once; a word noted in the place of another one is a new one. */
inline charge()
{
    atomic {
        do
        :: i < N ->
            if
            :: STANDS(me, i) ->
                assert(!STANDS(i, me) || ticket[me] == 0);
                if
                :: charged_for[i] != SEEN(me, i) -> charged_for[i] = SEEN(me, i); charged++
                :: else
                fi
            :: else
            fi;
            i++
        :: else -> break
        od;
        i = 0;
        assert(charged <= allowed)
    }
}

inline forget()
{
    n = 0; mine = 0; i = 0; room = 0; standing = 0; allowed = 0; charged = 0; noted[me] = 0; had_ticket = false;
    refused = false; granted = false; first = true;
    do
    :: i < N -> SEEN(me, i) = 0; charged_for[i] = 0; i++
    :: else -> break
    od;
    i = 0
}

inline remove_own_word()
{
    if
    :: mine != 0 -> atomic { ticket[me] = 0; units[me] = 0 }
    :: else
    fi
}

proctype member(byte me; byte generation)
{
    byte n, mine, i, room, standing, allowed, charged, charged_for[N], rounds;
    bool first, had_ticket, refused, granted;
    {
        do
        :: rounds < ROUNDS ->
            atomic { rounds++; forget() };
            if :: n = 1 :: n = CAP fi;
            scan();
            atomic { first = false; count_noted(allowed) };
#ifdef BROKEN_NOTE_ANY
            allowed = TICKETS;  /* this variant is about two that wait for each other, not about how many delay */
#endif
            do
            :: true ->
                try();
                if
                :: granted -> break
                :: !granted && refused && !had_ticket ->
                    atomic { mine = counter; counter++; had_ticket = true };
                    atomic { ticket[me] = mine; units[me] = n }
                :: !granted && refused && had_ticket ->
                    if
                    :: break                            /* its own time is over */
                    :: used + n <= CAP                  /* something was given back */
                    fi
                :: else ->
                    charge();
                    if
                    :: used + n + room <= CAP
                    :: used + n > CAP                   /* somebody else took it: no longer delayed by tickets */
                    :: !STANDS(me, 0) && HAS(noted[me], 0) || !STANDS(me, 1) && HAS(noted[me], 1) ||
                       !STANDS(me, N - 1) && HAS(noted[me], N - 1)
#ifndef BROKEN_NO_CLOCK
                    :: noted[me] != 0 -> expire()
#endif
                    fi
                fi;
                if
                :: mine != 0 && ticket[me] == 0 -> assert(expired[mine]); mine = 0
                :: else
                fi;
                scan()
            :: else -> break
            od;
            remove_own_word();
            if
            :: granted -> atomic { used = used - n; held[me] = held[me] - n }
            :: granted -> skip                          /* keep it */
            :: else
            fi
        :: else -> break
        od;
        atomic { forget(); rounds = 0 }
    } unless {
        atomic {
            HAS(stopped, me) || (killed && me == 0 && generation == 0) ->
            forget(); rounds = 0;
            if
            :: HAS(stopped, me)
            :: else -> used = used - held[me]; held[me] = 0; owned[me] = false
            fi
        }
    }
}

proctype stopper()
{
    byte left = STOPS;
    do
    :: left > 0 ->
        if
        :: stopped = stopped | 1
        :: stopped = stopped | 2
        :: stopped = stopped | (1 << (N - 1))
        fi;
        left--
    :: break
    od
}

#ifdef CRASH
proctype killer()
{
    killed = true
}

/* Only a dead owner's word is cleared here: nobody waits by it any more. */
inline clear_dead_word()
{
    atomic { expired[ticket[0]] = true; ticket[0] = 0; units[0] = 0 }
}

proctype sweeper()
{
end_alive:
    atomic { killed && !owned[0] -> clear_dead_word() }
}

proctype newcomer()
{
end_alive:
    atomic { killed && !owned[0] -> owned[0] = true; clear_dead_word(); run member(0, 1) }
}
#endif

init {
    byte k;
    atomic {
        do
        :: k < N -> owned[k] = true; run member(k, 0); k++
        :: else -> break
        od;
        run stopper();
#ifdef CRASH
        run killer();
        run sweeper();
        run newcomer();
#endif
        k = 0
    }
}
