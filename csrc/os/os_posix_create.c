/* Making a segment, for the POSIX systems: complete before it has its name, so that whoever finds the name never has
 * to wait for, or repair, what a creator that was killed left half done. */
#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include "os/os_posix.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define CREATE_ATTEMPTS 100
#define EINTR_TRIES 100
#define RESERVE_STEP_BYTES ((uint64_t)1 << 20)
#define TMP_AGE_S 60
#define TMP_MARK ".tmp."
#define TMP_PATH_BYTES (OS_PATH_BYTES + 32)

typedef struct creation {
    const char *path;
    uint64_t size_bytes;
    os_segment_init *init;
    void *context;
    os_segment *out;
    os_error *error;
} creation;

/* Splits at the last slash; `name` points into `path`. */
static const char *split(const char *path, char directory[OS_PATH_BYTES]) {
    const char *slash = strrchr(path, '/');
    size_t length = slash == NULL ? 0 : (size_t)(slash - path);
    if (slash == NULL)
        snprintf(directory, OS_PATH_BYTES, ".");
    else
        snprintf(directory, OS_PATH_BYTES, "%.*s", (int)(length == 0 ? 1 : length), path);
    return slash == NULL ? path : slash + 1;
}

/* Removes what creators that were killed left under temporary names: files of ours that are old, or that are second
 * names of `complete`, which has its final name and needs no other. A creator whose file goes early starts again. */
void os_posix_tidy(const char *path, const struct stat *complete) {
    char directory[OS_PATH_BYTES], prefix[OS_PATH_BYTES + 8];
    snprintf(prefix, sizeof prefix, "%s" TMP_MARK, split(path, directory));
    DIR *listing = opendir(directory);
    if (listing == NULL) return;
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        struct stat file;
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0 ||
            fstatat(dirfd(listing), entry->d_name, &file, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(file.st_mode) ||
            file.st_uid != geteuid())
            continue;
        bool same = complete != NULL && file.st_dev == complete->st_dev && file.st_ino == complete->st_ino;
        if (same || file.st_mtime + TMP_AGE_S < time(NULL)) unlinkat(dirfd(listing), entry->d_name, 0);
    }
    closedir(listing);
}

static int write_zeros(int fd, uint64_t offset, uint64_t length_bytes) {
    static const char zeros[16384];
    for (int tries = 0; length_bytes > 0;) {
        ssize_t count = pwrite(fd, zeros, (size_t)ml_min_u64(length_bytes, sizeof zeros), (off_t)offset);
        if (count > 0) {
            offset += (uint64_t)count;
            length_bytes -= (uint64_t)count;
        } else if (count == 0 || errno != EINTR || ++tries == EINTR_TRIES) {
            return count == 0 ? ENOSPC : errno;
        }
    }
    return 0;
}

/* Every block, before anybody maps it: a page that cannot be backed later would be a SIGBUS in some thread of the
 * host. In steps, because some kernels undo a reservation that a signal interrupts: a profiler's timer could
 * interrupt one long call for ever. */
static int reserve(int fd, uint64_t size_bytes) {
    struct rlimit limit;
    int fault = OS_FAULT("fallocate");
    if (fault != 0) return fault;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < size_bytes)
        return EFBIG; /* asking the kernel would raise SIGXFSZ, which ends the host */
    for (uint64_t at = 0; at < size_bytes; at += RESERVE_STEP_BYTES) {
        uint64_t step = ml_min_u64(RESERVE_STEP_BYTES, size_bytes - at);
        int code, tries = 0;
        do code = os_sys_reserve(fd, at, step);
        while (code == EINTR && ++tries < EINTR_TRIES);
        if (code == EOPNOTSUPP || code == EINVAL || code == ENODEV || code == ENOSYS) code = write_zeros(fd, at, step);
        if (code != 0) return code;
    }
    return 0;
}

static os_status fill(const creation *c, int fd) {
    struct stat file;
    if (fchmod(fd, 0600) != 0) /* the umask is the host's and may have taken bits away */
        return os_fail(c->error, OS_FAILED, "fchmod", errno);
    int code = reserve(fd, c->size_bytes);
    if (code == ENOSPC || code == EDQUOT || code == EFBIG) return os_fail(c->error, OS_NO_SPACE, "fallocate", code);
    if (code != 0) return os_fail(c->error, OS_FAILED, "fallocate", code);
    if (fstat(fd, &file) != 0) return os_fail(c->error, OS_FAILED, "fstat", errno);
    os_status status = os_posix_map(fd, &file, c->out, c->error);
    if (status == OS_OK) c->init(c->out->base, c->size_bytes, c->context);
    return status;
}

static os_status settle(const creation *c, os_status status) {
    if (status != OS_OK) os_private_unmap(c->out);
    return status;
}

/* A file that has no name until it is complete leaves nothing behind wherever its creator is killed.
 * OS_UNSUPPORTED: no such files here, or no /proc to name one by. OS_BUSY: somebody was first. */
static os_status create_nameless(const creation *c) {
    char directory[OS_PATH_BYTES];
    split(c->path, directory);
    int fd = os_posix_raise(os_sys_open_nameless(directory));
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL || errno == ENOSYS)) return OS_UNSUPPORTED;
    if (fd < 0) return os_fail(c->error, OS_FAILED, "open", errno);
    os_status status = fill(c, fd);
    int code = status == OS_OK ? os_sys_name(fd, c->path) : 0;
    if (code != 0) status = code == EEXIST ? OS_BUSY : OS_UNSUPPORTED;
    close(fd);
    return settle(c, status);
}

static int open_temporary(const char *path, char tmp[TMP_PATH_BYTES]) {
    snprintf(tmp, TMP_PATH_BYTES, "%s" TMP_MARK "%016" PRIx64, path, os_random_u64());
    return os_posix_raise(open(tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
}

static os_status create_named(const creation *c) {
    char tmp[TMP_PATH_BYTES];
    os_posix_tidy(c->path, NULL);
    int fd = open_temporary(c->path, tmp);
    if (fd < 0) return os_fail(c->error, OS_FAILED, "open", errno);
    os_status status = fill(c, fd);
    if (status == OS_OK && link(tmp, c->path) != 0) /* never replaces, unlike rename */
        status = errno == EEXIST || errno == ENOENT ? OS_BUSY : os_fail(c->error, OS_FAILED, "link", errno);
    unlink(tmp);
    close(fd);
    return settle(c, status);
}

int os_posix_open_scratch(const char *path) {
    char directory[OS_PATH_BYTES], tmp[TMP_PATH_BYTES];
    split(path, directory);
    int fd = os_posix_raise(os_sys_open_nameless(directory));
    if (fd >= 0) return fd;
    fd = open_temporary(path, tmp);
    if (fd >= 0) unlink(tmp);
    return fd;
}

os_status os_segment_open_or_create(const char *path, uint64_t size_bytes, uint64_t min_size_bytes,
                                    uint64_t max_size_bytes, os_segment_init *init, void *context, os_segment *out,
                                    bool *created, os_error *error) {
    creation c = {path, size_bytes, init, context, out, error};
    *created = false;
    *out = (os_segment){0};
    if (strlen(path) >= OS_PATH_BYTES) return os_fail(error, OS_FAILED, "path", ENAMETOOLONG);
    for (int attempt = 0; attempt < CREATE_ATTEMPTS; attempt++) {
        os_status status = os_segment_open(path, min_size_bytes, max_size_bytes, out, error);
        if (status != OS_ABSENT) return status;
        status = create_nameless(&c);
        if (status == OS_UNSUPPORTED) status = create_named(&c);
        *created = status == OS_OK;
        if (status != OS_BUSY) return status;
    }
    return os_fail(error, OS_FAILED, "create", EEXIST);
}
