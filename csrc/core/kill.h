/* Named points before each store to shared memory. In a test build (-DML_KILL_POINTS) a test can end or stop the
 * process exactly there; otherwise they compile to nothing.
 *
 * The rule, which tests/lint/test_kill_points.py reads from the source: the statement before each store into the
 * segment is a point with a name of its own, so that whoever ends there has done all before and not that store. A
 * helper that stores many words (ml_words_store, the `put` of a file) has its point inside. tests/c/test_kill.c reaches
 * every point; one that it does not reach fails there. Words of this process alone have none: its locks, caches and
 * marks. */
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
