/* What the C core costs without Python, and what the machine costs without the core.
 *
 *   scan cross N SAMPLES   N members in another process, on another core, publish once each; then the reader times one
 *                          bare scan of the lines they wrote, or one ml_device_free. Beside it the ping-pong of one
 * line. scan warm N CALLS      N members in this process; the lines are in the reader's own cache. scan loop OP CALLS
 * OP that many times and nothing else, for a counter of instructions.
 *
 * Prints "key value" lines, times in nanoseconds. The segment is a file under argv[1], made and left by this program.
 */
#define _GNU_SOURCE
#include "core/core.h"
#include "core/hot.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TOTAL_BYTES (UINT64_C(24) << 30)
#define SPINS_BEFORE_YIELD 20000
#define PING_PONGS 500 /* per sample */

static void fail(const char *what) {
    fprintf(stderr, "scan: %s failed\n", what);
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Only a wish: with one CPU, or where it is not allowed, both sides share one and the figures say so by their size. */
static void run_on(unsigned nth) {
#ifdef __linux__
    cpu_set_t allowed, one;
    unsigned seen = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || seen++ != nth) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        (void)sched_setaffinity(0, sizeof one, &one);
    }
#else
    (void)nth;
#endif
}

static ml_device *join(const char *path, const char *label, ml_ledger **ledger) {
    ml_join_options options = {.path = path, .label = label};
    ml_pool_spec spec = {.key = "bench:card", .kind = ML_KIND_SIM};
    ml_device *device = NULL;
    ml_ledger_info info;
    if (ml_ledger_join(&options, ledger) != ML_OK) fail("ml_ledger_join");
    ml_ledger_get_info(*ledger, &info);
    if (info.mode != ML_MODE_SHARED) fail("joining the shared segment");
    if (ml_device_open(*ledger, &spec, 1, &device) != ML_OK) fail("ml_device_open");
    return device;
}

static void publish(ml_device *device, uint64_t held) {
    ml_amounts amounts = {held, 0, 0};
    int status = ml_account_publish(ml_device_account(device), &amounts);
    while (status >= ML_SLOW_LOCK) {
        ml_ledger_recover(device->ledger, status);
        status = ml_account_publish(ml_device_account(device), &amounts);
    }
    if (status != ML_OK) fail("ml_account_publish");
}

/* One process may have 64 handles; further members live in processes that only hold. They end with the pipe. */
#define MEMBERS_PER_PROCESS 60

static void hold_rest(const char *path, unsigned members) {
    int ready[2], end[2];
    char byte = 0;
    if (members <= MEMBERS_PER_PROCESS) return;
    if (pipe(ready) != 0 || pipe(end) != 0) fail("pipe");
    for (unsigned first = MEMBERS_PER_PROCESS; first < members; first += MEMBERS_PER_PROCESS) {
        pid_t child = fork();
        if (child < 0) fail("fork");
        if (child == 0) {
            unsigned mine = members - first < MEMBERS_PER_PROCESS ? members - first : MEMBERS_PER_PROCESS;
            close(end[1]);
            for (unsigned i = 0; i < mine; i++) {
                ml_ledger *ledger;
                publish(join(path, "holder", &ledger), 4096);
            }
            if (write(ready[1], &byte, 1) != 1) fail("write");
            _exit(read(end[0], &byte, 1) == 0 ? 0 : 1);
        }
    }
    close(ready[1]);
    for (unsigned first = MEMBERS_PER_PROCESS; first < members; first += MEMBERS_PER_PROCESS)
        if (read(ready[0], &byte, 1) != 1) fail("starting the holders");
    close(ready[0]);
    close(end[0]); /* end[1] stays open for the life of this process */
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The mean of the middle half is as robust as the median, and finer than the clock's step. */
static void report(const char *what, uint64_t *samples, unsigned count, double scale) {
    uint64_t sum = 0;
    unsigned from = count / 4, to = count - count / 4;
    qsort(samples, count, sizeof *samples, by_value);
    for (unsigned i = from; i < to; i++) sum += samples[i];
    printf("%s_min %.2f\n%s_mid %.2f\n%s_p99 %.2f\n", what, (double)samples[0] * scale, what,
           (double)sum / (to - from) * scale, what, (double)samples[(uint64_t)count * 99 / 100] * scale);
}

/* The lines that a scan must read, collected once: the counter, and one word per publisher. */
typedef struct lines {
    const ml_u64 *change;
    const ml_u64 *word[ML_SLOTS_MAX];
    unsigned count;
} lines;

static void lines_of(const ml_device *device, lines *out) {
    const ml_local_pool *pool = device->level[0];
    out->change = &pool->entry->change;
    out->count = 0;
    ML_FOR_EACH_SLOT(i, ML_SLOT_BITS(pool->entry->publishers), pool->view->slot_count) {
        if (i != pool->me) out->word[out->count++] = &ml_view_record(pool->view, pool->index, i)->word;
    }
}

static inline uint64_t bare_scan(const lines *l) {
    uint64_t sum = ml_load_acquire(l->change);
    for (unsigned i = 0; i < l->count; i++) sum += ML_WORD_COMMITTED(ml_load_acquire(l->word[i]));
    return sum;
}

static volatile uint64_t sink;

static void free_bytes(ml_device *device) {
    uint64_t bytes = 0;
    if (ml_device_free(device, &bytes) != ML_OK) fail("ml_device_free");
    sink = bytes;
}

/* ---- the other process ------------------------------------------------------------------------------------------ */

enum { READER = 0, WRITER = 1, PING = 2, STOP = 3 };

/* Spin until it is no longer (or only) `state`'s turn; the other side may be gone. */
static uint64_t spin(ml_u64 *turn, uint64_t state, bool until, pid_t other) {
    uint64_t now;
    for (unsigned spins = 0; (((now = ml_load_acquire(turn)) == state) != until); spins++) {
        ml_pause();
        if (spins < SPINS_BEFORE_YIELD) continue;
        spins = 0;
        sched_yield();
        if (other ? waitpid(other, NULL, WNOHANG) != 0 : getppid() == 1) exit(1);
    }
    return now;
}

static void other_process(const char *path, unsigned members, ml_u64 *turn) {
    unsigned mine = members < MEMBERS_PER_PROCESS ? members : MEMBERS_PER_PROCESS;
    ml_device *device[MEMBERS_PER_PROCESS];
    lines all;
    run_on(1);
    hold_rest(path, members);
    for (unsigned i = 0; i < mine; i++) {
        ml_ledger *ledger;
        device[i] = join(path, "writer", &ledger);
        publish(device[i], 4096);
    }
    lines_of(device[0], &all);
    ml_store_release(turn, READER);
    for (uint64_t round = 0;; round++) {
        uint64_t state = spin(turn, READER, false, 0);
        if (state == STOP) _exit(0);
        if (state == WRITER) {
            /* The holders' lines come to this core by a change that changes nothing. */
            if (members > mine)
                for (unsigned i = 0; i < all.count; i++) ml_fetch_or_seq_cst((ml_u64 *)all.word[i], 0);
            for (unsigned i = 0; i < mine; i++) publish(device[i], 4096 * (1 + round % 8));
        }
        ml_store_release(turn, READER);
    }
}

static int cross(const char *path, unsigned members, unsigned count) {
    unsigned char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t *sample[3];
    if (page == MAP_FAILED) fail("mmap");
    ml_u64 *turn = (ml_u64 *)(void *)page;
    for (unsigned kind = 0; kind < 3; kind++)
        if (!(sample[kind] = calloc(count, sizeof(uint64_t)))) fail("calloc");
    ml_store_release(turn, WRITER);
    pid_t child = fork(); /* before any join: a handle belongs to one process */
    if (child < 0) fail("fork");
    if (child == 0) other_process(path, members, turn);
    (void)spin(turn, READER, true, child);
    run_on(0);
    ml_ledger *ledger;
    lines seen;
    ml_device *device = join(path, "reader", &ledger);
    ml_device_set_limit(device, TOTAL_BYTES);
    free_bytes(device);
    lines_of(device, &seen);
    if (seen.count != members) fail("finding the publishers");
    for (unsigned i = 0; i < count * 3; i++) {
        ml_store_release(turn, WRITER);
        (void)spin(turn, READER, true, child);
        uint64_t begin = now_ns();
        if (i % 3 == 1) sink = bare_scan(&seen);
        if (i % 3 == 2) free_bytes(device);
        sample[i % 3][i / 3] = now_ns() - begin;
    }
    report("clock", sample[0], count, 1);
    report("bare", sample[1], count, 1);
    report("free", sample[2], count, 1);
    unsigned rounds = count < 200 ? count : 200;
    for (unsigned i = 0; i < rounds; i++) {
        uint64_t begin = now_ns();
        for (unsigned p = 0; p < PING_PONGS; p++) {
            ml_store_release(turn, PING);
            (void)spin(turn, READER, true, child);
        }
        sample[0][i] = now_ns() - begin;
    }
    report("line", sample[0], rounds, 0.5 / PING_PONGS);
    ml_store_release(turn, STOP);
    waitpid(child, NULL, 0);
    ml_ledger_leave(ledger);
    return 0;
}

/* ---- one process ------------------------------------------------------------------------------------------------ */

static double least(double a, double b) {
    return a < b ? a : b;
}

static int warm(const char *path, unsigned members, unsigned calls) {
    ml_ledger *ledger, *other_ledger;
    ml_device *other = NULL, *device;
    lines seen;
    double bare = 1e18, unchanged = 1e18, only_publish = 1e18, with_free = 1e18;
    hold_rest(path, members); /* forks before the first join */
    device = join(path, "reader", &ledger);
    ml_device_set_limit(device, TOTAL_BYTES);
    for (unsigned i = 0; i < members && i < MEMBERS_PER_PROCESS; i++)
        publish(other = join(path, "writer", &other_ledger), 4096);
    lines_of(device, &seen);
    for (int round = 0; round < 15; round++) {
        uint64_t begin = now_ns();
        for (unsigned i = 0; i < calls; i++) sink = bare_scan(&seen);
        bare = least(bare, (double)(now_ns() - begin) / calls);
        begin = now_ns();
        for (unsigned i = 0; i < calls; i++) free_bytes(device);
        unchanged = least(unchanged, (double)(now_ns() - begin) / calls);
        begin = now_ns();
        for (unsigned i = 0; i < calls; i++) publish(other, 4096 * (1 + i % 8));
        only_publish = least(only_publish, (double)(now_ns() - begin) / calls);
        begin = now_ns();
        for (unsigned i = 0; i < calls; i++) {
            publish(other, 4096 * (1 + i % 8));
            free_bytes(device);
        }
        with_free = least(with_free, (double)(now_ns() - begin) / calls);
    }
    printf("bare %.2f\nunchanged %.2f\npublish %.2f\nchanged %.2f\n", bare, unchanged, only_publish,
           with_free - only_publish);
    return 0;
}

static int loop(const char *path, const char *op, unsigned calls) {
    ml_ledger *ledger;
    ml_device *device = join(path, "loop", &ledger);
    ml_claim claim;
    ml_device_set_limit(device, TOTAL_BYTES);
    publish(device, 4096);
    free_bytes(device);
    if (strcmp(op, "free") == 0) {
        for (unsigned i = 0; i < calls; i++) free_bytes(device);
    } else if (strcmp(op, "publish") == 0) {
        for (unsigned i = 0; i < calls; i++) publish(device, 4096 * (1 + i % 8));
    } else if (strcmp(op, "publish+free") == 0) {
        for (unsigned i = 0; i < calls; i++) {
            publish(device, 4096 * (1 + i % 8));
            free_bytes(device);
        }
    } else if (strcmp(op, "claim+cancel") == 0) {
        for (unsigned i = 0; i < calls; i++) {
            if (ml_claim_try(ml_device_account(device), 4096, 0, 0, &claim) != ML_OK) fail("ml_claim_try");
            if (ml_claim_cancel(&claim) != ML_OK) fail("ml_claim_cancel");
        }
    } else {
        fail(op);
    }
    return 0;
}

int main(int argc, char **argv) {
    unsigned number = argc == 5 ? (unsigned)strtoul(argv[4], NULL, 10) : 0;
    if (number && strcmp(argv[2], "loop") == 0) return loop(argv[1], argv[3], number);
    unsigned members = number ? (unsigned)strtoul(argv[3], NULL, 10) : 0;
    if (members < 1 || members >= ML_SLOTS_MAX) fail("reading the arguments: PATH cross|warm|loop N|OP COUNT");
    return strcmp(argv[2], "cross") == 0 ? cross(argv[1], members, number) : warm(argv[1], members, number);
}
