/* Faults on demand, for tests. Without OS_TEST_HOOKS nothing of it is in the binary. */
#ifndef ML_OS_OS_TEST_H
#define ML_OS_OS_TEST_H

#ifdef OS_TEST_HOOKS

/* The next `count` uses of `call` fail with `code` (errno, or GetLastError()); count < 0: until it is set again;
 * code 0: no longer. Names: "open" (segment, token, probe, lock file), "tmpfile" (O_TMPFILE), "publish" (linkat),
 * "fallocate", "mmap" (segment), "token_map", "lock" (any lock call), "ofd" (open-file-description locks only;
 * EINVAL for ever forces flock). Children that fork inherits keep the setting. */
void os_test_inject(const char *call, int code, int count);
int os_test_fault(const char *call);
#define OS_FAULT(call) os_test_fault(call)

#else

#define OS_FAULT(call) 0

#endif
#endif
