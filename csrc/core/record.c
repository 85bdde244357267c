/* One member's figures for one pool: a ring of copies and a version.
 *
 * A classic seqlock (odd while writing) would let a stopped writer stop its readers. Here the writer fills the copy
 * that readers left longest ago and only then raises the version, so a reader always has a complete copy to go to. */
#include "core/core.h"

#define READ_TRIES 16

/* Fill the copy that version + 1 will point to. */
static void fill(ml_record *record, uint64_t version, uint64_t generation, const ml_figure *f) {
    ml_copy *copy = &record->copy[(version + 1) % ML_RING_COPIES];
    /* [O1] Each field with release: whoever reads one of these values also sees the version that came before it,
     * and so notices that this copy is being refilled. Other end: the re-check in ml_record_read. Else: on a weakly
     * ordered CPU a slow reader mixes two publishes, sees an unchanged version, and reports a sum that no process
     * ever held. */
    ML_KILL_POINT("record.generation");
    ml_store_release(&copy->generation, generation);
    ML_KILL_POINT("record.held");
    ml_store_release(&copy->held, f->held);
    ML_KILL_POINT("record.releasable");
    ml_store_release(&copy->releasable, f->releasable);
    ML_KILL_POINT("record.pinned");
    ml_store_release(&copy->pinned, f->pinned);
    ML_KILL_POINT("record.claims");
    ml_store_release(&copy->claims, f->claims);
}

void ml_record_publish(ml_local_pool *pool, uint64_t generation) {
    ml_record *record = pool->own;
    ml_figure f = {generation, pool->held, pool->releasable, pool->pinned, pool->claims};
    uint64_t version = ml_load_relaxed(&record->version);
    fill(record, version, generation, &f);
    /* [O2] The flip. Other end: the first load in ml_record_read. Else: a reader goes to a copy that is not filled. */
    ML_KILL_POINT("record.version");
    ml_store_release(&record->version, version + 1);
}

void ml_record_publish_zero(ml_record *record, uint64_t version, uint64_t generation) {
    ml_figure f = {0};
    fill(record, version, generation, &f);
    /* [O2] By CAS: several may sweep at once, and one that was stopped here must not put the version back when it goes
     * on (a model finds that run). */
    ML_KILL_POINT("record.zero_version");
    (void)ml_cas_acq_rel(&record->version, version, version + 1);
}

bool ml_record_read(const ml_record *record, ml_figure *out, uint64_t *version) {
    for (int i = 0; i < READ_TRIES; i++) {
        uint64_t before = ml_load_acquire(&record->version); /* [O2] */
        const ml_copy *copy = &record->copy[before % ML_RING_COPIES];
        out->generation = ml_load_acquire(&copy->generation);
        out->held = ml_load_acquire(&copy->held);
        out->releasable = ml_load_acquire(&copy->releasable);
        out->pinned = ml_load_acquire(&copy->pinned);
        out->claims = ml_load_acquire(&copy->claims);
        *version = before;
        /* [O1] The copy of `before` is refilled by publish `before + ML_RING_COPIES`, which starts only after version
         * before + ML_RING_COPIES - 1 is visible. */
        if (ML_LIKELY(ml_load_relaxed(&record->version) - before <= ML_RING_COPIES - 2)) {
            /* Hostile bytes: no figure above what an owner could have published leaves here. */
            out->held = ml_min_u64(out->held, ML_BYTES_MAX);
            out->releasable = ml_min_u64(out->releasable, out->held);
            out->pinned = ml_min_u64(out->pinned, ML_BYTES_MAX);
            out->claims = ml_min_u64(out->claims, ML_BYTES_MAX);
            return true;
        }
        ml_pause();
    }
    return false;
}
