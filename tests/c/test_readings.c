/* Readings and what follows from them, and the sweep, which needs them. */
#define _GNU_SOURCE
#include "core_help.h"

#define TOTAL (100 * GIB)
#define PERIOD (2 * ML_PERIOD_BUSY_NS)

static ml_ledger *reader;
static ml_device *card;

static void start(void) {
    new_segment();
    reader = join();
    card = open_card(reader, 0);
}

/* The source says that `used` GiB are taken, one period after the last reading. */
static int used(uint64_t gib) {
    forward_ns += PERIOD;
    return read_source(reader, 0, TOTAL, TOTAL - gib * GIB);
}

static uint64_t unaccounted(void) {
    return figures_of(card).unaccounted / GIB;
}

/* ---- unaccounted ----------------------------------------------------------------------------------------- */

static ml_reading_op begun; /* of the last used_again() */

/* As used(), but what was begun stays at hand for settling. */
static int used_again(uint64_t gib) {
    ml_reading reading = {.total = TOTAL, .free = TOTAL - gib * GIB, .scope = ML_SCOPE_DEVICE};
    forward_ns += PERIOD;
    CHECK_EQ(ml_reading_begin(reader, 0, NULL, &begun), ML_OK);
    return ml_reading_end(reader, &begun, &reading);
}

static void test_bytes_in_flight_are_not_foreign_ones(void) {
    start();
    CHECK_EQ(used(30), ML_OK); /* ours, not yet published */
    CHECK_EQ(unaccounted(), 30);
    hold(card, 30 * GIB);
    CHECK_EQ(free_of(card), 40 * GIB); /* too low until the next reading */
    CHECK_EQ(used_again(30), ML_OK);
    CHECK_EQ(unaccounted(), 30); /* on the safe side until it has been looked at again */
    CHECK_EQ(ml_reading_settle(reader, &begun), ML_OK);
    CHECK_EQ(unaccounted(), 0);
    CHECK_EQ(free_of(card), 70 * GIB);
    CHECK_EQ(ml_reading_settle(reader, &begun), ML_BUSY); /* settled already */
    ml_ledger_leave(reader);
}

/* Failure: the source is asked between a member's free and its publish, another member has grown since the reading
 * before, and the bytes of a third program vanish behind the two: free too high, and a claim of it is granted. */
static void test_late_shrink_hides_no_foreign_bytes(void) {
    start();
    ml_ledger *other = join();
    ml_device *grows = open_card(other, 0);
    hold(card, 10 * GIB);
    CHECK_EQ(used(14), ML_OK); /* 4 are a stranger's */
    CHECK_EQ(unaccounted(), 4);
    hold(grows, 5 * GIB);            /* landed and published */
    CHECK_EQ(used_again(14), ML_OK); /* card has freed 5 of its 10 and not said so */
    CHECK_EQ(unaccounted(), 4);
    hold(card, 5 * GIB);
    CHECK_EQ(ml_reading_settle(reader, &begun), ML_NOT_READY); /* ask again */
    CHECK_EQ(unaccounted(), 4);
    CHECK_EQ(used_again(14), ML_OK);
    CHECK_EQ(ml_reading_settle(reader, &begun), ML_OK);
    CHECK_EQ(unaccounted(), 4);
    CHECK_EQ(free_of(card), 86 * GIB);
    ml_ledger_leave(other);
    ml_ledger_leave(reader);
}

/* A foreign step down counts only when two readings saw it: the drop may be a member that freed and has not published
 * yet. */
static void test_window_spans_the_reading_before(void) {
    start();
    hold(card, 30 * GIB);
    CHECK_EQ(used(50), ML_OK);
    CHECK_EQ(unaccounted(), 20);
    CHECK_EQ(used(30), ML_OK);
    CHECK_EQ(unaccounted(), 20);
    CHECK_EQ(used(30), ML_OK);
    CHECK_EQ(unaccounted(), 0);
    CHECK_EQ(used(60), ML_OK); /* up at once */
    CHECK_EQ(unaccounted(), 30);
    ml_ledger_leave(reader);
}

static void test_window_lasts_when_somebody_refreshes_in_a_loop(void) {
    start();
    hold(card, 30 * GIB);
    uint64_t took_ns;
    do { /* until the loop was one: on a busy machine a period may pass in it */
        CHECK_EQ(used(30), ML_OK);
        CHECK_EQ(used(50), ML_OK);
        took_ns = os_boottime_ns();
        for (int i = 0; i < 20; i++) CHECK_EQ(read_source(reader, 0, TOTAL, TOTAL - 30 * GIB), ML_OK);
        took_ns = os_boottime_ns() - took_ns;
    } while (took_ns > ML_PERIOD_BUSY_NS);
    CHECK_EQ(unaccounted(), 20);
    for (int i = 0; i < 3; i++) CHECK_EQ(used(30), ML_OK);
    CHECK_EQ(unaccounted(), 0);
    ml_ledger_leave(reader);
}

/* The window is in the reading, so it survives a change of reader. */
static void test_window_is_carried_to_another_reader(void) {
    start();
    ml_ledger *other = join();
    (void)open_card(other, 0);
    hold(card, 30 * GIB);
    CHECK_EQ(used(50), ML_OK);
    forward_ns += PERIOD;
    CHECK_EQ(read_source(other, 0, TOTAL, TOTAL - 30 * GIB), ML_OK);
    CHECK_EQ(unaccounted(), 20);
    ml_ledger_leave(other);
    CHECK_EQ(used(30), ML_OK);
    CHECK_EQ(unaccounted(), 0);
    ml_ledger_leave(reader);
}

/* Another member's clock may be days ahead (a time namespace): its reading leaves the window like any other. */
static void test_reading_from_a_clock_that_is_ahead_leaves_the_window(void) {
    start();
    hold(card, 30 * GIB);
    CHECK_EQ(used(30), ML_OK);
    forward_ns += 86400 * SECOND;
    CHECK_EQ(used(50), ML_OK);
    CHECK_EQ(used(50), ML_OK);
    forward_ns -= 86400 * SECOND;
    for (int i = 0; i < 4; i++) CHECK_EQ(used(30), ML_OK);
    CHECK_EQ(unaccounted(), 0);
    ml_ledger_leave(reader);
}

static int read_while(uint64_t before, uint64_t after, uint64_t used_gib) {
    ml_reading_op op;
    ml_reading reading = {.total = TOTAL, .free = TOTAL - used_gib * GIB, .scope = ML_SCOPE_DEVICE};
    hold(card, before * GIB);
    CHECK_EQ(ml_reading_begin(reader, 0, NULL, &op), ML_OK);
    hold(card, after * GIB);
    return ml_reading_end(reader, &op, &reading);
}

static void test_smaller_held_of_before_and_after_counts(void) {
    start();
    CHECK_EQ(read_while(0, 20, 20), ML_OK); /* not surely in the source's answer */
    CHECK_EQ(unaccounted(), 20);
    CHECK_EQ(free_of(card), 60 * GIB);
    ml_ledger_leave(reader);
    start();
    CHECK_EQ(read_while(20, 0, 20), ML_OK); /* freed meanwhile: the source may have them still */
    CHECK_EQ(unaccounted(), 20);
    ml_ledger_leave(reader);
}

/* ---- bad readings ---------------------------------------------------------------------------------------- */

static void test_late_reading_loses(void) {
    start();
    ml_ledger *other = join();
    (void)open_card(other, 0);
    ml_reading_op slow;
    ml_reading old = {.total = TOTAL, .free = TOTAL, .scope = ML_SCOPE_DEVICE}, now;
    CHECK_EQ(ml_reading_begin(other, 0, NULL, &slow), ML_OK);
    CHECK_EQ(read_source(reader, 0, TOTAL, TOTAL - 40 * GIB), ML_OK);
    CHECK_EQ(ml_reading_end(other, &slow, &old), ML_BUSY);
    CHECK_EQ(free_of(card), 60 * GIB);
    CHECK_EQ(ml_reading_get(other, 0, &now), ML_OK);
    CHECK_EQ(now.reader, 0);
    CHECK_EQ(now.sequence, 1);
    CHECK_EQ(ml_reading_begin(other, 0, NULL, &slow), ML_OK);
    forward_ns += 2 * SECOND; /* longer than one period: a failed reading */
    CHECK_EQ(ml_reading_end(other, &slow, &old), ML_NOT_READY);
    old.scope = ML_SCOPE_PROCESS; /* one process's view stays with its reader */
    CHECK_EQ(ml_reading_begin(other, 0, NULL, &slow), ML_OK);
    CHECK_EQ(ml_reading_end(other, &slow, &old), ML_ERR_ARGUMENT);
    CHECK_EQ(free_of(card), 60 * GIB);
    CHECK_EQ(findings_of(reader), 0);
    ml_ledger_leave(other);
    ml_ledger_leave(reader);
}

static int end_reading(uint64_t total, uint64_t free_bytes, uint64_t reserved, uint32_t reason) {
    ml_reading_op op;
    ml_reading reading = {
        .total = total, .free = free_bytes, .reserved = reserved, .reason = reason, .scope = ML_SCOPE_DEVICE};
    CHECK_EQ(ml_reading_begin(reader, 0, NULL, &op), ML_OK);
    return ml_reading_end(reader, &op, &reading);
}

static void test_implausible_answers_are_absent_with_a_reason(void) {
    static const uint64_t bad[][3] = {
        {0, 0, 0}, {GIB, 2 * GIB, 0}, {GIB, GIB, 1}, {(uint64_t)ML_BYTES_MAX + 1, 0, 0}, {UINT64_MAX, UINT64_MAX, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        start();
        CHECK_EQ(used(10), ML_OK);
        CHECK_EQ(end_reading(bad[i][0], bad[i][1], bad[i][2], ML_REASON_NONE), ML_OK);
        ml_figures f;
        CHECK_EQ(ml_device_figures(card, &f), ML_NOT_READY);
        CHECK_EQ(f.reason, ML_REASON_IMPLAUSIBLE);
        CHECK_EQ(free_of(card), UINT64_MAX);
        CHECK_EQ(ml_device_set_limit(card, 50 * GIB), ML_OK); /* a configured total steps in, and says so */
        CHECK_EQ(ml_device_figures(card, &f), ML_OK);
        CHECK_EQ(f.free, 50 * GIB);
        CHECK_EQ(f.reason, ML_REASON_IMPLAUSIBLE);
        CHECK_EQ(f.flags, ML_FIGURES_KNOWN | ML_FIGURES_LEDGER);
        ml_ledger_leave(reader);
    }
}

static void test_failed_reading_keeps_the_window(void) {
    start();
    hold(card, 30 * GIB);
    CHECK_EQ(used(50), ML_OK);
    CHECK_EQ(end_reading(0, 0, 0, ML_REASON_GPU_LOST), ML_OK);
    ml_figures f;
    CHECK_EQ(ml_device_figures(card, &f), ML_NOT_READY);
    CHECK_EQ(f.reason, ML_REASON_GPU_LOST);
    CHECK_EQ(used(30), ML_OK);
    CHECK_EQ(unaccounted(), 20);
    ml_ledger_leave(reader);
}

static void test_reserved_is_no_part_of_the_usable_total(void) {
    start();
    hold(card, 30 * GIB);
    CHECK_EQ(end_reading(TOTAL, 60 * GIB, 4 * GIB, ML_REASON_NONE), ML_OK);
    ml_figures f = figures_of(card);
    CHECK_EQ(f.total, TOTAL);
    CHECK_EQ(f.reserved, 4 * GIB);
    CHECK_EQ(f.unaccounted, 6 * GIB);
    CHECK_EQ(f.free, 60 * GIB);
    ml_ledger_leave(reader);
}

/* ---- frozen ---------------------------------------------------------------------------------------------- */

static void freeze(void) {
    start();
    hold(card, 50 * GIB);
    CHECK_EQ(used(60), ML_OK);
    CHECK_EQ(used(60), ML_OK);
    hold(card, 58 * GIB);
    CHECK_EQ(used(60), ML_OK);
}

static void test_frozen_source_keeps_what_it_said(void) {
    freeze();
    ml_figures f = figures_of(card);
    CHECK(f.flags & ML_FIGURES_FROZEN);
    CHECK_EQ(f.reason, ML_REASON_FROZEN);
    CHECK_EQ(f.unaccounted, 10 * GIB);
    CHECK_EQ(f.free, 32 * GIB); /* falls with the ledger */
    ml_claim claim;
    CHECK_EQ(try_claim(card, 32 * GIB, &claim), ML_OK);
    CHECK_EQ(claim.checked, 1);
    ml_claim_cancel(&claim);
    CHECK_EQ(try_claim(card, 40 * GIB, &claim), ML_OK); /* only the frozen source refuses it */
    CHECK_EQ(claim.checked, 0);
    ml_claim_cancel(&claim);
    CHECK_EQ(try_claim(card, 40 * GIB + 1, &claim), ML_REFUSED);
    CHECK_EQ(used(60), ML_OK);
    CHECK(figures_of(card).flags & ML_FIGURES_FROZEN);
    CHECK_EQ(used(61), ML_OK); /* it moves again */
    CHECK(!(figures_of(card).flags & ML_FIGURES_FROZEN));
    ml_ledger_leave(reader);
}

static void test_newcomers_and_small_moves_do_not_freeze(void) {
    start();
    ml_ledger *other = join();
    ml_device *same = open_card(other, 0);
    hold(card, 50 * GIB);
    CHECK_EQ(used(60), ML_OK);
    CHECK_EQ(used(60), ML_OK);
    hold(same, 8 * GIB); /* its first publish here: it may have held them all along */
    hold(card, 50 * GIB + (GIB >> 2));
    CHECK_EQ(used(60), ML_OK);
    CHECK(!(figures_of(card).flags & ML_FIGURES_FROZEN));
    hold(card, 50 * GIB + (GIB >> 2) + 1);
    CHECK_EQ(used(60), ML_OK);
    CHECK(figures_of(card).flags & ML_FIGURES_FROZEN);
    ml_ledger_leave(other);
    ml_ledger_leave(reader);
}

/* ---- when ------------------------------------------------------------------------------------------------ */

static ml_tick ticked(ml_ledger *ledger) {
    ml_tick out;
    CHECK_EQ(ml_ledger_tick(ledger, &out), ML_OK);
    return out;
}

static void test_old_reading_is_published_as_stale(void) {
    start();
    hold(card, GIB);
    CHECK_EQ(used(10), ML_OK);
    (void)ticked(reader);
    forward_ns += 4 * SECOND;
    (void)ticked(reader);
    CHECK_EQ(free_of(card), 90 * GIB);
    forward_ns += 2 * SECOND; /* above 20 periods of 250 ms */
    (void)ticked(reader);
    ml_figures f;
    ml_reading reading;
    CHECK_EQ(ml_device_figures(card, &f), ML_NOT_READY);
    CHECK_EQ(f.reason, ML_REASON_STALE);
    CHECK_EQ(free_of(card), UINT64_MAX); /* not from the cache */
    CHECK_EQ(ml_reading_get(reader, 0, &reading), ML_NOT_READY);
    CHECK_EQ(reading.total, 0);
    CHECK_EQ(used(10), ML_OK);
    CHECK_EQ(free_of(card), 90 * GIB);
    ml_ledger_leave(reader);
}

static void test_reading_is_due_each_period_and_before_a_claim(void) {
    start();
    ml_claim claim;
    CHECK_EQ(ticked(reader).due_pools, 0); /* it cannot read */
    ml_ledger_set_reader(reader, 0, true);
    hold(card, GIB);
    CHECK_EQ(ticked(reader).due_pools, 1);
    CHECK_EQ(used(10), ML_OK);
    ml_tick out = ticked(reader);
    CHECK_EQ(out.due_pools, 0);
    CHECK(out.next_ns <= ML_PERIOD_BUSY_NS && out.next_ns > ML_PERIOD_BUSY_NS / 2);
    CHECK_EQ(try_claim(card, GIB, &claim), ML_OK);
    ml_claim_cancel(&claim);
    forward_ns += ML_PERIOD_BUSY_NS;
    CHECK_EQ(ticked(reader).due_pools, 1);
    /* Another member does not read while this one does its work, and does when it does not. */
    ml_ledger *other = join();
    (void)open_card(other, 0);
    ml_ledger_set_reader(other, 0, true);
    CHECK_EQ(used(10), ML_OK);
    (void)ticked(reader);
    (void)ticked(other);
    forward_ns += ML_PERIOD_BUSY_NS;
    CHECK_EQ(ticked(other).due_pools, 0);
    forward_ns += 2 * ML_PERIOD_BUSY_NS;
    CHECK_EQ(ticked(other).due_pools, 1);
    (void)ticked(reader);
    CHECK_EQ(try_claim(card, GIB, &claim), ML_SLOW_READING);
    CHECK_EQ(used(10), ML_OK);
    (void)ticked(reader);
    CHECK_EQ(try_claim(card, GIB, &claim), ML_OK);
    ml_claim_cancel(&claim);
    hold(card, 0);
    ml_store_relaxed(&ml_view_slot(reader->view, 0)->asked, 0);
    ml_store_relaxed(&reader->asked, 0);
    forward_ns += 100 * SECOND;
    CHECK_EQ(ticked(reader).due_pools, 0); /* nobody holds, nobody asked */
    CHECK_EQ(ticked(reader).next_ns, ML_PERIOD_IDLE_NS);
    (void)free_of(card);
    (void)ticked(reader);
    CHECK_EQ(ticked(reader).due_pools, 1);
    ml_ledger_leave(other);
    ml_ledger_leave(reader);
}

/* ---- sweep ----------------------------------------------------------------------------------------------- */

static void join_and_hold_ten(void) {
    ml_ledger *ledger = join();
    ml_device *device = open_card(ledger, 0);
    ml_claim claim;
    CHECK_EQ(ml_device_set_headroom(device, GIB), ML_OK);
    hold(device, 10 * GIB);
    CHECK_EQ(wait_claim(device, 5 * GIB, 0, &claim), ML_OK);
    ml_store_release(&record_of(device, 0)->waiting, UINT64_C(5) << 30 | 5);
}

static void die_with_ten(void) {
    join_and_hold_ten();
    die(check_failures ? SIGTERM : SIGKILL);
}
static void test_sweep_without_a_reading_just_clears(void) {
    start();
    CHECK_EQ(ml_device_set_limit(card, TOTAL), ML_OK);
    hold(card, GIB);
    CHECK_EQ(run_child(die_with_ten), -SIGKILL);
    CHECK_EQ(free_of(card), 83 * GIB); /* less 10 held, 5 claimed, 1 own, 1 headroom */
    CHECK_EQ(sweep(reader), 15 * GIB);
    CHECK_EQ(sweep(reader), 0);
    CHECK_EQ(free_of(card), 99 * GIB);
    CHECK_EQ(figures_of(card).headroom, 0);
    CHECK_EQ(ml_load_relaxed(&ml_view_record(reader->view, 0, 1)->waiting), 0);
    CHECK_EQ(findings_of(reader), 0);
    /* Versions never go back, also for the next owner. */
    uint64_t version = ml_load_relaxed(&ml_view_record(reader->view, 0, 1)->version);
    ml_ledger *next = join();
    CHECK_EQ(info_of(next).slot, 1);
    CHECK_EQ(info_of(next).generation, 2);
    hold(open_card(next, 0), GIB);
    CHECK(ml_load_relaxed(&ml_view_record(reader->view, 0, 1)->version) > version);
    CHECK_EQ(findings_of(reader), 0);
    ml_ledger_leave(next);
    ml_ledger_leave(reader);
}

/* The driver may not have given the dead one's bytes back: they move from held to unaccounted until readings tell. */
static void test_sweep_carries_the_newest_reading_over(void) {
    start();
    CHECK_EQ(used(0), ML_OK);
    CHECK_EQ(run_child(die_with_ten), -SIGKILL);
    CHECK_EQ(used(10), ML_OK);
    CHECK_EQ(unaccounted(), 0);
    CHECK_EQ(sweep(reader), 15 * GIB);
    CHECK_EQ(unaccounted(), 10);
    CHECK_EQ(free_of(card), 90 * GIB); /* the claim had not landed */
    for (int i = 0; i < 3; i++) CHECK_EQ(used(0), ML_OK);
    CHECK_EQ(unaccounted(), 0);
    CHECK_EQ(free_of(card), 100 * GIB);
    CHECK_EQ(findings_of(reader), 0);
    ml_ledger_leave(reader);
}

static void test_sweep_after_a_reading_without_the_dead_carries_nothing(void) {
    start();
    CHECK_EQ(used(0), ML_OK);
    CHECK_EQ(run_child(die_with_ten), -SIGKILL);
    CHECK_EQ(used(10), ML_OK);
    ml_sweep dead;
    ml_reading_op op;
    ml_reading reading = {.total = TOTAL, .free = TOTAL - 10 * GIB, .scope = ML_SCOPE_DEVICE};
    uint64_t freed;
    CHECK_EQ(ml_sweep_begin(reader, &dead), ML_OK);
    CHECK_EQ(dead.count, 1);
    CHECK_EQ(dead.want_reading, 1);
    CHECK_EQ(ml_reading_begin(reader, 0, dead.dead, &op), ML_OK);
    CHECK_EQ(ml_reading_end(reader, &op, &reading), ML_OK);
    CHECK_EQ(unaccounted(), 10);
    uint64_t newest = ml_load_relaxed(&card->level[0]->entry->newest);
    CHECK_EQ(ml_sweep_commit(reader, &dead, &freed), ML_OK);
    CHECK_EQ(freed, 15 * GIB);
    CHECK_EQ(ml_load_relaxed(&card->level[0]->entry->newest), newest);
    CHECK_EQ(unaccounted(), 10);
    CHECK_EQ(free_of(card), 90 * GIB);
    ml_ledger_leave(reader);
}

static void read_and_die(void) {
    ml_ledger *ledger = join();
    (void)open_card(ledger, 0);
    CHECK_EQ(read_source(ledger, 0, TOTAL, 70 * GIB), ML_OK);
    die(check_failures ? SIGTERM : SIGKILL);
}

/* The newest reading stands in a dead member's slot: it stays good through the sweep and the re-use of the slot. */
static void test_reading_outlives_its_reader(void) {
    start();
    CHECK_EQ(run_child(read_and_die), -SIGKILL);
    CHECK_EQ(free_of(card), 70 * GIB);
    (void)sweep(reader);
    ml_ledger *next = join();
    ml_device *same = open_card(next, 0);
    CHECK_EQ(info_of(next).slot, 1);
    CHECK_EQ(free_of(same), 70 * GIB);
    hold(same, GIB);
    CHECK_EQ(findings_of(reader), 0);
    CHECK_EQ(read_source(next, 0, TOTAL, 60 * GIB), ML_OK);
    CHECK_EQ(figures_of(card).unaccounted, 39 * GIB);
    ml_ledger_leave(next);
    ml_ledger_leave(reader);
}

#ifndef _WIN32 /* nothing is stopped there from outside */

static void stop_with_ten(void) {
    join_and_hold_ten();
    kill(getpid(), check_failures ? SIGTERM : SIGSTOP);
}

static void test_stopped_member_is_not_swept(void) {
    start();
    CHECK_EQ(ml_device_set_limit(card, TOTAL), ML_OK);
    pid_t stopped = child(stop_with_ten);
    CHECK_EQ(outcome(stopped), -SIGSTOP);
    for (int i = 0; i < 3; i++) {
        forward_ns += 100 * SECOND;
        CHECK_EQ(sweep(reader), 0);
        (void)ticked(reader);
    }
    CHECK_EQ(free_of(card), 84 * GIB);
    end(stopped);
    CHECK_EQ(sweep(reader), 15 * GIB);
    ml_ledger_leave(reader);
}

static void sweep_and_stop(void) {
    ml_ledger *ledger = join();
    (void)open_card(ledger, 0);
    kill_points_arm("clear.word", 1, SIGSTOP);
    (void)sweep(ledger);
}

/* A sweeper that is stopped in the middle does not keep the dead one's bytes: the lock is shared. And it does keep the
 * slot: what it still has to clear is not the next owner's. */
static void test_stopped_sweeper_keeps_no_bytes_and_lets_nobody_in(void) {
    start();
    CHECK_EQ(ml_device_set_limit(card, TOTAL), ML_OK);
    CHECK_EQ(run_child(die_with_ten), -SIGKILL);
    pid_t stopped = child(sweep_and_stop);
    CHECK_EQ(outcome(stopped), -SIGSTOP);
    ml_claim claim;
    CHECK_EQ(wait_claim(card, 95 * GIB, 0, &claim), ML_OK);
    ml_claim_cancel(&claim);
    ml_ledger *next = join();
    CHECK(info_of(next).slot != 1);
    ml_device *same = open_card(next, 0);
    hold(same, 7 * GIB);
    kill(stopped, SIGCONT);
    CHECK_EQ(outcome(stopped), 0);
    CHECK_EQ(committed(same, 0), 7 * GIB / UNIT);
    CHECK_EQ(published(same, 0).held, 7 * GIB);
    (void)sweep(reader);
    CHECK_EQ(findings_of(reader), 0);
    ml_ledger_leave(next);
    ml_ledger_leave(reader);
}

#endif

static ml_ledger *newcomer;
static const char *newcomer_at;
static void join_in_the_middle(const char *name) {
    if (newcomer || strcmp(name, newcomer_at) != 0) return;
    newcomer = join();
    hold(open_card(newcomer, 0), 3 * GIB);
}

static void test_nobody_joins_the_slot_that_is_being_swept(void) {
    static const char *const at[] = {"record.generation", "clear.word", "clear.publishers", "sweep.free"};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        start();
        CHECK_EQ(ml_device_set_limit(card, TOTAL), ML_OK);
        CHECK_EQ(run_child(die_with_ten), -SIGKILL);
        /* killed while it left: its slot looks free and is not */
        ml_store_release(&ml_view_slot(reader->view, 1)->state, ML_SLOT_WORD(1, ML_SLOT_FREE));
        newcomer = NULL;
        newcomer_at = at[i];
        kill_points_hook(join_in_the_middle);
        CHECK_EQ(sweep(reader), 15 * GIB);
        kill_points_hook(NULL);
        CHECK(newcomer != NULL);
        if (!newcomer) continue;
        CHECK(info_of(newcomer).slot != 1);
        CHECK_EQ(published(newcomer->devices, 0).held, 3 * GIB);
        CHECK_EQ(committed(newcomer->devices, 0), 3 * GIB / UNIT);
        CHECK_EQ(findings_of(reader), 0);
        ml_ledger_leave(newcomer);
        ml_ledger_leave(reader);
    }
}

#ifndef _WIN32 /* a mapped file is not replaced there */

/* A member whose segment was replaced comes to one whose table is full of the dead. It may sweep them, but it has no
 * slot there, so no ring of readings to write into: its old slot number is a stranger's here. */
static void test_newcomer_that_sweeps_writes_no_reading_into_a_strangers_slot(void) {
    new_segment();
    char first_path[OS_PATH_BYTES];
    ml_ledger *mover = join_with(2);
    hold(open_card(mover, 0), GIB);
    memcpy(first_path, path, sizeof path);
    new_segment();
    reader = join_with(2);
    card = open_card(reader, 0);
    CHECK_EQ(info_of(reader).slot, info_of(mover).slot);
    CHECK_EQ(used(0), ML_OK);
    CHECK_EQ(run_child(die_with_ten), -SIGKILL);
    CHECK_EQ(used(10), ML_OK);
    uint64_t newest = ml_load_relaxed(&card->level[0]->entry->newest);
    CHECK_EQ(rename(path, first_path), 0);
    forward_ns += 2 * SECOND;
    CHECK_EQ(tick(mover), ML_OK);
    CHECK_EQ(info_of(mover).mode, ML_MODE_SHARED);
    CHECK_EQ(info_of(mover).slot, 1);
    uint64_t now = ml_load_relaxed(&card->level[0]->entry->newest);
    CHECK(now == newest || (now & 0xffff) != (newest & 0xffff));
    CHECK_EQ(findings_of(reader), 0);
    ml_ledger_leave(mover);
    ml_ledger_leave(reader);
    unlink(first_path);
}

#endif

int main(int argc, char **argv) {
    static const check_test bodies[] = {TEST(die_with_ten), TEST(read_and_die)};
    int result;
    if (was_child(bodies, sizeof bodies / sizeof *bodies, argc, argv, &result)) return result;
    static const check_test tests[] = {
        TEST(test_bytes_in_flight_are_not_foreign_ones),
        TEST(test_late_shrink_hides_no_foreign_bytes),
        TEST(test_window_spans_the_reading_before),
        TEST(test_window_lasts_when_somebody_refreshes_in_a_loop),
        TEST(test_window_is_carried_to_another_reader),
        TEST(test_reading_from_a_clock_that_is_ahead_leaves_the_window),
        TEST(test_smaller_held_of_before_and_after_counts),
        TEST(test_late_reading_loses),
        TEST(test_implausible_answers_are_absent_with_a_reason),
        TEST(test_failed_reading_keeps_the_window),
        TEST(test_reserved_is_no_part_of_the_usable_total),
        TEST(test_frozen_source_keeps_what_it_said),
        TEST(test_newcomers_and_small_moves_do_not_freeze),
        TEST(test_old_reading_is_published_as_stale),
        TEST(test_reading_is_due_each_period_and_before_a_claim),
        TEST(test_sweep_without_a_reading_just_clears),
        TEST(test_sweep_carries_the_newest_reading_over),
        TEST(test_sweep_after_a_reading_without_the_dead_carries_nothing),
        TEST(test_reading_outlives_its_reader),
        TEST(test_nobody_joins_the_slot_that_is_being_swept),
#ifndef _WIN32
        TEST(test_stopped_member_is_not_swept),
        TEST(test_stopped_sweeper_keeps_no_bytes_and_lets_nobody_in),
        TEST(test_newcomer_that_sweeps_writes_no_reading_into_a_strangers_slot),
#endif
    };
    if (!begin()) return 2;
    result = CHECK_MAIN(tests, argc, argv);
    finish();
    return result;
}
