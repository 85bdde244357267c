/* The one file of the operating-system layer that keeps state for tests; compiled only with OS_TEST_HOOKS. */
#include "os/os_test.h"

#ifdef OS_TEST_HOOKS

#include "base/atomic.h"

#include <string.h>

/* One entry per name. Set while nobody else runs; the counts are atomic because several threads use them up. */
static struct {
    const char *call;
    ml_u64 code, left;
} faults[] = {{.call = "open"}, {.call = "tmpfile"},   {.call = "publish"}, {.call = "fallocate"},
              {.call = "mmap"}, {.call = "token_map"}, {.call = "lock"},    {.call = "ofd"}};

#define FAULT_COUNT (sizeof faults / sizeof faults[0])

void os_test_inject(const char *call, int code, int count) {
    for (size_t i = 0; i < FAULT_COUNT; i++)
        if (strcmp(faults[i].call, call) == 0) {
            ml_store_relaxed(&faults[i].left, count < 0 ? UINT64_MAX : (uint64_t)count);
            ml_store_relaxed(&faults[i].code, (uint64_t)code);
        }
}

int os_test_fault(const char *call) {
    for (size_t i = 0; i < FAULT_COUNT; i++) {
        if (strcmp(faults[i].call, call) != 0) continue;
        uint64_t left = ml_load_relaxed(&faults[i].left);
        while (left != 0 && left != UINT64_MAX && !ml_cas_seq_cst(&faults[i].left, left, left - 1))
            left = ml_load_relaxed(&faults[i].left);
        return left == 0 ? 0 : (int)ml_load_relaxed(&faults[i].code);
    }
    return 0;
}

#else

typedef int os_test_unused; /* ISO C forbids an empty file */

#endif
