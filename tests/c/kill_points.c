#define _GNU_SOURCE
#include "kill_points.h"

#include "base/atomic.h"
#include "core/kill.h"

#include <signal.h>
#include <string.h>
#ifndef _WIN32
#include <sys/mman.h>
#include <unistd.h>
#endif

#define NAMES_MAX 256

/* Names are string constants of the program, so a child's pointer is the parent's. */
typedef struct board {
    struct {
        ml_ptr name;
        ml_u64 count;
    } entry[NAMES_MAX];
} board;

static board own;
static board *counts = &own;
static kill_hook *current;
static struct {
    const char *name;
    unsigned left;
    int signal;
} armed;

#ifdef _WIN32 /* no child is a copy of its parent, and nothing can be stopped */
#define kill_self(signal) ((void)(signal))
void kill_points_share(void) {
}
#else
#define kill_self(signal) ((void)kill(getpid(), signal))
void kill_points_share(void) {
    void *page = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page != MAP_FAILED) counts = page;
}
#endif

void kill_points_clear(void) {
    memset((void *)counts, 0, sizeof *counts);
}

void kill_points_hook(kill_hook *hook) {
    current = hook;
}

void kill_points_arm(const char *name, unsigned pass, int signal) {
    armed.name = name;
    armed.left = pass;
    armed.signal = signal;
}

const char *kill_points_name(unsigned i) {
    return i < NAMES_MAX ? ml_ptr_load_acquire(&counts->entry[i].name) : NULL;
}

unsigned kill_points_count(const char *name) {
    for (unsigned i = 0; i < NAMES_MAX && kill_points_name(i); i++)
        if (strcmp(kill_points_name(i), name) == 0) return (unsigned)ml_load_relaxed(&counts->entry[i].count);
    return 0;
}

/* One process at a time finds new names; several may count. */
static void count(const char *name) {
    unsigned i = 0;
    while (i < NAMES_MAX && kill_points_name(i) && strcmp(kill_points_name(i), name) != 0) i++;
    if (i == NAMES_MAX) return;
    if (!kill_points_name(i)) ml_ptr_store_release(&counts->entry[i].name, (void *)(uintptr_t)name);
    ml_fetch_add_seq_cst(&counts->entry[i].count, 1);
}

void ml_kill_point(const char *name) {
    kill_hook *hook = current;
    count(name);
    if (armed.name && strcmp(armed.name, name) == 0 && --armed.left == 0) {
        armed.name = NULL;
        kill_self(armed.signal);
    }
    if (!hook) return;
    current = NULL;
    hook(name);
    if (!current) current = hook;
}
