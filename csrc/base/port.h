/* What the compilers differ in, so that no other file has to ask which one it is. */
#ifndef ML_BASE_PORT_H
#define ML_BASE_PORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
#define ML_LIKELY(x) __builtin_expect(!!(x), 1)
#define ML_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define ML_COLD __attribute__((noinline))
#define ML_MUST_CHECK __attribute__((warn_unused_result))
#else
#define ML_LIKELY(x) (x)
#define ML_UNLIKELY(x) (x)
#define ML_COLD
#define ML_MUST_CHECK
#endif

#define ML_CACHE_LINE_BYTES 64

/* Tell the CPU that this is a spin loop: it saves power and lets the sibling hyper-thread run. */
static inline void ml_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

static inline uint64_t ml_min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}
static inline uint64_t ml_max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}
/* Saturating, because every operand may have come from a hostile segment: a wrapped difference would
 * show as 18 exabytes free. */
static inline uint64_t ml_sub_sat(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}
static inline uint64_t ml_add_sat(uint64_t a, uint64_t b) {
    return a + b < a ? UINT64_MAX : a + b;
}

#endif
