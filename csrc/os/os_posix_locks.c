/* Locks that die with their holder, for the POSIX systems: byte locks of an open file description on the segment
 * itself, or, where the kernel has none, flock on one small file per index beside it. */
#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include "os/os_posix.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define EINTR_TRIES 100
#define TAKE_TRIES 8
#define TAKE_PAUSE_NS 100000ull
#define POLL_MIN_NS 50000ull
#define POLL_MAX_NS 1000000ull
#define UNUSED_INDEX OS_LOCK_COUNT /* nobody locks it: for asking whether locks work */

static int flock_call(int fd, int operation) {
    int fault = OS_FAULT("lock");
    if (fault != 0) return fault;
    int tries = 0;
    while (flock(fd, operation) != 0)
        if (errno != EINTR || ++tries == EINTR_TRIES) return errno;
    return 0;
}

static int set_lock(os_lock_kind kind, int fd, unsigned index, os_lock_mode mode) {
    if (kind == OS_LOCKS_OFD) return os_sys_ofd_set(fd, index, mode);
    return flock_call(fd, (mode == OS_LOCK_EXCLUSIVE ? LOCK_EX : mode == OS_LOCK_SHARED ? LOCK_SH : LOCK_UN) | LOCK_NB);
}

static bool is_conflict(int code) {
    return code == EAGAIN || code == EACCES || code == EWOULDBLOCK;
}

static os_status lock_refused(os_lock_kind kind, int code, os_error *error) {
    const char *call = kind == OS_LOCKS_OFD ? "fcntl" : "flock";
    if (is_conflict(code)) return os_fail(error, OS_BUSY, call, code);
    return os_fail(error, code == EINVAL || code == ENOSYS ? OS_UNSUPPORTED : OS_FAILED, call, code);
}

static bool is_usable(os_lock_kind kind, unsigned index) {
    return (kind == OS_LOCKS_OFD || kind == OS_LOCKS_FLOCK) && index < OS_LOCK_COUNT;
}

os_lock_kind os_lock_kind_of(const char *path, os_error *error) {
    struct stat file;
    os_lock_kind kind = OS_LOCKS_NONE;
    int fd = os_posix_open(path, O_RDWR);
    if (fd < 0 && errno == ENOENT)
        fd = os_posix_open_scratch(path); /* a creator asks before the segment has its name */
    if (fd < 0) {
        (void)os_fail(error, OS_FAILED, "open", errno);
        return OS_LOCKS_NONE;
    }
    if (fstat(fd, &file) == 0 && S_ISREG(file.st_mode)) {
        int code = os_sys_ofd_set(fd, UNUSED_INDEX, OS_LOCK_SHARED);
        if (code == 0)
            kind = OS_LOCKS_OFD;
        else if (code == EINVAL && flock_call(fd, LOCK_SH | LOCK_NB) == 0)
            kind = OS_LOCKS_FLOCK;
        else
            (void)os_fail(error, OS_FAILED, "fcntl", code);
    } else {
        (void)os_fail(error, OS_FOREIGN, "type", 0);
    }
    close(fd);
    return kind;
}

/* ---- the files behind the locks -------------------------------------------------------------------------- */

static os_status open_lock_file(const char *path, unsigned index, bool create, int *fd, os_error *error) {
    char name[OS_PATH_BYTES + 16];
    struct stat file, named;
    snprintf(name, sizeof name, "%s.lock%03u", path, index);
    *fd = os_posix_open(name, O_RDWR);
    if (*fd < 0 && errno == ENOENT && create) {
        *fd = os_posix_raise(open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
        if (*fd >= 0)
            (void)fchmod(*fd, 0600); /* whatever the host's umask took away */
        else if (errno == EEXIST)
            *fd = os_posix_open(name, O_RDWR);
    }
    if (*fd < 0) return os_fail(error, errno == ENOENT ? OS_ABSENT : OS_FAILED, "open", errno);
    os_status status = OS_OK;
    if (fstat(*fd, &file) != 0)
        status = os_fail(error, OS_FAILED, "fstat", errno);
    else if (lstat(name, &named) != 0 || file.st_ino != named.st_ino || file.st_dev != named.st_dev)
        status = os_fail(error, OS_FAILED, "replaced", 0);
    else
        status = os_posix_judge(&file, false, error);
    if (status != OS_OK) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

/* Opens what `index` is locked by and locks it. The caller holds the fork guard and closes *fd. */
static os_status open_and_lock(const char *path, const os_segment *segment, os_lock_kind kind, unsigned index,
                               os_lock_mode mode, int *fd, os_error *error) {
    *fd = -1;
    os_status status = kind == OS_LOCKS_OFD ? os_posix_open_same(path, segment, fd, error)
                                            : open_lock_file(path, index, mode == OS_LOCK_EXCLUSIVE, fd, error);
    if (status != OS_OK) return status;
    int code = set_lock(kind, *fd, index, mode);
    if (code != 0)
        status = lock_refused(kind, code, error);
    else if (segment != NULL && !os_posix_is_same(path, segment))
        status = os_fail(error, OS_ABSENT, "replaced", 0);
    if (status != OS_OK) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

/* ---- tokens ---------------------------------------------------------------------------------------------- */

static os_status take_once(const char *path, const os_segment *segment, os_lock_kind kind, unsigned index,
                           os_token *out, os_error *error) {
    int fd;
    bool entered = os_fork_guard_enter();
    os_status status = open_and_lock(path, segment, kind, index, OS_LOCK_EXCLUSIVE, &fd, error);
    if (status == OS_OK) status = os_sys_token_keep(fd, out, error);
    os_fork_guard_leave(entered);
    return status;
}

/* With flock a look is a try-lock, which may stand in an owner's way for some microseconds; hence the tries. */
os_status os_token_take(const char *path, const os_segment *segment, os_lock_kind kind, unsigned index, os_token *out,
                        os_error *error) {
    *out = (os_token){0};
    if (!is_usable(kind, index)) return os_fail(error, OS_UNSUPPORTED, "lock_kind", 0);
    os_status status = take_once(path, segment, kind, index, out, error);
    for (int i = 1; i < TAKE_TRIES && status == OS_BUSY && kind == OS_LOCKS_FLOCK; i++) {
        os_sleep_ns(TAKE_PAUSE_NS);
        status = take_once(path, segment, kind, index, out, error);
    }
    return status;
}

/* ---- probes ---------------------------------------------------------------------------------------------- */

os_status os_probe_open(const char *path, const os_segment *segment, os_lock_kind kind, os_probe *out,
                        os_error *error) {
    memset(out, 0, sizeof *out);
    out->fd = -1;
    if (!is_usable(kind, 0)) return os_fail(error, OS_UNSUPPORTED, "lock_kind", 0);
    if ((size_t)snprintf(out->path, sizeof out->path, "%s", path) >= sizeof out->path)
        return os_fail(error, OS_FAILED, "path", 0);
    out->kind = kind;
    int fd;
    bool entered = os_fork_guard_enter(); /* a child that starts now must find the descriptor in *out */
    os_status status = os_posix_open_same(path, segment, &fd, error);
    if (status == OS_OK) out->fd = fd;
    os_fork_guard_leave(entered);
    return status;
}

static os_answer held_by_flock(const char *path, unsigned index) {
    int fd;
    os_answer answer = OS_UNKNOWN;
    bool entered = os_fork_guard_enter();
    if (open_lock_file(path, index, false, &fd, NULL) == OS_OK) {
        int code = flock_call(fd, LOCK_SH | LOCK_NB);
        if (code == 0)
            answer = OS_NO;
        else if (code == EWOULDBLOCK)
            answer = OS_YES;
        close(fd);
    }
    os_fork_guard_leave(entered);
    return answer;
}

os_answer os_probe_held(os_probe *probe, unsigned index) {
    if (probe->fd < 0 || !is_usable(probe->kind, index)) return OS_UNKNOWN;
    if (probe->kind == OS_LOCKS_FLOCK) return held_by_flock(probe->path, index);
    bool held;
    if (os_sys_ofd_get((int)probe->fd, index, &held) != 0) return OS_UNKNOWN;
    return held ? OS_YES : OS_NO;
}

static os_status probe_lock(os_probe *probe, unsigned index, os_lock_mode mode) {
    if (probe->fd < 0 || !is_usable(probe->kind, index)) return OS_UNSUPPORTED;
    if (probe->kind == OS_LOCKS_OFD) {
        int code = os_sys_ofd_set((int)probe->fd, index, mode);
        return code == 0 ? OS_OK : lock_refused(probe->kind, code, NULL);
    }
    unsigned place = 0;
    while (place < OS_PROBE_LOCKS_MAX && probe->held[place][0] != 0) place++;
    if (place == OS_PROBE_LOCKS_MAX) return OS_FAILED;
    int fd;
    bool entered = os_fork_guard_enter();
    os_status status = open_and_lock(probe->path, NULL, probe->kind, index, mode, &fd, NULL);
    if (status == OS_OK) {
        probe->held[place][1] = index;
        probe->held[place][0] = (uint32_t)fd + 1;
    }
    os_fork_guard_leave(entered);
    return status;
}

os_status os_probe_share(os_probe *probe, unsigned index) {
    return probe_lock(probe, index, OS_LOCK_SHARED);
}

/* Polls, because no wait for a file lock takes a deadline without a signal. */
os_status os_probe_exclude(os_probe *probe, unsigned index, uint64_t deadline_ns) {
    uint64_t pause_ns = POLL_MIN_NS;
    for (;;) {
        os_status status = probe_lock(probe, index, OS_LOCK_EXCLUSIVE);
        uint64_t left_ns = ml_sub_sat(deadline_ns, os_now_ns());
        if (status != OS_BUSY || left_ns == 0) return status;
        os_sleep_ns(ml_min_u64(pause_ns, left_ns));
        pause_ns = ml_min_u64(2 * pause_ns, POLL_MAX_NS);
    }
}

void os_probe_release(os_probe *probe, unsigned index) {
    if (probe->fd < 0) return;
    if (probe->kind == OS_LOCKS_OFD) (void)os_sys_ofd_set((int)probe->fd, index, OS_LOCK_NOTHING);
    for (int i = 0; i < OS_PROBE_LOCKS_MAX; i++)
        if (probe->held[i][0] != 0 && probe->held[i][1] == index) {
            int fd = (int)(probe->held[i][0] - 1);
            probe->held[i][0] = 0;
            (void)flock(fd, LOCK_UN); /* a copy in a child that libc did not see must not keep it */
            close(fd);
            break;
        }
}

void os_probe_close(os_probe *probe) {
    for (int i = 0; i < OS_PROBE_LOCKS_MAX; i++)
        if (probe->held[i][0] != 0) close((int)(probe->held[i][0] - 1));
    if (probe->fd >= 0) close((int)probe->fd);
    memset(probe->held, 0, sizeof probe->held);
    probe->fd = -1;
}
