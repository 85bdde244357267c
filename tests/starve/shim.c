/* Preloaded by the tests of this folder: lets the n-th call of a kind fail, and moves clocks.
 *
 * Counted per thread, so that only the thread that was armed is hit; and, where a range of addresses was named, only
 * calls made from there (the native module), not those of the interpreter. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MEMORY = 1, DESCRIPTORS = 2, SPACE = 4, THREADS = 8 };
#define CLOCKS 16
#define HERE __builtin_return_address(0)

static __thread struct {
    int kinds;
    long left, burst, failed, seen;
} armed __attribute__((tls_model("initial-exec")));
static uintptr_t low, high = UINTPTR_MAX;
static _Atomic long long offset_ns[CLOCKS];

void starve_range(uintptr_t from, uintptr_t to) {
    low = from;
    high = to;
}
/* The n-th call of these kinds on this thread fails, and `burst` - 1 after it. */
void starve_arm(int kinds, long n, long burst) {
    armed.left = n;
    armed.burst = burst;
    armed.failed = armed.seen = 0;
    armed.kinds = kinds;
}
long starve_disarm(void) {
    armed.kinds = 0;
    return armed.failed;
}
long starve_seen(void) {
    return armed.seen;
}
void starve_clock(int clock, long long ns) {
    offset_ns[clock] = ns;
}

static int fails(int kind, int code, void *from) {
    if ((armed.kinds & kind) == 0 || (uintptr_t)from < low || (uintptr_t)from >= high) return 0;
    armed.seen++;
    if (--armed.left > 0 || armed.left <= -armed.burst) return 0;
    armed.failed++;
    errno = code;
    return 1;
}

/* ---- memory ---- */

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);

void *malloc(size_t size) {
    return fails(MEMORY, ENOMEM, HERE) ? NULL : __libc_malloc(size);
}
void *calloc(size_t count, size_t size) {
    return fails(MEMORY, ENOMEM, HERE) ? NULL : __libc_calloc(count, size);
}
void *realloc(void *old, size_t size) {
    return fails(MEMORY, ENOMEM, HERE) ? NULL : __libc_realloc(old, size);
}
/* One that only replaces what stands there needs no new room; madvise may need to split a mapping. */
void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
    if (!(flags & MAP_FIXED) && fails(MEMORY, ENOMEM, HERE)) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, length, protection, flags, fd, offset);
}
int madvise(void *at, size_t length, int advice) {
    return fails(MEMORY, ENOMEM, HERE) ? -1 : (int)syscall(SYS_madvise, at, length, advice);
}

/* ---- descriptors ---- */

int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;
    va_end(more);
    if (fails(DESCRIPTORS, EMFILE, HERE)) return -1;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
int __open_2(const char *path, int flags) {
    return fails(DESCRIPTORS, EMFILE, HERE) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0);
}
DIR *opendir(const char *path) {
    static DIR *(*real)(const char *);
    if (!real) real = (DIR * (*)(const char *)) dlsym(RTLD_NEXT, "opendir");
    return fails(DESCRIPTORS, EMFILE, HERE) ? NULL : real(path);
}
int fcntl(int fd, int command, ...) {
    va_list more;
    va_start(more, command);
    void *argument = va_arg(more, void *);
    va_end(more);
    if (command == F_DUPFD_CLOEXEC && fails(DESCRIPTORS, EMFILE, HERE)) return -1;
    if ((command == F_OFD_SETLK || command == F_SETLK) && fails(SPACE, ENOLCK, HERE)) return -1;
    return (int)syscall(SYS_fcntl, fd, command, argument);
}

/* ---- room in the file system, and in the kernel's table of locks ---- */

int posix_fallocate(int fd, off_t offset, off_t length) {
    if (fails(SPACE, ENOSPC, HERE)) return ENOSPC;
    return syscall(SYS_fallocate, fd, 0, offset, length) == 0 ? 0 : errno;
}
ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset) {
    return fails(SPACE, ENOSPC, HERE) ? -1 : syscall(SYS_pwrite64, fd, bytes, count, offset);
}
int linkat(int from, const char *old, int to, const char *path, int flags) {
    return fails(SPACE, ENOSPC, HERE) ? -1 : (int)syscall(SYS_linkat, from, old, to, path, flags);
}
int link(const char *old, const char *path) {
    return fails(SPACE, ENOSPC, HERE) ? -1 : (int)syscall(SYS_linkat, AT_FDCWD, old, AT_FDCWD, path, 0);
}

/* ---- threads ---- */

typedef int pthread_create_function(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument) {
    static pthread_create_function *real;
    if (!real) real = (pthread_create_function *)dlsym(RTLD_NEXT, "pthread_create");
    return fails(THREADS, EAGAIN, HERE) ? EAGAIN : real(thread, attributes, body, argument);
}

/* ---- clocks ---- */

int clock_gettime(clockid_t clock, struct timespec *t) {
    int status = (int)syscall(SYS_clock_gettime, clock, t);
    if (status != 0 || clock < 0 || clock >= CLOCKS) return status;
    long long ns = (long long)t->tv_sec * 1000000000 + t->tv_nsec + offset_ns[clock];
    t->tv_sec = ns / 1000000000;
    t->tv_nsec = ns % 1000000000;
    return 0;
}
time_t time(time_t *out) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}
