/* Named points before each store to shared memory. In a test build (-DML_KILL_POINTS) a test can end or stop the
 * process exactly there; otherwise they compile to nothing. */
#ifndef ML_CORE_KILL_H
#define ML_CORE_KILL_H

#ifdef ML_KILL_POINTS
/* Defined by the test program (tests/c/kill_points.c). */
void ml_kill_point(const char *name);
#define ML_KILL_POINT(name) ml_kill_point(name)
#else
#define ML_KILL_POINT(name) ((void)0)
#endif

#endif
