/* Threads of one process, through one handle and through several; for ThreadSanitizer, and for bindings without a
 * global lock. The optional argument is how many times longer than usual it runs. */
#define _GNU_SOURCE
#include "check.h"

#include "core/core.h"
#include "include/memledger.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#ifndef _WIN32
#include <sys/wait.h>
#endif

#define UNIT UINT64_C(4096)
#define THREADS 4

#ifdef TEST_SANITIZED
#define ROUNDS 1500
#else
#define ROUNDS 10000
#endif

static char folder[300], path[OS_PATH_BYTES];
static unsigned longer = 1;
static ml_u64 errors, stop, granted_units, most_granted, vanishing;
static ml_ledger *ledgers[THREADS];
static ml_device *cards[THREADS];

static void note(bool good) {
    if (!good) ml_fetch_add_seq_cst(&errors, 1);
}

static ml_ledger *join(void) {
    ml_ledger *ledger = NULL;
    ml_join_options options = {.path = path, .label = "race", .slots = 16};
    CHECK_EQ(ml_ledger_join(&options, &ledger), ML_OK);
    return ledger;
}

static ml_device *open_card(ml_ledger *ledger, const char *key, uint64_t limit) {
    static const char *const outer = "sim:outer";
    ml_pool_spec specs[2] = {{.key = key}, {.key = outer}};
    ml_device *device = NULL;
    CHECK_EQ(ml_device_open(ledger, specs, 2, &device), ML_OK);
    if (limit) CHECK_EQ(ml_device_set_limit(device, limit), ML_OK);
    return device;
}

/* A name of its own each time: Windows removes no file that is mapped. */
static void begin(unsigned handles, uint64_t limit) {
    static unsigned number;
    unlink(path);
    snprintf(path, sizeof path, "%s/segment%u", folder, number++);
    ml_store_relaxed(&errors, 0);
    ml_store_relaxed(&stop, 0);
    ml_store_relaxed(&granted_units, 0);
    for (unsigned i = 0; i < THREADS; i++) {
        ledgers[i] = i < handles ? join() : ledgers[i % handles];
        cards[i] = open_card(ledgers[i], "sim:card", limit);
    }
}

static void leave_all(unsigned handles) {
    for (unsigned i = 0; i < handles; i++) ml_ledger_leave(ledgers[i]);
}

static unsigned findings(ml_ledger *ledger) {
    ml_finding found[4];
    unsigned count = ml_ledger_check(ledger, found, 4);
    for (unsigned i = 0; i < count && i < 4; i++)
        printf("  invariant %u, slot %u: %s\n", found[i].invariant, found[i].slot, found[i].text);
    return count;
}

/* A hot answer that wants the cold path, resolved; true: call again. */
static bool again(ml_ledger *ledger, int status) {
    if (status < ML_SLOW_LOCK) return false;
    note(status == ML_SLOW_LOCK || status == ML_SLOW_LOST || status == ML_SLOW_READING);
    if (status != ML_SLOW_READING) note(ml_ledger_recover(ledger, status) == ML_OK);
    return true;
}

static int publish(ml_account *account, uint64_t held) {
    ml_amounts amounts = {held, held, 0};
    int status;
    do status = ml_account_publish(account, &amounts);
    while (again(account->device->ledger, status));
    return status;
}

/* The truth: what this process was granted, added after the grant and taken off before it is given back. */
static void add_granted(int64_t units) {
    uint64_t now = ml_fetch_add_seq_cst(&granted_units, (uint64_t)units) + (uint64_t)units, most;
    do most = ml_load_relaxed(&most_granted);
    while ((int64_t)now > (int64_t)most && !ml_cas_seq_cst(&most_granted, most, now));
}

static void claim_once(ml_account *account, uint64_t units, bool wait) {
    ml_ledger *ledger = account->device->ledger;
    ml_claim claim;
    uint64_t free_bytes;
    int status;
    do
        status = wait ? ml_claim_wait(account, units * UNIT, 0, 0, 1000000, &claim, &free_bytes)
                      : ml_claim_try(account, units * UNIT, 0, 0, &claim);
    while (again(ledger, status));
    note(status >= ML_OK);
    if (status != ML_OK) return;
    add_granted((int64_t)units);
    ml_amounts half = {units * UNIT / 2, 0, 0}, none = {0, 0, 0};
    do status = ml_claim_publish(&claim, &half);
    while (again(ledger, status));
    note(status == ML_OK);
    add_granted(-(int64_t)units);
    do status = units % 2 ? ml_claim_settle(&claim, &none) : ml_claim_publish(&claim, &none);
    while (again(ledger, status));
    note(status == ML_OK);
    do status = ml_claim_cancel(&claim);
    while (again(ledger, status));
    note(status == ML_OK);
}

static void look(ml_device *device, uint64_t limit) {
    ml_figures f;
    uint64_t bytes;
    int status = ml_device_free(device, &bytes);
    if (status == ML_OK)
        note(bytes <= limit);
    else
        (void)again(device->ledger, status);
    status = ml_device_figures(device, &f);
    if (status == ML_OK) note(f.free <= f.total && f.available <= f.total && f.releasable <= f.held);
}

static void *work(void *context) {
    uintptr_t me = (uintptr_t)context;
    ml_ledger *ledger = ledgers[me];
    ml_device *card = cards[me];
    static ml_snapshot snapshots[THREADS];
    char name[16];
    ml_account *account = NULL, *other = NULL;
    snprintf(name, sizeof name, "part%u", (unsigned)me);
    note(ml_account_open(card, name, &account) == ML_OK);
    snprintf(name, sizeof name, "rest%u", (unsigned)me);
    note(ml_account_open(card, name, &other) == ML_OK);
    for (unsigned i = 0; i < ROUNDS * longer && !ml_load_relaxed(&stop); i++) {
        note(publish(account, (i % 3 + me) * UNIT) == ML_OK);
        claim_once(other, 1 + (i * 7 + me) % 20, i % 16 == 0);
        look(card, 1000 * UNIT);
        if (i % 64 == 0) {
            note(ml_pool_snapshot(ledger, ml_device_pool(card, 0), &snapshots[me]) == ML_OK);
            (void)open_card(ledger, i % 128 ? "sim:second" : "sim:third", 0);
        }
    }
    note(publish(account, 2 * UNIT) == ML_OK);
    return NULL;
}

/* Housekeeping of every handle. */
static void *keep_house(void *context) {
    (void)context;
    for (unsigned i = 0; !ml_load_relaxed(&stop); i++) {
        ml_ledger *ledger = ledgers[i % THREADS];
        ml_tick out;
        ml_sweep sweep;
        ml_reading_op op;
        ml_reading reading = {.total = 1000 * UNIT, .free = 1000 * UNIT, .scope = ML_SCOPE_DEVICE}, now;
        uint64_t freed;
        ml_member members[16];
        note(ml_ledger_tick(ledger, &out) == ML_OK);
        int begun = ml_sweep_begin(ledger, &sweep); /* no locks can be seen in a segment that has lost its name */
        note(begun == ML_OK || (begun == ML_ERR_SYSTEM && ml_load_relaxed(&vanishing)));
        note(ml_sweep_commit(ledger, &sweep, &freed) == ML_OK);
        note(ml_reading_begin(ledger, 1, NULL, &op) == ML_OK);
        note(ml_reading_end(ledger, &op, &reading) >= ML_OK);
        (void)ml_reading_get(ledger, 1, &now);
        ml_ledger_wake(ledger);
        note(ml_ledger_members(ledger, members, 16) >= 1);
        usleep(500);
    }
    return NULL;
}

static void *sleep_in_housekeeping(void *context) {
    (void)context;
    while (!ml_load_relaxed(&stop)) ml_ledger_wait(ledgers[0], 1000000);
    return NULL;
}

static void run_threads(void) {
    pthread_t threads[THREADS], house, sleeper;
    CHECK_EQ(pthread_create(&house, NULL, keep_house, NULL), 0);
    CHECK_EQ(pthread_create(&sleeper, NULL, sleep_in_housekeeping, NULL), 0);
    for (uintptr_t i = 0; i < THREADS; i++) CHECK_EQ(pthread_create(&threads[i], NULL, work, (void *)i), 0);
    for (unsigned i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    ml_store_relaxed(&stop, 1);
    pthread_join(house, NULL);
    pthread_join(sleeper, NULL);
}

static void race(unsigned handles) {
    begin(handles, 60 * UNIT);
    ml_store_relaxed(&most_granted, 0);
    run_threads();
    CHECK_EQ(ml_load_relaxed(&errors), 0);
    CHECK(ml_load_relaxed(&most_granted) <= 60);
    uint64_t sum = 0;
    for (unsigned s = 0; s < 16; s++)
        sum += ML_WORD_COMMITTED(ml_load_relaxed(&ml_view_record(ledgers[0]->view, 0, s)->word));
    CHECK_EQ(sum, 2 * THREADS);
    CHECK_EQ(findings(ledgers[0]), 0);
    leave_all(handles);
}

static void test_threads_of_one_handle(void) {
    race(1);
}
static void test_threads_of_two_handles(void) {
    race(2);
}
static void test_threads_of_four_handles(void) {
    race(THREADS);
}

#ifndef _WIN32 /* no mapped file vanishes there, and nothing forks */

/* The segment vanishes while everybody is inside: nothing is lost, nothing faults. */
static void test_segment_vanishes_under_threads(void) {
    begin(2, 60 * UNIT);
    ml_store_relaxed(&vanishing, 1);
    pthread_t threads[THREADS], house;
    CHECK_EQ(pthread_create(&house, NULL, keep_house, NULL), 0);
    for (uintptr_t i = 0; i < THREADS; i++) CHECK_EQ(pthread_create(&threads[i], NULL, work, (void *)i), 0);
    for (int i = 0; i < 8; i++) {
        usleep(200000);
        if (i % 2) unlink(path);
    }
    for (unsigned i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    usleep(1200000); /* longer than the time between two looks at the name */
    usleep(1200000);
    ml_store_relaxed(&stop, 1);
    pthread_join(house, NULL);
    CHECK_EQ(ml_load_relaxed(&errors), 0);
    ml_ledger_info one, two;
    ml_ledger_get_info(ledgers[0], &one);
    ml_ledger_get_info(ledgers[1], &two);
    CHECK_EQ(one.file_id, two.file_id);
    CHECK(one.rejoin_count > 1);
    ml_store_relaxed(&vanishing, 0);
    uint64_t sum = 0;
    for (unsigned s = 0; s < 16; s++)
        sum +=
            ML_WORD_COMMITTED(ml_load_relaxed(&ml_view_record(ledgers[0]->view, cards[0]->level[0]->index, s)->word));
    CHECK_EQ(sum, 2 * THREADS);
    CHECK_EQ(findings(ledgers[0]), 0);
    leave_all(2);
}

static void *sweep_all_the_time(void *context) {
    ml_ledger *ledger = context;
    while (!ml_load_relaxed(&stop)) {
        ml_sweep sweep;
        uint64_t freed;
        note(ml_sweep_begin(ledger, &sweep) == ML_OK); /* others are alive: it has to look at their locks */
        note(ml_sweep_commit(ledger, &sweep, &freed) == ML_OK);
    }
    return NULL;
}

/* fork() takes the handle's lock, then the guard of lock descriptors; whoever takes them in the other order makes both
 * wait for ever. */
static void test_fork_while_another_thread_sweeps(void) {
    begin(2, 60 * UNIT);
    pthread_t sweeper;
    CHECK_EQ(pthread_create(&sweeper, NULL, sweep_all_the_time, ledgers[0]), 0);
    for (unsigned i = 0; i < ROUNDS / 10 * longer; i++) {
        pid_t pid = fork();
        if (pid == 0) _exit(0);
        int status = 1;
        CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    }
    ml_store_relaxed(&stop, 1);
    pthread_join(sweeper, NULL);
    CHECK_EQ(ml_load_relaxed(&errors), 0);
    leave_all(2);
}

static bool make_folder(void) {
    snprintf(folder, sizeof folder, "%s/ml-race-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    return mkdtemp(folder) != NULL;
}

#else

static bool make_folder(void) {
    const char *place = getenv("TEMP");
    snprintf(folder, sizeof folder, "%s/ml-race-%llx", place ? place : ".", (unsigned long long)os_random_u64());
    return mkdir(folder) == 0;
}

#endif

/* ---- what the protocols promise about other memory, in a form that ThreadSanitizer can judge ----------------
 *
 * Members of one process have one mapping each, so to ThreadSanitizer their words are unrelated. Here all handles use
 * the first one's mapping, and plain memory stands for what a member frees before it publishes that it has, and fills
 * before it publishes that it holds it. Were an ordering too weak, the plain accesses would race. */

#define ITEMS 4000

static uint64_t plain, plain_at[ITEMS + 1];

static void share_one_mapping(void) {
    begin(THREADS, 0);
    ml_view *view = ledgers[0]->view;
    for (unsigned i = 0; i < THREADS; i++) {
        ledgers[i]->view = view; /* before the pool is opened, which is then opened there */
        if (ledgers[i]->seat.slot) ledgers[i]->seat.slot = ml_view_slot(view, ledgers[i]->seat.me);
        ml_pool_spec spec = {.key = "sim:one"};
        CHECK_EQ(ml_device_open(ledgers[i], &spec, 1, &cards[i]), ML_OK);
        CHECK_EQ(ml_device_set_limit(cards[i], 8 * UNIT), ML_OK);
        CHECK(cards[i]->level[0]->view == view && cards[i]->level[0]->me == ledgers[i]->seat.me);
    }
}

static ml_u64 turn;

/* Whoever is granted the whole card has it alone: who had it before is done with it, by [O6] and by the change counter,
 * which every grant raises; with the counter's order taken away a relaxed word is found here. They take turns by a word
 * that orders nothing. */
static void *use_the_card(void *context) {
    uintptr_t me = (uintptr_t)context;
    ml_amounts all = {8 * UNIT, 0, 0}, none = {0, 0, 0};
    for (unsigned i = 0; i < ITEMS / THREADS; i++) {
        ml_claim claim;
        while (ml_load_relaxed(&turn) % THREADS != me) os_yield();
        while (ml_claim_try(ml_device_account(cards[me]), 8 * UNIT, 0, 0, &claim) != ML_OK) os_yield();
        plain++;
        note(ml_claim_publish(&claim, &all) == ML_OK);
        plain++;
        note(ml_claim_settle(&claim, &none) == ML_OK);
        ml_store_relaxed(&turn, ml_load_relaxed(&turn) + 1);
    }
    return NULL;
}

static void test_a_grant_orders_other_memory(void) {
    share_one_mapping();
    pthread_t threads[THREADS];
    ml_store_relaxed(&turn, 0);
    for (uintptr_t i = 0; i < THREADS; i++) CHECK_EQ(pthread_create(&threads[i], NULL, use_the_card, (void *)i), 0);
    for (unsigned i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    CHECK_EQ(ml_load_relaxed(&errors), 0);
    CHECK_EQ(plain, 2 * ITEMS);
    leave_all(THREADS);
}

static void *publish_items(void *context) {
    (void)context;
    for (unsigned i = 1; i <= ITEMS; i++) {
        plain_at[i] = i;
        note(publish(ml_device_account(cards[0]), i) == ML_OK);
    }
    ml_store_relaxed(&stop, 1);
    return NULL;
}

/* Who reads i as held sees what was done before i was published [O1], [O2]. */
static void *read_items(void *context) {
    uintptr_t me = (uintptr_t)context;
    const ml_local_pool *pool = cards[me]->level[0];
    const ml_record *record = ml_view_record(pool->view, pool->index, ledgers[0]->seat.me);
    do {
        ml_figure f;
        uint64_t version;
        if (!ml_record_read(record, &f, &version)) continue;
        note(f.held <= ITEMS && f.releasable == f.held && plain_at[f.held] == f.held);
    } while (!ml_load_relaxed(&stop));
    return NULL;
}

static void test_a_record_orders_other_memory(void) {
    share_one_mapping();
    pthread_t writer, readers[THREADS - 1];
    CHECK_EQ(pthread_create(&writer, NULL, publish_items, NULL), 0);
    for (uintptr_t i = 1; i < THREADS; i++) CHECK_EQ(pthread_create(&readers[i - 1], NULL, read_items, (void *)i), 0);
    pthread_join(writer, NULL);
    for (unsigned i = 1; i < THREADS; i++) pthread_join(readers[i - 1], NULL);
    CHECK_EQ(ml_load_relaxed(&errors), 0);
    leave_all(THREADS);
}

static void *take_readings(void *context) {
    (void)context;
    unsigned pool = ml_device_pool(cards[0], 0);
    for (unsigned i = 1; i <= ITEMS; i++) {
        ml_reading_op op;
        ml_reading reading = {.total = 2 * ITEMS, .free = i, .reserved = i / 2, .scope = ML_SCOPE_DEVICE};
        plain_at[i] = i;
        note(ml_reading_begin(ledgers[0], pool, NULL, &op) == ML_OK);
        note(ml_reading_end(ledgers[0], &op, &reading) >= ML_OK);
        note(ml_reading_settle(ledgers[0], &op) >= ML_OK);
    }
    ml_store_relaxed(&stop, 1);
    return NULL;
}

/* The same for a reading: by `newest`, and by the cell's fields [O4]. */
static void *use_readings(void *context) {
    uintptr_t me = (uintptr_t)context;
    do {
        ml_reading reading;
        if (ml_reading_get(ledgers[me], ml_device_pool(cards[me], 0), &reading) != ML_OK) continue;
        note(reading.free <= ITEMS && reading.reserved == reading.free / 2 && plain_at[reading.free] == reading.free);
    } while (!ml_load_relaxed(&stop));
    return NULL;
}

static void test_a_reading_orders_other_memory(void) {
    share_one_mapping();
    memset(plain_at, 0, sizeof plain_at);
    pthread_t writer, readers[THREADS - 1];
    CHECK_EQ(pthread_create(&writer, NULL, take_readings, NULL), 0);
    for (uintptr_t i = 1; i < THREADS; i++) CHECK_EQ(pthread_create(&readers[i - 1], NULL, use_readings, (void *)i), 0);
    pthread_join(writer, NULL);
    for (unsigned i = 1; i < THREADS; i++) pthread_join(readers[i - 1], NULL);
    CHECK_EQ(ml_load_relaxed(&errors), 0);
    leave_all(THREADS);
}

int main(int argc, char **argv) {
    static const check_test tests[] = {
        TEST(test_threads_of_one_handle),          TEST(test_threads_of_two_handles),
        TEST(test_threads_of_four_handles),
#ifndef _WIN32
        TEST(test_segment_vanishes_under_threads), TEST(test_fork_while_another_thread_sweeps),
#endif
        TEST(test_a_grant_orders_other_memory),    TEST(test_a_record_orders_other_memory),
        TEST(test_a_reading_orders_other_memory),
    };
    if (!make_folder()) return 2;
    const char *filter = argc > 1 && argv[1][0] == 't' ? argv[1] : NULL;
    if (argc > 1 && !filter) longer = (unsigned)strtoul(argv[1], NULL, 10);
    int result = check_run(tests, sizeof tests / sizeof *tests, filter);
    unlink(path);
    rmdir(folder);
    return result;
}
