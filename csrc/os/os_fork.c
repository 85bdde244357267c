/* The fork registry: the only mutable file-scope data in the project, because pthread_atfork passes no argument.
 *
 * Order of locks: registry, then the guard, then what the contexts' `prepare` takes. The guard comes before those, so
 * that code which opens a lock descriptor can note it, under a context's lock, before a fork may happen. */
#if !defined(_WIN32)
#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include "os/os_posix.h"

#include "base/atomic.h"

#include <errno.h>
#include <pthread.h>

typedef struct fork_entry {
    os_fork_hooks hooks;
    void *context;
} fork_entry;

static struct {
    pthread_once_t once;
    pthread_mutex_t registry; /* guards entries and count */
    pthread_mutex_t guard;
    bool installed; /* written once, before anybody reads it */
    int count;
    fork_entry entries[OS_FORK_MAX];
    ml_u64 forks;
} state = {.once = PTHREAD_ONCE_INIT, .registry = PTHREAD_MUTEX_INITIALIZER};

/* Error-checking, so that a thread which already holds the guard is told so instead of waiting for itself: it may
 * come here again through os_token_take, or through a fork in a signal handler. */
static void guard_init(void) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ERRORCHECK);
    pthread_mutex_init(&state.guard, &kind);
    pthread_mutexattr_destroy(&kind);
}

static void on_prepare(void) {
    pthread_mutex_lock(&state.registry);
    (void)pthread_mutex_lock(&state.guard);
    for (int i = state.count - 1; i >= 0; i--)
        if (state.entries[i].hooks.prepare != NULL) state.entries[i].hooks.prepare(state.entries[i].context);
}

static void on_parent(void) {
    for (int i = 0; i < state.count; i++)
        if (state.entries[i].hooks.parent != NULL) state.entries[i].hooks.parent(state.entries[i].context);
    (void)pthread_mutex_unlock(&state.guard);
    pthread_mutex_unlock(&state.registry);
}

/* The mutexes are made anew: an error-checking one belongs to the parent's thread and could not be unlocked here. */
static void on_child(void) {
    guard_init();
    (void)ml_fetch_add_seq_cst(&state.forks, 1);
    for (int i = 0; i < state.count; i++)
        if (state.entries[i].hooks.child != NULL) state.entries[i].hooks.child(state.entries[i].context);
    pthread_mutex_init(&state.registry, NULL);
}

static void install(void) {
    guard_init();
    state.installed = pthread_atfork(on_prepare, on_parent, on_child) == 0;
}

os_status os_fork_register(const os_fork_hooks *hooks, void *context) {
    pthread_once(&state.once, install);
    pthread_mutex_lock(&state.registry);
    os_status status = OS_FAILED;
    if (state.installed && state.count < OS_FORK_MAX) {
        state.entries[state.count++] = (fork_entry){*hooks, context};
        status = OS_OK;
    }
    pthread_mutex_unlock(&state.registry);
    return status;
}

void os_fork_unregister(void *context) {
    pthread_mutex_lock(&state.registry);
    int kept = 0;
    for (int i = 0; i < state.count; i++)
        if (state.entries[i].context != context) state.entries[kept++] = state.entries[i];
    state.count = kept;
    pthread_mutex_unlock(&state.registry);
}

void os_fork_guard_lock(void) {
    (void)os_fork_guard_enter();
}

void os_fork_guard_unlock(void) {
    os_fork_guard_leave(true);
}

bool os_fork_guard_enter(void) {
    pthread_once(&state.once, install);
    return pthread_mutex_lock(&state.guard) != EDEADLK;
}

void os_fork_guard_leave(bool entered) {
    if (entered) (void)pthread_mutex_unlock(&state.guard);
}

uint64_t os_fork_count(void) {
    pthread_once(&state.once, install);
    return ml_load_relaxed(&state.forks);
}

#else /* no fork: nothing to guard against, nothing to call */

#include "os/os.h"

os_status os_fork_register(const os_fork_hooks *hooks, void *context) {
    (void)hooks;
    (void)context;
    return OS_OK;
}
void os_fork_unregister(void *context) {
    (void)context;
}
void os_fork_guard_lock(void) {
}
void os_fork_guard_unlock(void) {
}
uint64_t os_fork_count(void) {
    return 0;
}

#endif
