/* What the files of the POSIX systems need of each other. Nobody outside csrc/os includes it. */
#ifndef ML_OS_OS_POSIX_H
#define ML_OS_OS_POSIX_H

#include "os/os.h"
#include "os/os_test.h"

#include <sys/stat.h>

static inline os_status os_fail(os_error *error, os_status status, const char *call, int code) {
    if (error != NULL) {
        error->code = code;
        error->call = call;
    }
    return status;
}

/* ---- os_posix.c ------------------------------------------------------------------------------------------ */

/* open() with the flags that every file of ours is opened with; never creates. -1 and errno. */
int os_posix_open(const char *path, int access_flags);
/* Type, links, owner, mode; OS_FOREIGN with the rule's name. */
os_status os_posix_judge(const struct stat *file, bool any_owner, os_error *error);
/* The same descriptor above the standard streams; passes -1 and errno through. */
int os_posix_raise(int fd);
os_status os_posix_map(int fd, const struct stat *file, os_segment *out, os_error *error);
/* Opens `path` read-write if it is still the file of `segment` (NULL: whatever it is), else OS_ABSENT. */
os_status os_posix_open_same(const char *path, const os_segment *segment, int *fd, os_error *error);
/* Is `path` the file of `segment`? */
bool os_posix_is_same(const char *path, const os_segment *segment);

/* ---- os_posix_create.c ----------------------------------------------------------------------------------- */

/* Removes what creators that were killed left under temporary names: files of ours that are old, or that are second
 * names of `complete`. */
void os_posix_tidy(const char *path, const struct stat *complete);
/* A file in the directory of `path` that is gone with its descriptor. For looking at what the system can do. */
int os_posix_open_scratch(const char *path);

/* ---- os_fork.c ------------------------------------------------------------------------------------------- */

/* The guard for code that may be called with or without it: true when this call took it. */
bool os_fork_guard_enter(void);
void os_fork_guard_leave(bool entered);

/* ---- one per system; 0 or errno -------------------------------------------------------------------------- */

/* A file without a name in `directory`; -1 and errno, EOPNOTSUPP where there is no such thing. */
int os_sys_open_nameless(const char *directory);
/* Give it its name, unless the name is taken (EEXIST). */
int os_sys_name(int fd, const char *path);
/* Reserve blocks, growing the file. EOPNOTSUPP: the caller writes zeros instead. */
int os_sys_reserve(int fd, uint64_t offset, uint64_t length_bytes);

/* Locks of an open file description, one byte each. EINVAL: this kernel has none. EAGAIN or EACCES: conflict. */
typedef enum os_lock_mode { OS_LOCK_NOTHING, OS_LOCK_SHARED, OS_LOCK_EXCLUSIVE } os_lock_mode;
int os_sys_ofd_set(int fd, unsigned index, os_lock_mode mode);
int os_sys_ofd_get(int fd, unsigned index, bool *held);

/* Turns a descriptor that holds a lock into a token. Takes the descriptor over, on failure too. */
os_status os_sys_token_keep(int fd, os_token *out, os_error *error);

#endif
