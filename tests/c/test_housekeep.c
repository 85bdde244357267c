/* ml_housekeep: what one thread of a program without Python does for its member, with sources and a holder as
 * callbacks. The clock is the test's. */
#define _GNU_SOURCE
#include "core_help.h"

#include <pthread.h>

/* ---- a driver, and a holder ------------------------------------------------------------------------------ */

typedef struct driver {
    uint64_t total, free;
    uint32_t reason;
    unsigned calls;
    char key[ML_KEY_BYTES];
    ml_device *shrinks; /* publishes 0 while it is asked, once */
} driver;

static uint32_t read_driver(void *context, const char *key, ml_reading *reading) {
    driver *d = context;
    d->calls++;
    snprintf(d->key, sizeof d->key, "%s", key);
    if (d->shrinks) {
        ml_device *device = d->shrinks;
        d->shrinks = NULL;
        CHECK_EQ(hold(device, 0), ML_OK);
    }
    reading->total = d->total;
    reading->free = d->free;
    return d->reason;
}

static void set_driver(ml_device *device, driver *d) {
    ml_source source = {read_driver, d, "driver"};
    CHECK_EQ(ml_device_set_source(device, 0, &source), ML_OK);
}

typedef struct giver {
    ml_device *device;
    uint64_t gives, asked_for;
    unsigned calls;
} giver;

static void give(void *context, const char *key, uint64_t bytes) {
    giver *g = context;
    ml_amounts now;
    g->calls++;
    g->asked_for = bytes;
    CHECK_STR(key, CARD);
    ml_account_get(ml_device_account(g->device), &now);
    now.held -= g->gives;
    now.releasable -= g->gives;
    CHECK_EQ(ml_account_publish(ml_device_account(g->device), &now), ML_OK);
}

static int keep(ml_ledger *ledger) {
    return ml_housekeep(ledger, 0);
}

/* ---- readings -------------------------------------------------------------------------------------------- */

static void test_source_is_asked_when_a_reading_is_due(void) {
    new_segment();
    ml_ledger *a = join();
    ml_device *card = open_pool_of(a, CARD);
    driver d = {.total = 24 * GIB, .free = 20 * GIB};
    set_driver(card, &d);
    CHECK_EQ(keep(a), ML_OK);
    CHECK_EQ(d.calls, 0); /* nobody holds, nobody asks */
    CHECK_EQ(hold(card, GIB), ML_OK);
    CHECK_EQ(keep(a), ML_OK);
    CHECK_EQ(d.calls, 1);
    CHECK_STR(d.key, CARD);
    ml_figures f = figures_of(card);
    CHECK_EQ(f.total, 24 * GIB);
    CHECK_EQ(f.unaccounted, 3 * GIB);
    CHECK(f.flags & ML_FIGURES_COMPLETE);
    CHECK_EQ(memcmp(&f.source, "driver\0", 8), 0);
    CHECK_EQ(keep(a), ML_OK);
    CHECK_EQ(d.calls, 1);
    forward_ns += ML_PERIOD_BUSY_NS;
    CHECK_EQ(keep(a), ML_OK);
    CHECK_EQ(d.calls, 2);
    CHECK_EQ(ml_device_set_source(card, 0, NULL), ML_OK);
    forward_ns += ML_PERIOD_BUSY_NS;
    CHECK_EQ(keep(a), ML_OK);
    CHECK_EQ(d.calls, 2);
    ml_ledger_leave(a);
}

static void test_one_member_reads_for_all(void) {
    new_segment();
    ml_ledger *a = join(), *b = join();
    ml_device *one = open_pool_of(a, CARD), *other = open_pool_of(b, CARD);
    driver d = {.total = 24 * GIB, .free = 24 * GIB}, e = d;
    set_driver(one, &d);
    set_driver(other, &e);
    CHECK_EQ(hold(one, GIB), ML_OK);
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(keep(a), ML_OK);
        CHECK_EQ(keep(b), ML_OK);
        forward_ns += ML_PERIOD_BUSY_NS;
    }
    CHECK_EQ(d.calls, 4);
    CHECK_EQ(e.calls, 0);
    CHECK_EQ(figures_of(other).total, 24 * GIB);
    ml_ledger_leave(a);
    ml_ledger_leave(b);
}

static void test_failing_source_is_left_alone_for_longer_and_longer(void) {
    new_segment();
    ml_ledger *a = join();
    ml_device *card = open_pool_of(a, CARD);
    driver d = {.reason = ML_REASON_GPU_LOST};
    set_driver(card, &d);
    CHECK_EQ(hold(card, GIB), ML_OK);
    CHECK_EQ(keep(a), ML_OK);
    CHECK_EQ(d.calls, 1);
    ml_figures f;
    CHECK_EQ(ml_device_figures(card, &f), ML_NOT_READY);
    CHECK_EQ(f.reason, ML_REASON_GPU_LOST);
    static const unsigned waits_s[] = {1, 2, 4, 8, 16, 32, 60, 60};
    for (unsigned i = 0; i < sizeof waits_s / sizeof *waits_s; i++) {
        forward_ns += waits_s[i] * SECOND - SECOND / 4;
        CHECK_EQ(keep(a), ML_OK);
        CHECK_EQ(d.calls, 1 + i);
        forward_ns += SECOND / 4;
        CHECK_EQ(keep(a), ML_OK);
        CHECK_EQ(d.calls, 2 + i);
    }
    d = (driver){.total = 24 * GIB, .free = 23 * GIB};
    forward_ns += 60 * SECOND;
    CHECK_EQ(keep(a), ML_OK);
    CHECK_EQ(free_of(card), 23 * GIB);
    unsigned calls = d.calls;
    forward_ns += ML_PERIOD_BUSY_NS;
    CHECK_EQ(keep(a), ML_OK);
    CHECK_EQ(d.calls, calls + 1); /* a reader again */
    ml_ledger_leave(a);
}

static void test_answers_that_cannot_be_true_are_no_figures(void) {
    new_segment();
    ml_ledger *a = join();
    ml_device *card = open_pool_of(a, CARD);
    driver d = {.total = GIB, .free = 2 * GIB};
    set_driver(card, &d);
    CHECK_EQ(ml_device_refresh(card, 0), ML_NOT_READY);
    ml_figures f;
    CHECK_EQ(ml_device_figures(card, &f), ML_NOT_READY);
    CHECK_EQ(f.reason, ML_REASON_IMPLAUSIBLE);
    ml_ledger_leave(a);
}

static void test_absent_answer_does_not_replace_what_another_has_read(void) {
    new_segment();
    ml_ledger *a = join(), *b = join();
    ml_device *one = open_pool_of(a, CARD), *other = open_pool_of(b, CARD);
    driver good = {.total = 24 * GIB, .free = 24 * GIB}, bad = {.reason = ML_REASON_NO_PERMISSION};
    set_driver(one, &good);
    set_driver(other, &bad);
    CHECK_EQ(ml_device_refresh(one, 0), ML_OK);
    CHECK_EQ(ml_device_refresh(other, 0), ML_OK);
    CHECK_EQ(bad.calls, 1);
    CHECK_EQ(free_of(other), 24 * GIB);
    ml_ledger_leave(a);
    ml_ledger_leave(b);
}

static void test_refresh_asks_only_where_the_reading_is_older(void) {
    new_segment();
    ml_ledger *a = join();
    ml_device *card = open_pool_of(a, CARD);
    CHECK_EQ(ml_device_refresh(card, 0), ML_NOT_READY); /* no source at all */
    driver d = {.total = 24 * GIB, .free = 24 * GIB};
    set_driver(card, &d);
    CHECK_EQ(ml_device_refresh(card, SECOND), ML_OK);
    CHECK_EQ(ml_device_refresh(card, SECOND), ML_OK);
    CHECK_EQ(d.calls, 1);
    forward_ns += 2 * SECOND;
    CHECK_EQ(ml_device_refresh(card, SECOND), ML_OK);
    CHECK_EQ(d.calls, 2);
    ml_ledger_leave(a);
}

static void test_claim_that_wants_a_reading_is_served_by_a_refresh(void) {
    new_segment();
    ml_ledger *a = join();
    ml_device *card = open_pool_of(a, CARD);
    driver d = {.total = 24 * GIB, .free = 24 * GIB};
    set_driver(card, &d);
    CHECK_EQ(ml_device_refresh(card, 0), ML_OK);
    forward_ns += 10 * SECOND;
    ml_ledger_set_reader(a, 0, true);
    CHECK_EQ(tick(a), ML_OK);
    ml_claim claim;
    CHECK_EQ(try_claim(card, GIB, &claim), ML_SLOW_READING);
    CHECK(!ml_ledger_retry(a, ML_SLOW_READING));
    CHECK_EQ(ml_device_refresh(card, SECOND / 2), ML_OK);
    CHECK_EQ(try_claim(card, GIB, &claim), ML_OK);
    CHECK(claim.checked);
    ml_ledger_leave(a);
}

/* Somebody freed bytes while the driver was asked: the reading is taken once more 40 ms later. */
static void test_reading_is_taken_again_when_a_member_shrank_meanwhile(void) {
    new_segment();
    ml_ledger *a = join(), *b = join();
    ml_device *card = open_pool_of(a, CARD), *other = open_pool_of(b, CARD);
    driver d = {.total = 24 * GIB, .free = 20 * GIB, .shrinks = other};
    CHECK_EQ(hold(card, GIB), ML_OK);
    CHECK_EQ(hold(other, 3 * GIB), ML_OK);
    set_driver(card, &d);
    CHECK_EQ(keep(a), ML_OK);
    CHECK_EQ(d.calls, 1);
    d.free = 23 * GIB;
    forward_ns += 41 * SECOND / 1000;
    CHECK_EQ(keep(a), ML_OK);
    CHECK_EQ(d.calls, 2);
    forward_ns += 41 * SECOND / 1000;
    CHECK_EQ(keep(a), ML_OK);
    CHECK_EQ(d.calls, 2);
    ml_ledger_leave(a);
    ml_ledger_leave(b);
}

/* ---- asks ------------------------------------------------------------------------------------------------ */

static int ask_b(ml_ledger *a, ml_ledger *b, uint64_t bytes, uint64_t *freed) {
    ml_victim victims[4];
    ml_ask ask;
    int outcome = 0;
    CHECK_EQ(ml_ask_victims(a, 0, victims, 4), 1);
    (void)ml_asking_begin(a);
    CHECK_EQ(ml_ask_send(a, 0, victims[0].slot, bytes, &ask), ML_OK);
    CHECK_EQ(keep(b), ML_OK);
    int status = ml_ask_poll(a, &ask, &outcome, freed);
    if (status == ML_NOT_READY) CHECK_EQ(ml_ask_withdraw(a, &ask), ML_OK);
    ml_asking_end(a);
    return status == ML_OK ? outcome : -status;
}

static void test_asks_are_answered_with_what_was_published_as_gone(void) {
    new_segment();
    ml_ledger *a = join(), *b = join();
    ml_device *one = open_card(a, 24 * GIB), *other = open_card(b, 0);
    ml_amounts amounts = {8 * GIB, 6 * GIB, 0};
    uint64_t freed = 0;
    CHECK_EQ(ml_account_publish(ml_device_account(other), &amounts), ML_OK);
    CHECK_EQ(hold(one, GIB), ML_OK);
    CHECK_EQ(ask_b(a, b, GIB, &freed), ML_ANSWER_REFUSED); /* no holder: at once */
    giver g = {.device = other, .gives = 2 * GIB};
    ml_holder holder = {give, &g};
    CHECK_EQ(ml_ledger_set_holder(b, &holder), ML_OK);
    CHECK_EQ(ask_b(a, b, 2 * GIB, &freed), ML_ANSWER_DONE);
    CHECK_EQ(freed, 2 * GIB);
    CHECK_EQ(g.asked_for, 2 * GIB);
    CHECK_EQ(ask_b(a, b, 3 * GIB, &freed), ML_ANSWER_PARTIAL);
    CHECK_EQ(freed, 2 * GIB);
    g.gives = 0; /* says nothing, publishes nothing */
    CHECK_EQ(ask_b(a, b, GIB, &freed), ML_ANSWER_REFUSED);
    CHECK_EQ(g.calls, 3);
    holder = (ml_holder){NULL, NULL}; /* this program answers by itself */
    CHECK_EQ(ml_ledger_set_holder(b, &holder), ML_OK);
    CHECK_EQ(ask_b(a, b, GIB, &freed), -ML_NOT_READY);
    ml_ledger_leave(a);
    ml_ledger_leave(b);
}

/* ---- the dead, and the end ------------------------------------------------------------------------------- */

static void hold_three_and_die(void) {
    ml_ledger *ledger = join();
    CHECK_EQ(hold(open_pool_of(ledger, CARD), 3 * GIB), ML_OK);
}

static void test_bytes_of_the_dead_go_to_unaccounted_while_the_driver_has_them(void) {
    new_segment();
    ml_ledger *a = join();
    ml_device *card = open_pool_of(a, CARD);
    driver d = {.total = 24 * GIB, .free = 21 * GIB};
    set_driver(card, &d);
    CHECK_EQ(run_child(hold_three_and_die), 0);
    CHECK_EQ(figures_of(card).held, 3 * GIB);
    CHECK_EQ(keep(a), ML_OK);
    ml_figures f = figures_of(card);
    CHECK_EQ(f.held, 0);
    CHECK_EQ(f.unaccounted, 3 * GIB);
    CHECK_EQ(f.free, 21 * GIB);
    CHECK(d.calls > 0);
    d.free = 24 * GIB;
    for (int i = 0; i < 3; i++) {
        forward_ns += SECOND;
        CHECK_EQ(hold(card, UNIT), ML_OK);
        CHECK_EQ(keep(a), ML_OK);
    }
    CHECK_EQ(figures_of(card).unaccounted, 0);
    CHECK_EQ(findings_of(a), 0);
    ml_ledger_leave(a);
}

static void test_claims_expire(void) {
    new_segment();
    ml_ledger *a = join(), *b = join();
    ml_device *one = open_card(a, 24 * GIB), *other = open_card(b, 0);
    ml_claim claim;
    CHECK_EQ(ml_claim_try(ml_device_account(one), 8 * GIB, 0, SECOND, &claim), ML_OK);
    CHECK_EQ(keep(a), ML_OK);
    CHECK_EQ(free_of(other), 16 * GIB);
    forward_ns += SECOND;
    CHECK_EQ(keep(a), ML_OK);
    CHECK(claim.expired);
    CHECK_EQ(free_of(other), 24 * GIB);
    ml_ledger_leave(a);
    ml_ledger_leave(b);
}

/* Busy: the look of start_keeping was inside at that moment. */
static void *keep_for_ever(void *ledger) {
    int status;
    do status = ml_housekeep(ledger, UINT64_MAX);
    while (status == ML_BUSY);
    return (void *)(intptr_t)status;
}

static bool is_inside(ml_ledger *ledger) {
    return ml_housekeep(ledger, 0) == ML_BUSY;
}

static pthread_t start_keeping(ml_ledger *ledger) {
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, keep_for_ever, ledger), 0);
    while (!is_inside(ledger)) os_sleep_ns(1000000); /* the watchdog ends it */
    return thread;
}

static int end_of(pthread_t thread) {
    void *result = NULL;
    CHECK_EQ(pthread_join(thread, &result), 0);
    return (int)(intptr_t)result;
}

static void test_one_thread_at_a_time_and_leaving_ends_it(void) {
    new_segment();
    ml_ledger *a = join();
    pthread_t thread = start_keeping(a);
    CHECK_EQ(ml_housekeep(a, SECOND), ML_BUSY);
    CHECK_EQ(ml_ledger_leave(a), ML_OK);
    CHECK_EQ(end_of(thread), ML_ERR_CLOSED);
    CHECK_EQ(keep(a), ML_ERR_CLOSED);
    CHECK_EQ(ml_ledger_set_holder(a, NULL), ML_ERR_CLOSED);
    ml_ledger_free(a); /* what was kept for ml_housekeep too: a sanitizer looks */
}

static ml_ledger *inherited;
static ml_device *inherited_card;

static void keep_in_the_child(void) {
    CHECK_EQ(keep(inherited), ML_OK); /* the parent's thread is not here */
    CHECK_EQ(hold(inherited_card, 2 * GIB), ML_OK);
    CHECK_EQ(figures_of(inherited_card).own_held, 2 * GIB);
    CHECK_EQ(figures_of(inherited_card).held, 3 * GIB);
    CHECK_EQ(keep(inherited), ML_OK);
}

static void test_forked_child_keeps_a_house_of_its_own(void) {
    new_segment();
    inherited = join();
    inherited_card = open_card(inherited, 24 * GIB);
    CHECK_EQ(hold(inherited_card, GIB), ML_OK);
    pthread_t thread = start_keeping(inherited);
    CHECK_EQ(run_child(keep_in_the_child), 0);
    CHECK_EQ(figures_of(inherited_card).own_held, GIB);
    CHECK_EQ(ml_ledger_leave(inherited), ML_OK);
    CHECK_EQ(end_of(thread), ML_ERR_CLOSED);
}

static void test_arguments_are_checked(void) {
    new_segment();
    ml_ledger *a = join();
    ml_device *card = open_pool_of(a, CARD);
    driver d = {0};
    ml_source source = {read_driver, &d, "driver"}, none = {NULL, NULL, NULL};
    CHECK_EQ(ml_device_set_source(card, 1, &source), ML_ERR_ARGUMENT);
    CHECK_EQ(ml_device_set_source(card, 0, &none), ML_ERR_ARGUMENT);
    CHECK(!ml_ledger_retry(a, ML_OK));
    CHECK(!ml_ledger_retry(a, ML_REFUSED));
    CHECK(!ml_ledger_retry(a, ML_ERR_CLOSED));
    CHECK(ml_ledger_retry(a, ML_SLOW_LOCK));
    ml_ledger_leave(a);
    CHECK_EQ(ml_device_set_source(card, 0, &source), ML_ERR_CLOSED);
}

static const check_test tests[] = {
    TEST(test_source_is_asked_when_a_reading_is_due),
    TEST(test_one_member_reads_for_all),
    TEST(test_failing_source_is_left_alone_for_longer_and_longer),
    TEST(test_answers_that_cannot_be_true_are_no_figures),
    TEST(test_absent_answer_does_not_replace_what_another_has_read),
    TEST(test_refresh_asks_only_where_the_reading_is_older),
    TEST(test_claim_that_wants_a_reading_is_served_by_a_refresh),
    TEST(test_reading_is_taken_again_when_a_member_shrank_meanwhile),
    TEST(test_asks_are_answered_with_what_was_published_as_gone),
    TEST(test_bytes_of_the_dead_go_to_unaccounted_while_the_driver_has_them),
    TEST(test_claims_expire),
    TEST(test_one_thread_at_a_time_and_leaving_ends_it),
    TEST(test_forked_child_keeps_a_house_of_its_own),
    TEST(test_arguments_are_checked),
};

int main(int argc, char **argv) {
    if (!begin()) return 77;
    int failed = CHECK_MAIN(tests, argc, argv);
    finish();
    return failed;
}
