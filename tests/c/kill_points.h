/* The named points of core/kill.h, from the test's side: counted, hooked, or the end of the process. */
#ifndef ML_TESTS_KILL_POINTS_H
#define ML_TESTS_KILL_POINTS_H

/* Runs at every point, in the thread that passes it; not while a hook runs. Points that the hook itself passes are
 * counted and may end the process. NULL: none. */
typedef void kill_hook(const char *name);
void kill_points_hook(kill_hook *hook);
/* The `pass`-th time (from 1) that this process comes to `name`, it sends itself `signal`. NULL: never. */
void kill_points_arm(const char *name, unsigned pass, int signal);
/* Counts since the last clear, those of children included. Call kill_points_share once, before the first fork. */
void kill_points_share(void);
void kill_points_clear(void);
unsigned kill_points_count(const char *name);
/* The names that were passed: the i-th, or NULL behind the last. */
const char *kill_points_name(unsigned i);

#endif
