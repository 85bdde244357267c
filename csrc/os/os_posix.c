/* What Linux, macOS and the BSDs share: clocks, and a segment that is there. Making
 * one is in os_posix_create.c, locks are in os_posix_locks.c. */
#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include "os/os_posix.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EINTR_TRIES 100
#define GROUPS_MAX 1024

/* ---- time ------------------------------------------------------------------------------------------------ */

uint64_t os_now_ns(void) {
    struct timespec t = {0, 0};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

void os_yield(void) {
    sched_yield();
}

void os_sleep_ns(uint64_t ns) {
    struct timespec left = {(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

/* ---- opening what is there ------------------------------------------------------------------------------- */

/* A host that closed its standard streams would get our descriptor as number 1 or 2, and its next message would land
 * in the segment's header. */
int os_posix_raise(int fd) {
    if (fd < 0 || fd > STDERR_FILENO) return fd;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    int code = errno;
    close(fd);
    errno = code;
    return high;
}

/* O_NONBLOCK: a fifo under our name must not hang us. No O_CREAT: without it, and with O_NOFOLLOW, nobody can make
 * us create or change a file of theirs. */
int os_posix_open(const char *path, int access_flags) {
    int fault = OS_FAULT("open");
    if (fault != 0) {
        errno = fault;
        return -1;
    }
    int fd, tries = 0;
    do fd = open(path, access_flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    while (fd < 0 && errno == EINTR && ++tries < EINTR_TRIES);
    return os_posix_raise(fd);
}

static os_status open_refused(const char *path, int code, os_error *error) {
    struct stat file;
    if (code == ENOENT || code == ENOTDIR) return os_fail(error, OS_ABSENT, "open", code);
    if (code == ELOOP || code == EISDIR || code == ENXIO || code == EMLINK) /* a link, as Linux and the BSDs say it */
        return os_fail(error, OS_FOREIGN, "type", code);
    if ((code == EACCES || code == EPERM) && lstat(path, &file) == 0 && file.st_uid != geteuid())
        return os_fail(error, OS_FOREIGN, "owner", code);
    return os_fail(error, OS_FAILED, "open", code);
}

static bool in_our_groups(gid_t group) {
    gid_t groups[GROUPS_MAX];
    if (group == getegid()) return true;
    int count = getgroups(GROUPS_MAX, groups);
    for (int i = 0; i < count; i++)
        if (groups[i] == group) return true;
    return false;
}

/* Ours alone, or made by the administrator for a group that we are in. */
os_status os_posix_judge(const struct stat *file, bool any_owner, os_error *error) {
    if (!S_ISREG(file->st_mode)) return os_fail(error, OS_FOREIGN, "type", 0);
    if (file->st_nlink > 1) return os_fail(error, OS_FOREIGN, "links", 0);
    if (any_owner) return OS_OK;
    mode_t mode = file->st_mode & 07777;
    if (file->st_uid == 0 && mode == 0660 && in_our_groups(file->st_gid)) return OS_OK;
    if (file->st_uid != geteuid()) return os_fail(error, OS_FOREIGN, "owner", 0);
    if ((mode & 0077) != 0) return os_fail(error, OS_FOREIGN, "mode", 0);
    return OS_OK;
}

static os_status open_valid(const char *path, int access_flags, bool any_owner, int *fd, struct stat *file,
                            os_error *error) {
    *fd = os_posix_open(path, access_flags);
    if (*fd < 0) return open_refused(path, errno, error);
    os_status status = OS_OK;
    int code = fstat(*fd, file) == 0 ? 0 : errno;
    if (code == 0 && file->st_nlink == 2 && file->st_uid == geteuid()) {
        os_posix_tidy(path, file); /* a creator was killed, or is, between link() and unlink() */
        code = fstat(*fd, file) == 0 ? 0 : errno;
    }
    if (code != 0)
        status = os_fail(error, OS_FAILED, "fstat", code);
    else if (file->st_nlink == 0)
        status = os_fail(error, OS_ABSENT, "links", 0);
    else
        status = os_posix_judge(file, any_owner, error);
    if (status != OS_OK) close(*fd);
    return status;
}

bool os_posix_is_same(const char *path, const os_segment *segment) {
    struct stat file;
    return lstat(path, &file) == 0 && (uint64_t)file.st_dev == segment->device_id &&
           (uint64_t)file.st_ino == segment->file_id;
}

os_status os_posix_open_same(const char *path, const os_segment *segment, int *fd, os_error *error) {
    struct stat file;
    *fd = os_posix_open(path, O_RDWR);
    if (*fd < 0) return open_refused(path, errno, error);
    if (segment == NULL || (fstat(*fd, &file) == 0 && (uint64_t)file.st_dev == segment->device_id &&
                            (uint64_t)file.st_ino == segment->file_id))
        return OS_OK;
    close(*fd);
    *fd = -1;
    return os_fail(error, OS_ABSENT, "replaced", 0);
}

/* ---- mapping --------------------------------------------------------------------------------------------- */

os_status os_posix_map(int fd, const struct stat *file, os_segment *out, os_error *error) {
    int fault = OS_FAULT("mmap");
    size_t length = (size_t)file->st_size;
    void *base = fault != 0 ? MAP_FAILED : mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) return os_fail(error, OS_FAILED, "mmap", fault != 0 ? fault : errno);
    *out = (os_segment){base, (uint64_t)file->st_size, (uint64_t)file->st_dev, (uint64_t)file->st_ino};
    return OS_OK;
}

os_status os_segment_open(const char *path, uint64_t min_size_bytes, uint64_t max_size_bytes, os_segment *out,
                          os_error *error) {
    int fd;
    struct stat file;
    os_status status = open_valid(path, O_RDWR, false, &fd, &file, error);
    if (status != OS_OK) return status;
    if (file.st_size <= 0 || (uint64_t)file.st_size < min_size_bytes || (uint64_t)file.st_size > max_size_bytes)
        status = os_fail(error, OS_FOREIGN, "size", 0);
    else
        status = os_posix_map(fd, &file, out, error);
    close(fd);
    return status;
}

os_status os_segment_verify(const char *path, const os_segment *segment, os_error *error) {
    struct stat file;
    if (lstat(path, &file) != 0)
        return os_fail(error, errno == ENOENT || errno == ENOTDIR ? OS_ABSENT : OS_FAILED, "lstat", errno);
    if ((uint64_t)file.st_dev != segment->device_id || (uint64_t)file.st_ino != segment->file_id)
        return os_fail(error, OS_FOREIGN, "replaced", 0);
    if ((uint64_t)file.st_size != segment->size_bytes) return os_fail(error, OS_FOREIGN, "size", 0);
    return OS_OK;
}

void os_segment_retire(os_segment *segment) {
    if (segment->base != NULL)
        (void)mmap(segment->base, (size_t)segment->size_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    segment->device_id = segment->file_id = 0; /* no longer any file's: tokens and verify refuse it */
}

os_status os_private_map(uint64_t size_bytes, os_segment *out, os_error *error) {
    void *base =
        mmap(NULL, (size_t)size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return os_fail(error, OS_FAILED, "mmap", errno);
    *out = (os_segment){.base = base, .size_bytes = size_bytes};
    return OS_OK;
}

void os_private_unmap(os_segment *segment) {
    if (segment->base != NULL) munmap(segment->base, (size_t)segment->size_bytes);
    *segment = (os_segment){0};
}

os_status os_segment_unlink(const char *path, os_error *error) {
    if (unlink(path) == 0) return OS_OK;
    return os_fail(error, errno == ENOENT ? OS_ABSENT : OS_FAILED, "unlink", errno);
}

os_status os_image_read(const char *path, unsigned char *buffer, uint64_t capacity_bytes, uint64_t *size_bytes,
                        uint64_t *device_id, uint64_t *file_id, bool any_owner, os_error *error) {
    int fd;
    struct stat file;
    os_status status = open_valid(path, O_RDONLY, any_owner, &fd, &file, error);
    if (status != OS_OK) return status;
    uint64_t done = 0;
    if ((uint64_t)file.st_size > capacity_bytes) status = os_fail(error, OS_FOREIGN, "size", 0);
    for (int tries = 0; status == OS_OK && done < (uint64_t)file.st_size;) {
        ssize_t count = pread(fd, buffer + done, (size_t)((uint64_t)file.st_size - done), (off_t)done);
        if (count == 0) break;
        if (count > 0)
            done += (uint64_t)count;
        else if (errno != EINTR || ++tries == EINTR_TRIES)
            status = os_fail(error, OS_FAILED, "pread", errno);
    }
    close(fd);
    *size_bytes = done;
    *device_id = (uint64_t)file.st_dev;
    *file_id = (uint64_t)file.st_ino;
    return status;
}
