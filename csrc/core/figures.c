/* From words, records and the newest reading to the figures that people ask for. docs/design.md has the formulas. */
#include "core/core.h"
#include "core/hot.h"

#include <string.h>

#define AVAILABLE_TRIES 4

/* Largest headroom and smallest limit of those who publish here. */
static void params_of(const ml_view *view, const ml_pool *entry, unsigned index, uint64_t *headroom, uint64_t *limit) {
    *headroom = 0;
    *limit = UINT64_MAX;
    ML_FOR_EACH_SLOT(i, ML_SLOT_BITS(entry->publishers), view->slot_count) {
        const ml_record *record = ml_view_record(view, index, i);
        uint64_t limit_word = ml_load_acquire(&record->limit);
        /* Clamped, since these come from the segment: no owner publishes more. */
        *headroom = ml_max_u64(*headroom, ml_min_u64(ml_load_acquire(&record->headroom), ML_BYTES_MAX));
        if (limit_word) *limit = ml_min_u64(*limit, ml_min_u64(limit_word - 1, ML_BYTES_MAX));
    }
}

static uint64_t units_of(uint64_t bytes, unsigned shift) {
    return ml_min_u64(bytes >> shift, ML_UNITS_MAX);
}

void ml_totals_make(const ml_view *view, unsigned index, const ml_pool *entry, unsigned shift, ml_totals *out) {
    uint64_t limit;
    ml_sample sample = out->sample; /* the last good one, where no complete copy can be had now */
    if (!ml_sample_newest(view, index, entry, &sample)) sample = out->sample;
    memset(out, 0, sizeof *out);
    out->sample = sample;
    out->own_free_bytes = UINT64_MAX;
    params_of(view, entry, index, &out->headroom_bytes, &limit);
    const ml_sample *s = &out->sample;
    if (s->sequence && s->reason == ML_REASON_NONE) {
        uint64_t source_total = ml_sub_sat(s->total, s->reserved);
        bool frozen = s->identical >= 2 && (s->flags & ML_SAMPLE_FROZEN);
        out->known = true;
        out->flags = frozen ? ML_FIGURES_FROZEN : 0;
        out->usable_bytes = ml_sub_sat(source_total, out->headroom_bytes);
        out->units = units_of(ml_sub_sat(out->usable_bytes, s->unaccounted), shift);
        out->thawed_units = frozen ? units_of(ml_sub_sat(out->usable_bytes, s->excess[0]), shift) : out->units;
    } else if (limit != UINT64_MAX) {
        out->known = true;
        out->flags = ML_FIGURES_LEDGER;
        out->usable_bytes = ml_sub_sat(limit, out->headroom_bytes);
        out->units = out->thawed_units = units_of(out->usable_bytes, shift);
    }
}

/* One process's view of a device, where nobody can see the whole of it: the total is right, what is free is an upper
 * bound, and what others hold is known from the ledger alone. */
static void use_local(const ml_local_pool *pool, ml_totals *out) {
    const ml_reading *r = &pool->local;
    if (r->total == 0 || (out->known && !(out->flags & ML_FIGURES_LEDGER))) return;
    out->known = true;
    out->flags = ML_FIGURES_PROCESS;
    out->usable_bytes = ml_sub_sat(ml_sub_sat(r->total, r->reserved), out->headroom_bytes);
    out->units = out->thawed_units = units_of(out->usable_bytes, pool->shift);
    out->own_free_bytes = r->free;
    out->sample.reason = ML_REASON_NONE;
    out->sample.scope = ML_SCOPE_PROCESS;
    out->sample.source = r->source;
    out->sample.total = r->total;
    out->sample.free = r->free;
    out->sample.reserved = r->reserved;
    out->sample.unaccounted = 0;
}

static ML_COLD void remake_totals(ml_local_pool *pool, uint64_t newest, uint64_t params) {
    ml_totals_make(pool->view, pool->index, pool->entry, pool->shift, &pool->totals);
    use_local(pool, &pool->totals);
    pool->seen_newest = newest;
    pool->seen_params = params;
    pool->totals_valid = true;
}

static inline const ml_totals *current_totals(ml_local_pool *pool) {
    uint64_t newest = ml_load_acquire(&pool->entry->newest);
    uint64_t params = ml_load_acquire(&pool->entry->param_version);
    if (ML_UNLIKELY(!pool->totals_valid || newest != pool->seen_newest || params != pool->seen_params))
        remake_totals(pool, newest, params);
    return &pool->totals;
}

const ml_totals *ml_totals_get(ml_local_pool *pool) {
    return current_totals(pool);
}

uint64_t ml_committed_by_others(const ml_local_pool *pool) {
    /* Taken out of the loop by hand: after each acquire load the compiler has to read plain fields again. */
    const ml_view *view = pool->view;
    const unsigned char *records = (const unsigned char *)ml_view_record(view, pool->index, 0);
    const ml_u64 *publishers = pool->entry->publishers;
    uint64_t stride = view->record_stride, sum = 0;
    unsigned slot_count = view->slot_count, me = pool->me;
    ML_FOR_EACH_SLOT(i, ML_SLOT_BITS(publishers), slot_count) {
        if (i == me) continue;
        sum += ML_WORD_COMMITTED(ml_load_acquire(&((const ml_record *)(const void *)(records + i * stride))->word));
    }
    return sum;
}

static uint64_t clamp_difference(uint64_t plus, uint64_t minus, uint64_t top) {
    return ml_min_u64(ml_sub_sat(plus, minus), top);
}

/* One pool's free, from words: bytes and whether it is known. Under M. */
static int pool_free(ml_local_pool *pool, uint64_t *bytes) {
    const ml_totals *totals = current_totals(pool);
    if (!totals->known) return ML_NOT_READY;
    uint64_t taken = ml_committed_by_others(pool) + ml_units_ceil(pool->held, pool->shift);
    *bytes = clamp_difference(totals->units, taken, ML_UNITS_MAX) << pool->shift;
    *bytes = ml_min_u64(*bytes, totals->own_free_bytes);
    return ML_OK;
}

int ml_device_free(ml_device *device, uint64_t *bytes) {
    ml_ledger *ledger = device->ledger;
    if (ml_is_forked(ledger)) return ML_SLOW_FORK;
    if (ML_LIKELY(ml_device_unchanged(device))) {
        uint64_t cached = ml_load_acquire(&device->cached);
        *bytes = cached;
        return cached == UINT64_MAX ? ML_NOT_READY : ML_OK;
    }
    if (ml_load_relaxed(&ledger->closed)) return ML_ERR_CLOSED;
    if (!ml_lock_try(&ledger->lock)) return ML_SLOW_LOCK;
    uint64_t least = UINT64_MAX, tag[ML_LEVELS_MAX];
    int status = ML_OK;
    for (unsigned l = 0; l < device->level_count; l++) {
        /* [O3] Before the scan: a publish that the scan missed raises the counter after this load, so the next call
         * scans again. Other end: the raise at the end of every publish. Else: a stale figure stays for ever. */
        ml_local_pool *pool = device->level[l];
        uint64_t level_free = 0;
        tag[l] = ml_load_acquire(&pool->entry->change);
        if (ML_UNLIKELY(ml_load_acquire(&pool->entry->state) != pool->entry_state)) {
            ml_lock_release(&ledger->lock);
            return ML_SLOW_LOST;
        }
        if (pool_free(pool, &level_free) == ML_OK)
            least = ml_min_u64(least, level_free);
        else if (l == 0)
            status = ML_NOT_READY; /* the device's own total is unknown: an outer bound alone would pretend */
    }
    /* The figure before its tags: who finds the tags current reads a figure at least as new as they are. */
    ml_store_release(&device->cached, status == ML_OK ? least : UINT64_MAX);
    for (unsigned l = 0; l < device->level_count; l++) ml_store_release(&device->tag[l], tag[l]);
    *bytes = least;
    ml_lock_release(&ledger->lock);
    return status;
}

/* What another member's releasable bytes are worth: only while its record stands still, since bytes that go from
 * held to free, or from claim to releasable, would otherwise count twice. */
static void add_member(const ml_record *record, ml_figures *out, uint64_t *others_units, bool mine) {
    ml_figure f = {0};
    uint64_t version = 0, before = 0, after = 0;
    bool still = false;
    for (int i = 0; i < AVAILABLE_TRIES && !still; i++) {
        before = ml_load_acquire(&record->word);
        if (!ml_record_read(record, &f, &version)) continue;
        after = ml_load_acquire(&record->word);
        still = ml_load_acquire(&record->version) == version;
    }
    out->held = ml_add_sat(out->held, f.held);
    out->pinned = ml_add_sat(out->pinned, f.pinned);
    out->claimed = ml_add_sat(out->claimed, f.claims);
    out->releasable = ml_add_sat(out->releasable, still ? f.releasable : 0);
    if (mine) return;
    out->claimed_by_others = ml_add_sat(out->claimed_by_others, f.claims);
    *others_units += ml_max_u64(ML_WORD_COMMITTED(before), ML_WORD_COMMITTED(after));
}

void ml_figures_of(const ml_view *view, const ml_pool *entry, unsigned index, unsigned shift, unsigned me,
                   uint64_t own_held, uint64_t own_claims, const ml_totals *totals, ml_figures *out) {
    uint64_t others_units = 0;
    memset(out, 0, sizeof *out);
    ML_FOR_EACH_SLOT(i, ML_SLOT_BITS(entry->publishers), view->slot_count) {
        add_member(ml_view_record(view, index, i), out, &others_units, i == me);
    }
    out->own_held = own_held;
    out->own_claimed = own_claims;
    const ml_sample *s = &totals->sample;
    out->headroom = totals->headroom_bytes;
    out->flags = totals->flags;
    if (!totals->known) {
        out->reason = s->sequence ? s->reason : ML_REASON_NO_PROBE;
        return;
    }
    bool read = !(totals->flags & ML_FIGURES_LEDGER);
    out->source = read ? s->source : ML_SOURCE_LEDGER;
    out->scope = read ? s->scope : ML_SCOPE_NONE;
    out->reason = read ? (totals->flags & ML_FIGURES_FROZEN ? ML_REASON_FROZEN : ML_REASON_NONE)
                       : (s->sequence ? s->reason : ML_REASON_NO_PROBE);
    if (!view->shared && out->reason == ML_REASON_NONE) out->reason = ML_REASON_PRIVATE;
    out->reserved = read ? s->reserved : 0;
    out->unaccounted = read ? s->unaccounted : 0;
    bool whole = read && view->shared && !(totals->flags & ML_FIGURES_PROCESS);
    out->flags |= ML_FIGURES_KNOWN | (whole ? ML_FIGURES_COMPLETE : 0);
    uint64_t usable = totals->usable_bytes, owned = ml_sub_sat(usable, out->unaccounted);
    uint64_t own_units = ml_units_ceil(own_held, shift);
    out->total = read ? s->total : ml_add_sat(usable, out->headroom);
    out->free = clamp_difference(totals->units, others_units + own_units, ML_UNITS_MAX) << shift;
    out->budget = ml_min_u64(ml_sub_sat(totals->units, others_units) << shift, owned);
    /* F may be below zero here, so the releasable bytes are added before the subtraction. */
    uint64_t plus = ml_add_sat(totals->units << shift, out->releasable);
    out->available = clamp_difference(plus, (others_units + own_units) << shift, owned);
    if (totals->own_free_bytes != UINT64_MAX) {
        uint64_t own_free = totals->own_free_bytes;
        out->free = ml_min_u64(out->free, own_free);
        out->budget = ml_min_u64(out->budget, ml_add_sat(own_free, own_held));
        out->available = ml_min_u64(out->available, ml_add_sat(own_free, out->releasable));
    }
    uint64_t taken = ml_add_sat(ml_add_sat(out->unaccounted, out->held), out->claimed);
    out->overcommit = ml_sub_sat(taken, usable);
}

/* Over a chain: the smallest, except overcommit; what others claim, and where the figure comes from, are those of
 * the level that binds. */
static void join_levels(ml_figures *sum, const ml_figures *level, unsigned number) {
    if (number == 0) {
        *sum = *level;
        return;
    }
    uint32_t complete = sum->flags & level->flags & ML_FIGURES_COMPLETE;
    sum->flags = (sum->flags & ~(uint32_t)ML_FIGURES_COMPLETE) | complete;
    if (!(sum->flags & ML_FIGURES_KNOWN) || !(level->flags & ML_FIGURES_KNOWN)) return;
    sum->overcommit = ml_max_u64(sum->overcommit, level->overcommit);
    sum->available = ml_min_u64(sum->available, level->available);
    sum->budget = ml_min_u64(sum->budget, level->budget);
    sum->total = ml_min_u64(sum->total, level->total);
    if (level->free >= sum->free) return;
    sum->free = level->free;
    sum->claimed_by_others = level->claimed_by_others;
    sum->source = level->source;
    sum->scope = level->scope;
    sum->reason = level->reason;
    sum->flags = (level->flags & ~(uint32_t)ML_FIGURES_COMPLETE) | complete;
    sum->level = number;
}

int ml_device_figures(ml_device *device, ml_figures *out) {
    ml_ledger *ledger = device->ledger;
    if (ml_is_forked(ledger)) return ML_SLOW_FORK;
    if (ml_load_relaxed(&ledger->closed)) return ML_ERR_CLOSED;
    ml_mark_asked(ledger);
    if (!ml_lock_try(&ledger->lock)) return ML_SLOW_LOCK;
    bool lost = false;
    for (unsigned l = 0; l < device->level_count && !lost; l++) {
        ml_local_pool *pool = device->level[l];
        ml_figures level;
        lost = ml_load_acquire(&pool->entry->state) != pool->entry_state;
        ml_figures_of(pool->view, pool->entry, pool->index, pool->shift, pool->me, pool->held, pool->claims,
                      ml_totals_get(pool), &level);
        join_levels(out, &level, l);
    }
    bool whole = ledger->mode != ML_MODE_PRIVATE && !ml_load_relaxed(&ledger->foreign_layout);
    ml_lock_release(&ledger->lock);
    if (lost) return ML_SLOW_LOST;
    if (!whole) out->flags &= ~(uint32_t)ML_FIGURES_COMPLETE;
    return out->flags & ML_FIGURES_KNOWN ? ML_OK : ML_NOT_READY;
}
