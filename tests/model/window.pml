/* window.pml - a short time in which a member is left alone: open, then look; the later one closes and waits, unless it
 * is in already.
 *
 * A member may be stopped for ever while its window is open. Whoever waits for it goes on once the announced time is over
 * by his own clock: an event that may happen at any moment for a stopped owner, and not for one that runs (whoever
 * overruns what he announced has no right to be left alone).
 *
 * Shown by assertion: two that are not stopped are never both inside. Shown by the search for blocked states: nobody
 * waits for ever, whoever is stopped where. */

#ifndef MEMBERS
#define MEMBERS 3
#endif
#ifndef ROUNDS
#define ROUNDS 1
#endif
#ifndef STOPS
#define STOPS 0
#endif

#define OPENING(ticket) ((ticket) * 2)
#define INSIDE(ticket) ((ticket) * 2 + 1)

byte word[MEMBERS];             /* ticket of the open window, and whether its owner has gone in; 0: none */
byte tickets;
byte stops;
bool stopped[MEMBERS], inside[MEMBERS];     /* ghost, but for the clock */

/* Somebody else's window: `found` and its word in `seen`. */
inline look(me, i, found, seen, ignored)
{
    i = 0; found = MEMBERS; seen = 0;
    do
    :: i < MEMBERS && found == MEMBERS ->
        seen = word[i];
        if
        :: i != me && seen != 0 && seen != ignored -> found = i
        :: else -> seen = 0
        fi;
        i++
    :: else -> break
    od;
    i = 0
}

/* Until that window is closed or changed, or its time is over. */
inline outwait(found, seen, ignored)
{
    if
    :: word[found] != seen
#ifndef BROKEN_NO_CLOCK
    :: stopped[found] -> ignored = seen
#endif
    fi
}

proctype member(byte me)
{
    byte round, ticket, i, found, seen, ignored;
    do
    :: round < ROUNDS ->
        round++;
        d_step { tickets++; ticket = tickets };
again:  skip;
#ifdef BROKEN_NEW_TICKETS
        d_step { if :: ticket < 20 -> tickets++; ticket = tickets :: else -> assert(false) fi };
#endif
#ifdef BROKEN_LOOK_FIRST
        look(me, i, found, seen, ignored);
        word[me] = OPENING(ticket);
#else
        word[me] = OPENING(ticket);
        look(me, i, found, seen, ignored);
#endif
        do
        :: found == MEMBERS -> break
#ifdef BROKEN_LATER_IGNORED
        :: found != MEMBERS && seen / 2 > ticket -> found = MEMBERS
#else
        :: found != MEMBERS && seen % 2 == 0 && seen / 2 > ticket ->
            outwait(found, seen, ignored);
            look(me, i, found, seen, ignored)
#endif
        :: found != MEMBERS && (seen % 2 == 1 || seen / 2 < ticket) ->
#ifndef BROKEN_WAIT_OPEN
            word[me] = 0;
#endif
            outwait(found, seen, ignored);
            goto again
        od;
        word[me] = INSIDE(ticket);
        d_step {
            inside[me] = true;
            i = 0;
            do
            :: i < MEMBERS -> assert(i == me || !inside[i] || stopped[i]); i++
            :: else -> break
            od;
            i = 0
        };
        if
        :: stops < STOPS -> atomic { stops++; stopped[me] = true }; break
        :: true
        fi;
        inside[me] = false;
        word[me] = 0;
        d_step { ticket = 0; found = 0; seen = 0 }
    :: else -> break
    od
}

init
{
    byte n;
    atomic {
        do
        :: n < MEMBERS -> run member(n); n++
        :: else -> break
        od
    }
}
