/* refusal.pml - when a refusal may be called exact: the claim did not fit at some instant during the call.
 *
 * Members grow (word, then record and version, then the pool's change counter) and shrink (record and version, then
 * word, then counter). Units that move from one to another during a scan are seen twice, so one scan proves nothing.
 * Two equal scans prove something only together with the right witness, and there are two:
 *   BY_RECORD   (committed, version) equal in both scans, and the record of that version agrees with committed;
 *   BY_COUNTER  committed equal in both scans, and the pool's change counter did not move from before the first scan
 *               to behind the second one.
 * (committed, version) alone is none: a member that shrank and grew again has the old pair back until it publishes.
 *
 * Shown by assertion: whoever refuses by the witness was right at some instant. Where the tries run out, a refusal is
 * not exact; that is outside the model. Claims are one step here (claim.pml has their inside), and so is a publish. */

#ifndef MEMBERS
#define MEMBERS 3
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef CAP
#define CAP 2
#endif

byte committed[MEMBERS];
byte record[MEMBERS];
byte version[MEMBERS];
byte counter;
byte sum;                       /* ghost */
bool was_full;                  /* ghost: one more unit did not fit at some instant of the present try */

proctype member(byte me)
{
    byte left = ROUNDS;
    do
    :: left > 0 ->
        left--;
end_full:
        atomic { sum < CAP -> committed[me] = 1; sum++; was_full = (was_full || sum == CAP) };
        atomic { record[me] = 1; version[me]++ };
        counter++;
        if
        :: break                /* keeps it */
        :: true ->
            atomic { record[me] = 0; version[me]++ };
            atomic { committed[me] = 0; sum-- };
            counter++
        fi
    :: else -> break
    od
}

/* Wants one unit. */
proctype refuser()
{
    byte first[MEMBERS], first_version[MEMBERS], first_counter, g, i;
    bool moved;
    atomic { was_full = (sum == CAP); first_counter = counter };
    do
    :: i < MEMBERS ->
        first[i] = committed[i];
        g = g + first[i];
        atomic {
            first_version[i] = version[i];
#if !defined(BY_COUNTER) && !defined(BROKEN_PAIRS_ALONE)
            if
            :: record[i] != first[i] -> moved = true
            :: else
            fi;
#endif
            i++
        }
    :: else -> break
    od;
#ifndef BROKEN_SINGLE_SCAN
    i = 0;
    do
    :: i < MEMBERS ->
        moved = (moved || committed[i] != first[i]);
#ifndef BY_COUNTER
        moved = (moved || version[i] != first_version[i]);
#endif
        i++
    :: else -> break
    od;
#ifdef BY_COUNTER
    moved = (moved || counter != first_counter);
#endif
#endif
    assert(moved || g + 1 <= CAP || was_full)
}

init {
    byte k;
    atomic {
        do
        :: k < MEMBERS -> run member(k); k++
        :: else -> break
        od;
        run refuser();
        k = 0
    }
}
