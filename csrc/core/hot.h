/* The part of a hot call that answers from the cache. Shared by figures.c and the native module. */
#ifndef ML_CORE_HOT_H
#define ML_CORE_HOT_H

#include "core/core.h"

#define ML_SAMPLE_SETTLED 0x40u                   /* likewise: by ml_reading_settle */
#define ML_SAMPLE_FROZEN 0x80u                    /* in ml_sample.flags, beside ML_READING_* */
#define ML_SOURCE_LEDGER UINT64_C(0x72656764656c) /* "ledger" */

/* Process-local; housekeeping carries it into the own slot, where other members' housekeeping sees it. */
static inline void ml_mark_asked(ml_ledger *ledger) {
    if (ML_UNLIKELY(!ml_load_relaxed(&ledger->asked))) ml_store_relaxed(&ledger->asked, 1);
}

/* Has nothing been published, granted, swept or read in any pool of the chain since free() was computed? One load
 * per level, whatever the number of members. [O3] */
static inline bool ml_device_unchanged(const ml_device *device) {
    ml_mark_asked(device->ledger);
    for (unsigned l = 0; l < device->level_count; l++) {
        const ml_u64 *change = ml_ptr_load_acquire(&device->level[l]->change);
        if (ML_UNLIKELY(ml_load_acquire(change) != ml_load_acquire(&device->tag[l]))) return false;
    }
    return true;
}

#endif
