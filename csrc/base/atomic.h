/* The only file that names C11 atomics. The value sits in a struct, so that a plain `x + 1` or `x = y` on a
 * shared field does not compile, and the memory order is part of every name, so that there is no default. */
#ifndef ML_BASE_ATOMIC_H
#define ML_BASE_ATOMIC_H

#include "base/port.h"

#include <stdatomic.h>

typedef struct ml_u64 {
    _Atomic uint64_t raw;
} ml_u64;

/* Process-local only: pointers mean nothing in another process. */
typedef struct ml_ptr {
    _Atomic(void *) raw;
} ml_ptr;

_Static_assert(sizeof(ml_u64) == 8, "a shared field is exactly eight bytes in every build");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit atomics must be lock-free: a lock would not be shared");

static inline uint64_t ml_load_relaxed(const ml_u64 *a) {
    return atomic_load_explicit(&((ml_u64 *)a)->raw, memory_order_relaxed);
}
static inline uint64_t ml_load_acquire(const ml_u64 *a) {
    return atomic_load_explicit(&((ml_u64 *)a)->raw, memory_order_acquire);
}
static inline uint64_t ml_load_seq_cst(const ml_u64 *a) {
    return atomic_load_explicit(&((ml_u64 *)a)->raw, memory_order_seq_cst);
}
static inline void ml_store_relaxed(ml_u64 *a, uint64_t value) {
    atomic_store_explicit(&a->raw, value, memory_order_relaxed);
}
static inline void ml_store_release(ml_u64 *a, uint64_t value) {
    atomic_store_explicit(&a->raw, value, memory_order_release);
}
static inline uint64_t ml_exchange_seq_cst(ml_u64 *a, uint64_t value) {
    return atomic_exchange_explicit(&a->raw, value, memory_order_seq_cst);
}
static inline uint64_t ml_fetch_add_seq_cst(ml_u64 *a, uint64_t value) {
    return atomic_fetch_add_explicit(&a->raw, value, memory_order_seq_cst);
}
static inline uint64_t ml_fetch_or_seq_cst(ml_u64 *a, uint64_t bits) {
    return atomic_fetch_or_explicit(&a->raw, bits, memory_order_seq_cst);
}
static inline uint64_t ml_fetch_and_seq_cst(ml_u64 *a, uint64_t bits) {
    return atomic_fetch_and_explicit(&a->raw, bits, memory_order_seq_cst);
}
/* True when *a was `expected` and is now `desired`. Never fails spuriously. */
static inline bool ml_cas_acq_rel(ml_u64 *a, uint64_t expected, uint64_t desired) {
    return atomic_compare_exchange_strong_explicit(&a->raw, &expected, desired, memory_order_acq_rel,
                                                   memory_order_relaxed);
}
static inline bool ml_cas_seq_cst(ml_u64 *a, uint64_t expected, uint64_t desired) {
    return atomic_compare_exchange_strong_explicit(&a->raw, &expected, desired, memory_order_seq_cst,
                                                   memory_order_seq_cst);
}

static inline void *ml_ptr_load_acquire(const ml_ptr *a) {
    return atomic_load_explicit(&((ml_ptr *)a)->raw, memory_order_acquire);
}
static inline void ml_ptr_store_release(ml_ptr *a, void *value) {
    atomic_store_explicit(&a->raw, value, memory_order_release);
}

#endif
