/* What the POSIX tests of csrc/os share: a directory of their own, children that cannot outlive a failed test, and
 * a page through which they talk. */
#ifndef ML_TESTS_TEST_OS_HELP_H
#define ML_TESTS_TEST_OS_HELP_H

#include "check.h"

#include "base/atomic.h"
#include "os/os.h"
#include "os/os_test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE_BYTES ((uint64_t)256 * 1024)
#define LIMIT_BYTES ((uint64_t)1 << 23)
#define PATIENCE_NS 20000000000ull /* how long a wait may take before the test counts as failed */

static char folder[64];
static char path[OS_PATH_BYTES];

/* Shared with every child; cleared before each use by the test that uses it. */
typedef struct board {
    ml_u64 ready, stop, done, errors, count, pid[32];
    uint64_t plain;
    uint32_t word;
} board;
static board *shared;

/* Bytes that are wrong until the very last store: whoever sees the file too early sees that. */
static inline void fill_slowly(unsigned char *base, uint64_t size_bytes, void *context) {
    (void)context;
    memset(base, 7, (size_t)size_bytes);
    os_yield();
    base[0] = 42;
}

static inline os_status create_at(const char *name, os_segment *out, bool *created, os_error *error) {
    return os_segment_open_or_create(name, SIZE_BYTES, 4096, LIMIT_BYTES, fill_slowly, NULL, out, created, error);
}

static inline os_segment segment_or_exit(void) {
    os_segment segment;
    bool created;
    os_error error = {0, ""};
    if (create_at(path, &segment, &created, &error) != OS_OK) {
        printf("cannot make %s: %s %d\n", path, error.call, error.code);
        _exit(2);
    }
    return segment;
}

/* Dies with its parent and by its own watchdog, unless the body says otherwise. */
static inline pid_t child(void (*body)(void)) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid != 0) return pid;
    CHECK_WATCHDOG(CHECK_TEST_SECONDS);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    check_failures = 0;
    body();
    fflush(stdout);
    _exit(check_failures == 0 ? 0 : 1);
}

/* The exit status, or minus the signal. */
static inline int outcome(pid_t pid) {
    int status = 0;
    if (waitpid(pid, &status, 0) != pid) return 999;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static inline void end(pid_t pid) {
    if (pid > 1) {
        kill(pid, SIGKILL);
        (void)outcome(pid);
    }
}

static inline bool wait_value(const ml_u64 *word, uint64_t wanted) {
    uint64_t end_ns = os_now_ns() + PATIENCE_NS;
    while (ml_load_acquire(word) < wanted) {
        if (os_now_ns() > end_ns) return false;
        os_sleep_ns(200000);
    }
    return true;
}

static inline os_answer wait_answer(os_probe *probe, unsigned index, os_answer wanted) {
    uint64_t end_ns = os_now_ns() + PATIENCE_NS;
    os_answer answer = os_probe_held(probe, index);
    while (answer != wanted && os_now_ns() < end_ns) {
        os_sleep_ns(200000);
        answer = os_probe_held(probe, index);
    }
    return answer;
}

/* Names in the folder that contain `part`. */
static inline int names_with(const char *part) {
    int count = 0;
    DIR *listing = opendir(folder);
    for (struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;)
        count += entry->d_name[0] != '.' && strstr(entry->d_name, part) != NULL;
    if (listing != NULL) closedir(listing);
    return count;
}

static inline void empty_folder(void) {
    DIR *listing = opendir(folder);
    for (struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            unlinkat(dirfd(listing), entry->d_name, 0) != 0)
            unlinkat(dirfd(listing), entry->d_name, AT_REMOVEDIR);
    if (listing != NULL) closedir(listing);
}

static inline int begin(void) {
    snprintf(folder, sizeof folder, "/dev/shm/ml-test-XXXXXX");
    if (mkdtemp(folder) == NULL) return 0;
    chmod(folder, 01777); /* as hostile as /dev/shm: other users may put things here */
    snprintf(path, sizeof path, "%s/segment", folder);
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* orphans of killed children come to us */
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared != MAP_FAILED;
}

static inline void finish(void) {
    empty_folder();
    rmdir(folder);
}

static inline void clear_board(void) {
    memset((void *)shared, 0, sizeof *shared);
}

#endif
