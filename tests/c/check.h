/* A tiny harness for the C tests: CHECK and CHECK_EQ say where and what, go on, and count; one line per failed
 * test; the exit status says whether all is well. Checks count in the process and thread that runs the test. */
#ifndef ML_TESTS_CHECK_H
#define ML_TESTS_CHECK_H

#include <stdio.h>
#include <string.h>

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#define CHECK_WATCHDOG(seconds) ((void)alarm(seconds)) /* SIGALRM ends a test that hangs */
#else
#define CHECK_WATCHDOG(seconds) ((void)(seconds))
#endif

#ifndef CHECK_TEST_SECONDS
#define CHECK_TEST_SECONDS 120
#endif

typedef struct check_test {
    const char *name;
    void (*run)(void);
} check_test;
#define TEST(function) {#function, function}

static unsigned check_failures; /* of the running test */

static inline int check_report(int good, const char *text, const char *file, int line) {
    if (!good) {
        check_failures++;
        printf("%s:%d: not true: %s\n", file, line, text);
        fflush(stdout);
    }
    return good;
}

static inline int check_report_equal(long long left, long long right, const char *left_text, const char *right_text,
                                     const char *file, int line) {
    if (left != right) {
        check_failures++;
        printf("%s:%d: %s is %lld, %s is %lld\n", file, line, left_text, left, right_text, right);
        fflush(stdout);
    }
    return left == right;
}

#define CHECK(condition) check_report(!!(condition), #condition, __FILE__, __LINE__)
#define CHECK_EQ(left, right) \
    check_report_equal((long long)(left), (long long)(right), #left, #right, __FILE__, __LINE__)
#define CHECK_STR(left, right) check_report(strcmp((left), (right)) == 0, #left " is " #right, __FILE__, __LINE__)

/* Runs the tests whose name contains `filter` (NULL: all). Returns what main should. */
static inline int check_run(const check_test *tests, size_t count, const char *filter) {
    unsigned passed = 0, failed = 0;
    for (size_t i = 0; i < count; i++) {
        if (filter != NULL && strstr(tests[i].name, filter) == NULL) continue;
        check_failures = 0;
        CHECK_WATCHDOG(CHECK_TEST_SECONDS);
        tests[i].run();
        CHECK_WATCHDOG(0);
        if (check_failures == 0)
            passed++;
        else
            failed++;
        if (check_failures != 0) printf("FAILED %s\n", tests[i].name);
        fflush(stdout);
    }
    printf("%u passed, %u failed\n", passed, failed);
    fflush(stdout);
    return failed != 0 || passed == 0;
}

#define CHECK_MAIN(tests, argc, argv) check_run((tests), sizeof(tests) / sizeof *(tests), (argc) > 1 ? (argv)[1] : NULL)

#endif
