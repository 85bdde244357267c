/* Linux: what no other system has. The rest is in os_posix.c and os_posix_locks.c. */
#define _GNU_SOURCE
#include "os/os_posix.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOCK_OFFSET                                                                                   \
    ((off_t)1 << 40) /* far behind any data, so that no tool that locks a whole file by size meets it \
                      */
#define EINTR_TRIES 100
#define WAIT_MAX_NS 3600000000000ull
#define WAIT_STEP_NS 1000000ull
#define NO_SUCH_ADVICE 9999 /* to madvise */
#define INHERITED 0         /* in os_token.extra: a child has it too; else the pid of the only process that has */

/* ---- time, identity, chance ------------------------------------------------------------------------------ */

uint64_t os_boottime_ns(void) {
    struct timespec t;
    if (clock_gettime(CLOCK_BOOTTIME, &t) != 0) return os_now_ns();
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

uint64_t os_random_u64(void) {
    uint64_t value;
    if (getrandom(&value, sizeof value, GRND_NONBLOCK) == (ssize_t)sizeof value) return value;
    /* Early at boot, or a sandbox without the call. Distinct between processes and calls is all that is asked. */
    uint64_t x = os_boottime_ns() ^ (uint64_t)getpid() << 40 ^ (uint64_t)(uintptr_t)&value;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static size_t read_small_file(const char *path, char *text, size_t capacity) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t count = read(fd, text, capacity - 1);
    close(fd);
    if (count < 0) count = 0;
    text[count] = '\0';
    return (size_t)count;
}

static void parse_boot_id(const char *text, uint64_t out[2]) {
    uint64_t words[2] = {0, 0};
    int digits = 0;
    for (const char *c = text; *c != '\0' && digits < 32; c++) {
        const char *hex = "0123456789abcdef";
        const char *at = strchr(hex, *c);
        if (at == NULL) continue;
        words[digits / 16] = words[digits / 16] << 4 | (uint64_t)(at - hex);
        digits++;
    }
    if (digits == 32) memcpy(out, words, sizeof words);
}

/* Field 22. The name in field 2 may hold blanks and brackets, so count from the last bracket. */
static uint64_t parse_start_ticks(const char *text) {
    const char *at = strrchr(text, ')');
    for (int field = 2; at != NULL && field < 22; field++) {
        at = strchr(at, ' ');
        if (at != NULL) at++;
    }
    return at == NULL ? 0 : strtoull(at, NULL, 10);
}

void os_identity_self(os_identity *out) {
    memset(out, 0, sizeof *out);
    char text[1024];
    if (read_small_file("/proc/sys/kernel/random/boot_id", text, sizeof text) != 0) parse_boot_id(text, out->boot_id);
    if (read_small_file("/proc/self/stat", text, sizeof text) != 0) out->start_ticks = parse_start_ticks(text);
    struct stat space;
    if (stat("/proc/self/ns/pid", &space) == 0) out->pid_namespace = (uint64_t)space.st_ino;
    out->pid = (uint64_t)getpid();
    out->parent_pid = (uint64_t)getppid();
    out->user_id = (uint64_t)geteuid();
}

/* ---- the segment ----------------------------------------------------------------------------------------- */

os_status os_segment_default_path(char path[OS_PATH_BYTES], unsigned layout_major) {
    snprintf(path, OS_PATH_BYTES, "/dev/shm/memledger-v%u-%lu", layout_major, (unsigned long)geteuid());
    return OS_OK;
}

int os_sys_open_nameless(const char *directory) {
    int fault = OS_FAULT("tmpfile");
    if (fault != 0) {
        errno = fault;
        return -1;
    }
    return open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
}

int os_sys_name(int fd, const char *path) {
    int fault = OS_FAULT("publish");
    if (fault != 0) return fault;
    char self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0 ? 0 : errno;
}

int os_sys_reserve(int fd, uint64_t offset, uint64_t length_bytes) {
    return posix_fallocate(fd, (off_t)offset, (off_t)length_bytes);
}

/* ---- locks ----------------------------------------------------------------------------------------------- */

static int ofd_call(int fd, int command, struct flock *lock) {
    int fault = OS_FAULT("lock");
    if (fault == 0) fault = OS_FAULT("ofd");
    if (fault != 0) return fault;
    int tries = 0;
    while (fcntl(fd, command, lock) != 0)
        if (errno != EINTR || ++tries == EINTR_TRIES) return errno;
    return 0;
}

int os_sys_ofd_set(int fd, unsigned index, os_lock_mode mode) {
    short type = mode == OS_LOCK_EXCLUSIVE ? F_WRLCK : mode == OS_LOCK_SHARED ? F_RDLCK : F_UNLCK;
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = LOCK_OFFSET + (off_t)index, .l_len = 1};
    return ofd_call(fd, F_OFD_SETLK, &lock);
}

/* Asks for a shared lock, because only an exclusive one, an owner's, stands in its way: sweepers, and whoever may
 * only read the file, hold shared ones and must not pass for an owner. */
int os_sys_ofd_get(int fd, unsigned index, bool *held) {
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = LOCK_OFFSET + (off_t)index, .l_len = 1};
    int code = ofd_call(fd, F_OFD_GETLK, &lock);
    *held = lock.l_type != F_UNLCK;
    return code;
}

/* Something that takes an advice which does not exist follows none (qemu's user mode): what a mapping is advised about
 * forks means nothing there. */
static bool advice_is_followed(void *page, size_t length_bytes) {
    return madvise(page, length_bytes, NO_SUCH_ADVICE) != 0;
}

/* A mapping keeps the open file description, and with it the lock, alive without a descriptor: closing every
 * descriptor does not lose it, and MADV_DONTFORK keeps it out of any child, raw clone included. At death the kernel
 * gives the mapping back after the descriptors, so the lock is seen free only when those of a driver are closed. */
os_status os_sys_token_keep(int fd, os_token *out, os_error *error) {
    size_t length = (size_t)sysconf(_SC_PAGESIZE);
    os_status status = OS_OK;
    int fault = OS_FAULT("token_map");
    void *page = fault != 0 ? MAP_FAILED : mmap(NULL, length, PROT_NONE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
        status = os_fail(error, OS_FAILED, "mmap", fault != 0 ? fault : errno);
    } else if (madvise(page, length, MADV_DONTFORK) != 0) {
        status = os_fail(error, OS_UNSUPPORTED, "madvise", errno);
        munmap(page, length);
    } else {
        *out = (os_token){.page = page, .extra = advice_is_followed(page, length) ? (uint64_t)getpid() : INHERITED};
    }
    close(fd);
    return status;
}

/* A child that inherited nothing may have something of its own there by now; hence the look at the pid. */
void os_token_drop(os_token *token) {
    bool here = token->extra == INHERITED || token->extra == (uint64_t)getpid();
    if (token->page != NULL && here) munmap(token->page, (size_t)sysconf(_SC_PAGESIZE));
    *token = (os_token){0};
}

/* ---- fork ------------------------------------------------------------------------------------------------ */

const volatile uint64_t *os_cookie_new(uint64_t value) {
    size_t length = (size_t)sysconf(_SC_PAGESIZE);
    uint64_t *page = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return NULL;
    if (madvise(page, length, MADV_WIPEONFORK) != 0 || !advice_is_followed(page, length)) {
        munmap(page, length);
        return NULL;
    }
    *page = value;
    return page;
}

void os_cookie_free(const volatile uint64_t *cookie) {
    if (cookie != NULL) munmap((void *)(uintptr_t)cookie, (size_t)sysconf(_SC_PAGESIZE));
}

/* ---- waiting --------------------------------------------------------------------------------------------- */

/* Not FUTEX_PRIVATE: the waker is another process, with the segment at another address. */
void os_wait(uint32_t *word, uint32_t expected, uint64_t timeout_ns) {
    timeout_ns = ml_min_u64(timeout_ns, WAIT_MAX_NS);
    struct timespec limit = {(time_t)(timeout_ns / 1000000000ull), (long)(timeout_ns % 1000000000ull)};
    if (syscall(SYS_futex, word, FUTEX_WAIT, expected, &limit, NULL, 0) == 0) return;
    /* Any other failure comes back at once, and the caller loops: a short sleep keeps it from spinning. */
    if (errno != EAGAIN && errno != EINTR && errno != ETIMEDOUT) os_sleep_ns(ml_min_u64(timeout_ns, WAIT_STEP_NS));
}

void os_wake(uint32_t *word) {
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}
