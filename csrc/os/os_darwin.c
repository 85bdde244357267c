/* macOS: what Linux does otherwise. Never run on a real machine; the checks are of its syntax only. */
#define _DARWIN_C_SOURCE
#include "os/os_posix.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/sysctl.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define POLL_NS 1000000ull

/* ---- time, identity, chance ------------------------------------------------------------------------------ */

/* CLOCK_MONOTONIC counts suspend here. */
uint64_t os_boottime_ns(void) {
    return os_now_ns();
}

uint64_t os_random_u64(void) {
    uint64_t value;
    if (getentropy(&value, sizeof value) == 0) return value;
    uint64_t x = os_now_ns() ^ (uint64_t)getpid() << 40 ^ (uint64_t)(uintptr_t)&value;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    return x ^ (x >> 31);
}

void os_identity_self(os_identity *out) {
    memset(out, 0, sizeof *out);
    struct timeval boot;
    size_t length = sizeof boot;
    int boot_name[2] = {CTL_KERN, KERN_BOOTTIME};
    if (sysctl(boot_name, 2, &boot, &length, NULL, 0) == 0) {
        out->boot_id[0] = (uint64_t)boot.tv_sec;
        out->boot_id[1] = (uint64_t)boot.tv_usec;
    }
    struct kinfo_proc process;
    length = sizeof process;
    int process_name[4] = {CTL_KERN, KERN_PROC, KERN_PROC_PID, getpid()};
    if (sysctl(process_name, 4, &process, &length, NULL, 0) == 0 && length == sizeof process)
        out->start_ticks =
            (uint64_t)process.kp_proc.p_starttime.tv_sec * 1000000ull + (uint64_t)process.kp_proc.p_starttime.tv_usec;
    out->pid = (uint64_t)getpid();
    out->parent_pid = (uint64_t)getppid();
    out->user_id = (uint64_t)geteuid();
}

/* ---- the segment ----------------------------------------------------------------------------------------- */

/* The user's own temporary directory, from the system, not from TMPDIR, which sandboxes scrub. */
os_status os_segment_default_path(char path[OS_PATH_BYTES], unsigned layout_major) {
    char directory[OS_PATH_BYTES];
    size_t length = confstr(_CS_DARWIN_USER_TEMP_DIR, directory, sizeof directory);
    if (length == 0 || length > sizeof directory) return OS_ABSENT;
    int count =
        snprintf(path, OS_PATH_BYTES, "%s/memledger-v%u-%lu", directory, layout_major, (unsigned long)geteuid());
    return count > 0 && count < OS_PATH_BYTES ? OS_OK : OS_FAILED;
}

int os_sys_open_nameless(const char *directory) {
    (void)directory;
    errno = EOPNOTSUPP;
    return -1;
}

int os_sys_name(int fd, const char *path) {
    (void)fd;
    (void)path;
    return EOPNOTSUPP;
}

int os_sys_reserve(int fd, uint64_t offset, uint64_t length_bytes) {
    (void)fd;
    (void)offset;
    (void)length_bytes;
    return EOPNOTSUPP;
}

/* ---- locks ----------------------------------------------------------------------------------------------- */

/* flock only. */
int os_sys_ofd_set(int fd, unsigned index, os_lock_mode mode) {
    (void)fd;
    (void)index;
    (void)mode;
    return EINVAL;
}

int os_sys_ofd_get(int fd, unsigned index, bool *held) {
    (void)fd;
    (void)index;
    *held = false;
    return EINVAL;
}

/* A mapping holds the file here, not the open file and its lock, so the descriptor itself is the token. What this
 * costs: whoever closes every descriptor of the process loses the lock, and a child has a copy until its fork hook
 * drops it or it runs another program. `page` only says that it is held. */
os_status os_sys_token_keep(int fd, os_token *out, os_error *error) {
    (void)error;
    *out = (os_token){.page = out, .extra = (uint64_t)fd};
    return OS_OK;
}

/* Closes and does not unlock: in a child that must leave the parent's lock alone. */
void os_token_drop(os_token *token) {
    if (token->page != NULL) close((int)token->extra);
    *token = (os_token){0};
}

/* ---- fork, waiting --------------------------------------------------------------------------------------- */

/* No memory that a fork clears; os_fork_count tells. */
const volatile uint64_t *os_cookie_new(uint64_t value) {
    (void)value;
    return NULL;
}

void os_cookie_free(const volatile uint64_t *cookie) {
    (void)cookie;
}

/* No public futex between processes: look again each millisecond. */
void os_wait(uint32_t *word, uint32_t expected, uint64_t timeout_ns) {
    const volatile uint32_t *seen = word;
    uint64_t end_ns = ml_add_sat(os_now_ns(), timeout_ns);
    while (*seen == expected) {
        uint64_t left_ns = ml_sub_sat(end_ns, os_now_ns());
        if (left_ns == 0) return;
        os_sleep_ns(ml_min_u64(left_ns, POLL_NS));
    }
}

void os_wake(uint32_t *word) {
    (void)word;
}
