/* What the tests of csrc/core share: a folder of their own, members of a ledger in it, a clock that can be put
 * forward, and children that die with their parent. Built with -DML_KILL_POINTS and kill_points.c; with
 * -Wl,--wrap of os_now_ns, os_boottime_ns and ml_record_read the core sees the clock of the test, and records that
 * nobody can read. */
#ifndef ML_TESTS_CORE_HELP_H
#define ML_TESTS_CORE_HELP_H

#include "check.h"
#include "kill_points.h"

#include "core/claim.h"
#include "core/core.h"
#include "core/snapshot.h"
#include "include/memledger.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#ifndef _WIN32
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#endif

#define UNIT UINT64_C(4096)
#define GIB (UINT64_C(1) << 30)
#define SECOND UINT64_C(1000000000)
#define CARD "sim:card"
#define TEST_FOLDER_BYTES 300

static char folder[TEST_FOLDER_BYTES];
static char path[OS_PATH_BYTES];

/* ---- the clock ------------------------------------------------------------------------------------------- */

static uint64_t forward_ns; /* changed while no other thread runs */

uint64_t __real_os_now_ns(void);
uint64_t __real_os_boottime_ns(void);
uint64_t __wrap_os_now_ns(void);
uint64_t __wrap_os_boottime_ns(void);
uint64_t __wrap_os_now_ns(void) {
    return __real_os_now_ns() + forward_ns;
}
uint64_t __wrap_os_boottime_ns(void) {
    return __real_os_boottime_ns() + forward_ns;
}

/* A record that its writer never leaves in peace: no reader gets a whole copy. */
static bool records_unreadable;
bool __real_ml_record_read(const ml_record *record, ml_figure *out, uint64_t *version);
bool __wrap_ml_record_read(const ml_record *record, ml_figure *out, uint64_t *version);
bool __wrap_ml_record_read(const ml_record *record, ml_figure *out, uint64_t *version) {
    return __real_ml_record_read(record, out, version) && !records_unreadable;
}

/* ---- members --------------------------------------------------------------------------------------------- */

static inline ml_ledger *join_with(unsigned slots) {
    ml_ledger *ledger = NULL;
    ml_join_options options = {.path = path, .label = "test", .program = "c", .version = "1", .slots = slots};
    CHECK_EQ(ml_ledger_join(&options, &ledger), ML_OK);
    return ledger;
}

static inline ml_ledger *join(void) {
    return join_with(16);
}

static inline ml_device *open_pool_of(ml_ledger *ledger, const char *key) {
    ml_device *device = NULL;
    ml_pool_spec spec = {.key = key, .kind = ML_KIND_SIM};
    CHECK_EQ(ml_device_open(ledger, &spec, 1, &device), ML_OK);
    return device;
}

/* A device, and a total for it without a reading. */
static inline ml_device *open_card(ml_ledger *ledger, uint64_t total_bytes) {
    ml_device *device = open_pool_of(ledger, CARD);
    if (total_bytes) CHECK_EQ(ml_device_set_limit(device, total_bytes), ML_OK);
    return device;
}

static inline ml_device *open_chain(ml_ledger *ledger, const char *const *keys, unsigned count) {
    ml_device *device = NULL;
    ml_pool_spec specs[ML_LEVELS_MAX + 1];
    memset(specs, 0, sizeof specs);
    for (unsigned i = 0; i < count; i++) specs[i] = (ml_pool_spec){.key = keys[i], .kind = ML_KIND_SIM};
    CHECK_EQ(ml_device_open(ledger, specs, count, &device), ML_OK);
    return device;
}

static inline int hold(ml_device *device, uint64_t held) {
    ml_amounts amounts = {held, 0, 0};
    return ml_account_publish(ml_device_account(device), &amounts);
}

static inline int try_claim(ml_device *device, uint64_t bytes, ml_claim *claim) {
    return ml_claim_try(ml_device_account(device), bytes, 0, 0, claim);
}

/* A claim that may sweep and wait, as long as `timeout_ns`. */
static inline int wait_claim(ml_device *device, uint64_t bytes, uint64_t timeout_ns, ml_claim *claim) {
    uint64_t free_bytes;
    return ml_claim_wait(ml_device_account(device), bytes, 0, 0, timeout_ns, claim, &free_bytes);
}

static inline uint64_t free_of(ml_device *device) {
    uint64_t bytes = UINT64_MAX;
    int status = ml_device_free(device, &bytes);
    return status == ML_OK ? bytes : UINT64_MAX;
}

static inline ml_figures figures_of(ml_device *device) {
    ml_figures figures;
    memset(&figures, 0, sizeof figures);
    (void)ml_device_figures(device, &figures);
    return figures;
}

static inline ml_record *record_of(const ml_device *device, unsigned level) {
    return device->level[level]->own;
}
static inline uint64_t committed(const ml_device *device, unsigned level) {
    return ML_WORD_COMMITTED(ml_load_acquire(&record_of(device, level)->word));
}
static inline ml_figure published(const ml_device *device, unsigned level) {
    ml_figure figure = {0};
    uint64_t version;
    CHECK(ml_record_read(record_of(device, level), &figure, &version));
    return figure;
}

static inline ml_ledger_info info_of(ml_ledger *ledger) {
    ml_ledger_info info;
    ml_ledger_get_info(ledger, &info);
    return info;
}

static inline int read_source(ml_ledger *ledger, unsigned pool, uint64_t total, uint64_t free_bytes) {
    ml_reading_op op;
    ml_reading reading = {.total = total,
                          .free = free_bytes,
                          .immediate = UINT64_MAX,
                          .soft_limit = UINT64_MAX,
                          .source = 's' | 'i' << 8 | 'm' << 16,
                          .scope = ML_SCOPE_DEVICE};
    CHECK_EQ(ml_reading_begin(ledger, pool, NULL, &op), ML_OK);
    return ml_reading_end(ledger, &op, &reading);
}

/* Sweeps as housekeeping does; bytes given back. */
static inline uint64_t sweep(ml_ledger *ledger) {
    ml_sweep dead;
    uint64_t freed = 0;
    CHECK_EQ(ml_sweep_begin(ledger, &dead), ML_OK);
    CHECK_EQ(ml_sweep_commit(ledger, &dead, &freed), ML_OK);
    return freed;
}

/* The findings of check(), printed. */
static inline unsigned findings_of(ml_ledger *ledger) {
    ml_finding found[8];
    unsigned count = ml_ledger_check(ledger, found, 8);
    for (unsigned i = 0; i < count && i < 8; i++)
        printf("  invariant %u, pool %u, slot %u: %s (%llu, not %llu)\n", found[i].invariant, found[i].pool,
               found[i].slot, found[i].text, (unsigned long long)found[i].actual,
               (unsigned long long)found[i].expected);
    return count;
}

static inline int tick(ml_ledger *ledger) {
    ml_tick out;
    return ml_ledger_tick(ledger, &out);
}

/* ---- children -------------------------------------------------------------------------------------------- */

#ifdef _WIN32
#include "windows_help.h"
#else

/* In a session of its own, so that stopping it hangs nobody up; it dies with its parent and by its watchdog. */
static inline pid_t child(void (*body)(void)) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid != 0) return pid;
    CHECK_WATCHDOG(CHECK_TEST_SECONDS);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid();
    check_failures = 0;
    body();
    fflush(stdout);
    _exit(check_failures == 0 ? 0 : 1);
}

/* The exit status, or minus the signal that ended or stopped it. */
static inline int outcome(pid_t pid) {
    int status = 0;
    if (waitpid(pid, &status, WUNTRACED) != pid) return 999;
    return WIFEXITED(status) ? WEXITSTATUS(status) : WIFSTOPPED(status) ? -WSTOPSIG(status) : -WTERMSIG(status);
}

static inline void end(pid_t pid) {
    int status;
    if (pid > 1) {
        kill(pid, SIGKILL);
        (void)waitpid(pid, &status, 0);
    }
}

static inline int run_child(void (*body)(void)) {
    return outcome(child(body));
}

static inline void die(int signal) {
    kill(getpid(), signal);
}

static inline bool make_folder(void) {
    snprintf(folder, sizeof folder, "/dev/shm/ml-core-XXXXXX");
    return mkdtemp(folder) != NULL;
}

#endif

/* A program of these tests that may have been started as its own child (only Windows does that). True: it was, and
 * *result is its exit status. */
static inline bool was_child(const check_test *bodies, size_t count, int argc, char **argv, int *result) {
#ifdef _WIN32
    program = argv[0];
#endif
    if (argc != 4 || strcmp(argv[1], "child") != 0) return false;
    snprintf(path, sizeof path, "%s", argv[3]);
    for (size_t i = 0; i < count; i++)
        if (strcmp(bodies[i].name, argv[2]) == 0) bodies[i].run();
    *result = 1; /* each ends by itself */
    return true;
}

/* ---- the folder ------------------------------------------------------------------------------------------ */

static inline void new_segment(void) {
    static unsigned number;
    if (path[0]) unlink(path);
    snprintf(path, sizeof path, "%s/segment%u", folder, number++);
}

static inline int begin(void) {
    kill_points_share();
    if (!make_folder()) return 0;
    new_segment();
    return 1;
}

static inline void finish(void) {
    unlink(path);
    rmdir(folder);
}

#endif
