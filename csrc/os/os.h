/* What the core needs of an operating system: one contract, one file per system behind it.
 *
 * Layer: below everything that knows slots or pools. Nothing here keeps state between calls (the fork registry
 * in os_fork.c is the one exception, since pthread_atfork passes no argument), prints, exits, installs a signal
 * handler, touches the umask, or retries without bound. EINTR is retried inside.
 *
 * Failures return a status and fill os_error with the literal name of the failing call and the system's code;
 * text is built in Python. */
#ifndef ML_OS_OS_H
#define ML_OS_OS_H

#include "base/port.h"

typedef enum os_status {
    OS_OK = 0,
    OS_BUSY,        /* somebody else holds it, or the deadline passed; not an error */
    OS_ABSENT,      /* no such name */
    OS_FOREIGN,     /* something is there, and it is not a segment of ours: owner, mode, type, size, links */
    OS_NO_SPACE,    /* the blocks could not be reserved */
    OS_UNSUPPORTED, /* this kernel has no such thing */
    OS_FAILED       /* anything else; os_error says what */
} os_status;

/* Answers about somebody else. Unknown is an answer of its own: treat it as alive. */
typedef enum os_answer { OS_NO = 0, OS_YES = 1, OS_UNKNOWN = 2 } os_answer;

typedef struct os_error {
    int code;         /* errno or GetLastError(); 0 when a rule of ours refused */
    const char *call; /* static string: "open", "mmap", or for OS_FOREIGN the rule: "mode", "owner", "type", ... */
} os_error;

/* ---- time, identity, chance ------------------------------------------------------------------------------ */

uint64_t os_now_ns(void);      /* monotonic; stops during suspend on some systems. For waits and due times. */
uint64_t os_boottime_ns(void); /* monotonic, counts suspend where the system can tell; else os_now_ns() */
uint64_t os_random_u64(void);  /* from the kernel; a mix of clock, pid and address where that fails */
void os_yield(void);
void os_sleep_ns(uint64_t ns);

typedef struct os_identity {
    uint64_t boot_id[2];    /* 0,0 where unknown */
    uint64_t pid_namespace; /* inode of the namespace; 0 where there is no such thing */
    uint64_t pid;
    uint64_t start_ticks; /* raw field 22 of /proc/self/stat, or FILETIME; never wall time arithmetic; 0 unknown */
    uint64_t user_id;     /* effective uid; on Windows a hash of the user's SID */
    uint64_t parent_pid;
} os_identity;
void os_identity_self(os_identity *out);

/* ---- the segment ----------------------------------------------------------------------------------------- */

#define OS_PATH_BYTES 512

typedef struct os_segment {
    unsigned char *base; /* read-write, shared */
    uint64_t size_bytes;
    uint64_t device_id, file_id; /* st_dev, st_ino; what "the same segment" means */
} os_segment;

/* Default place: per user, found without any environment variable (sandboxes scrub it). */
os_status os_segment_default_path(char path[OS_PATH_BYTES], unsigned layout_major);

/* Fills a segment before anybody can see it; must not fail. */
typedef void os_segment_init(unsigned char *base, uint64_t size_bytes, void *context);

/* Open the segment under `path`, or create it complete (reserved, initialised, mode 0600) and only then give it
 * its name. Whatever is already there under the name is never changed, truncated or removed, not even on errors.
 * `size_bytes` is what a creator makes; an existing one is mapped with its own size, which must be at least
 * `min_size_bytes` and at most `max_size_bytes`. `*created` says which it was. */
os_status os_segment_open_or_create(const char *path, uint64_t size_bytes, uint64_t min_size_bytes,
                                    uint64_t max_size_bytes, os_segment_init *init, void *context, os_segment *out,
                                    bool *created, os_error *error);
/* As above, never creates. */
os_status os_segment_open(const char *path, uint64_t min_size_bytes, uint64_t max_size_bytes, os_segment *out,
                          os_error *error);
/* Is the segment that we have mapped still the one under `path`, with its full size? OS_OK; OS_ABSENT (unlinked);
 * OS_FOREIGN (another file stands there, or the size is wrong). One stat. */
os_status os_segment_verify(const char *path, const os_segment *segment, os_error *error);
/* Put private zero pages over the mapping, in one step: a straggling reader sees zeros, never a fault. The address
 * range stays reserved until os_private_unmap. Windows cannot: there the straggler sees the old values. */
void os_segment_retire(os_segment *segment);
/* Private memory with the life of the process, zeroed, lazily backed. */
os_status os_private_map(uint64_t size_bytes, os_segment *out, os_error *error);
void os_private_unmap(os_segment *segment); /* also of an opened segment that nobody uses any more */
/* Copy the file into `buffer` by reading, never by mapping: a file that shrinks under us gives a short count, not
 * a SIGBUS. Same validation as os_segment_open, except that with `any_owner` the owner and mode are not judged. */
os_status os_image_read(const char *path, unsigned char *buffer, uint64_t capacity_bytes, uint64_t *size_bytes,
                        uint64_t *device_id, uint64_t *file_id, bool any_owner, os_error *error);
/* Remove the name. Only `memledger reset` calls it. */
os_status os_segment_unlink(const char *path, os_error *error);

/* ---- locks that die with their holder -------------------------------------------------------------------- */

/* One byte-range per index, far beyond the data: 0..255 are slots, others below. */
#define OS_LOCK_TABLE 1000u     /* pool table */
#define OS_LOCK_REFRESHER 1100u /* + pool index */
#define OS_LOCK_COUNT 1200u

typedef enum os_lock_kind {
    OS_LOCKS_NONE = 0,
    OS_LOCKS_OFD = 1,
    OS_LOCKS_FLOCK = 2,
    OS_LOCKS_WINDOWS = 3
} os_lock_kind;
/* What this kernel can do for this file, or for one to be made there; OS_LOCKS_NONE with *error where that cannot be
 * told. A creator writes it into the header; everybody must use the same kind. */
os_lock_kind os_lock_kind_of(const char *path, os_error *error);

/* An exclusive lock with the life of the address space: holds no descriptor, is not inherited by any kind of
 * child, does not end with a thread, cannot be lost by closing descriptors. Weaker on macOS (a descriptor) and in
 * qemu's user mode: there a child inherits it, and lets go of it in its fork hook only. */
typedef struct os_token {
    void *page;     /* NULL: not held */
    uint64_t extra; /* for the system's file only */
} os_token;
/* OS_BUSY: held by another. The file under `path` must be `segment` (device_id, file_id), else OS_ABSENT.
 * Takes the fork guard itself unless the caller holds it. */
os_status os_token_take(const char *path, const os_segment *segment, os_lock_kind kind, unsigned index, os_token *out,
                        os_error *error);
/* In a forked child, from its fork hook: lets go of what the child inherited, never of the parent's lock. */
void os_token_drop(os_token *token);

/* A short-lived look at the locks of others. Opens one descriptor (close-on-exec); the caller closes it. A forked
 * child must close it in its fork hook: a lock that the probe holds lives as long as any copy of the descriptor. In a
 * child call os_probe_close only: releasing would release the parent's. */
#define OS_PROBE_LOCKS_MAX 16 /* held at a time by one probe, of the kind flock; further ones are OS_FAILED */
typedef struct os_probe {
    intptr_t fd; /* -1: closed */
    os_lock_kind kind;
    uint32_t held[OS_PROBE_LOCKS_MAX][2]; /* flock only: descriptor + 1 (0: none), index */
    char path[OS_PATH_BYTES];
} os_probe;
/* `segment` as for a token; NULL: whatever stands under `path`, for tools that have nothing mapped. */
os_status os_probe_open(const char *path, const os_segment *segment, os_lock_kind kind, os_probe *out, os_error *error);
/* Does somebody hold `index` exclusively? Sees owners only, never those who hold it shared. With flock the answer
 * for an index that nobody ever took is OS_UNKNOWN, and sharing it is OS_ABSENT: a missing lock file may have been
 * removed by a cleaner of temporary files while its owner lives. */
os_answer os_probe_held(os_probe *probe, unsigned index);
/* Take it shared (sweepers; OS_BUSY: an owner holds it), or exclusively (table lock; waits until the deadline). */
os_status os_probe_share(os_probe *probe, unsigned index);
os_status os_probe_exclude(os_probe *probe, unsigned index, uint64_t deadline_ns);
void os_probe_release(os_probe *probe, unsigned index);
void os_probe_close(os_probe *probe);

/* ---- fork ------------------------------------------------------------------------------------------------ */

/* A word that reads `value` in this process and 0 in any child, however it was made (raw clone included).
 * NULL where the system cannot; then os_fork_count() is what to compare. */
const volatile uint64_t *os_cookie_new(uint64_t value);
/* Nobody may read that word any more. NULL: nothing. */
void os_cookie_free(const volatile uint64_t *cookie);
/* Raised in the child by every fork that goes through libc; differs from the parent's from then on. */
uint64_t os_fork_count(void);
/* Calls `prepare`/`parent` around fork() in the parent and `child` in the child, for each registered context, at
 * most OS_FORK_MAX of them. OS_FAILED when full. Not called by raw clone. */
#define OS_FORK_MAX 512
typedef struct os_fork_hooks {
    void (*prepare)(void *context);
    void (*parent)(void *context);
    void (*child)(void *context);
} os_fork_hooks;
/* `prepare` runs in the order last registered first, with the fork guard held: whoever holds the guard may take a lock
 * that `prepare` takes, never the other way round, and neither may be held to (un)register. Taking a token takes the
 * guard, and so does every use of a probe with flock. */
os_status os_fork_register(const os_fork_hooks *hooks, void *context);
void os_fork_unregister(void *context);
/* Held around any moment in which a lock descriptor is open, so that no fork inherits it. Recursive use is an
 * error. Nothing slow inside. */
void os_fork_guard_lock(void);
void os_fork_guard_unlock(void);

/* ---- waiting --------------------------------------------------------------------------------------------- */

/* Sleep until *word != expected, a wake, or the timeout; wakes may be spurious. Works across processes that map
 * the same segment (futex); where the system has no such thing the wait polls. Never longer than `timeout_ns`. */
void os_wait(uint32_t *word, uint32_t expected, uint64_t timeout_ns);
void os_wake(uint32_t *word);

#endif
