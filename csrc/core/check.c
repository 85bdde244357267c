/* Walks a segment in which nobody is inside a call, and reports each broken invariant by its number. The numbers are
 * those of docs/design.md, "Invariants"; they are never renumbered. */
#include "core/snapshot.h"

#include <stdio.h>
#include <string.h>

typedef struct findings {
    ml_finding *out;
    unsigned capacity, count;
} findings;

static void report(findings *f, unsigned invariant, unsigned pool, unsigned slot, uint64_t expected, uint64_t actual,
                   const char *text) {
    if (f->count < f->capacity) {
        ml_finding *finding = &f->out[f->count];
        *finding =
            (ml_finding){.invariant = invariant, .pool = pool, .slot = slot, .expected = expected, .actual = actual};
        snprintf(finding->text, sizeof finding->text, "%s", text);
    }
    f->count++;
}

static void check_record(findings *f, const ml_view *view, unsigned p, unsigned s, unsigned shift) {
    const ml_pool *pool = ml_view_pool(view, p);
    const ml_record *record = ml_view_record(view, p, s);
    uint64_t slot_word = ml_load_acquire(&ml_view_slot(view, s)->state);
    uint64_t word = ml_load_acquire(&record->word), version = 0;
    bool publishes = ml_load_acquire(&pool->publishers[s / 64]) >> (s % 64) & 1;
    ml_figure now;
    if (!ml_record_read(record, &now, &version)) {
        report(f, 1, p, s, 0, version, "record cannot be read while nobody writes it");
        return;
    }
    const ml_copy *copy = &record->copy[version % ML_RING_COPIES];
    if (ml_load_relaxed(&copy->releasable) > ml_load_relaxed(&copy->held))
        report(f, 2, p, s, now.held, ml_load_relaxed(&copy->releasable), "releasable is above held");
    uint64_t units = ml_units_ceil(ml_add_sat(now.held, now.claims), shift);
    if (ML_WORD_COMMITTED(word) != units)
        report(f, 3, p, s, units, ML_WORD_COMMITTED(word), "committed units are not ceil((held + claims) / unit)");
    if (ML_WORD_PENDING(word))
        report(f, 4, p, s, 0, ML_WORD_PENDING(word), "a claim is pending and nobody is claiming");
    bool bytes = word || now.held || now.claims || now.pinned || now.releasable;
    if (bytes && !publishes) report(f, 5, p, s, 1, 0, "bytes without a publisher bit");
    if (bytes && ML_SLOT_STATE(slot_word) == ML_SLOT_FREE)
        report(f, 6, p, s, 0, ml_add_sat(now.held, now.claims), "a free slot has bytes");
    if (bytes && now.generation != ML_SLOT_GENERATION(slot_word))
        report(f, 7, p, s, ML_SLOT_GENERATION(slot_word), now.generation, "the record is of another generation");
    if (ml_load_acquire(&record->waiting) && ML_SLOT_STATE(slot_word) == ML_SLOT_FREE)
        report(f, 8, p, s, 0, ml_load_acquire(&record->waiting), "a free slot waits in line");
}

static void check_newest(findings *f, const ml_view *view, unsigned p) {
    ml_sample sample = {0};
    uint64_t newest = ml_load_acquire(&ml_view_pool(view, p)->newest);
    if (newest == 0) return;
    if (!ml_sample_newest(view, p, ml_view_pool(view, p), &sample) || sample.sequence != newest >> 16)
        report(f, 9, p, ML_SLOTS_MAX, newest >> 16, sample.sequence, "the newest reading is not where the pool says");
}

static bool same_name(const ml_pool *a, const ml_pool *b) {
    char name[ML_KEY_BYTES], other[ML_KEY_BYTES];
    ml_words_load(a->key, ML_KEY_WORDS, name);
    ml_words_load(b->key, ML_KEY_WORDS, other);
    return strcmp(name, other) == 0;
}

static void check_pool(findings *f, const ml_view *view, unsigned p) {
    const ml_pool *pool = ml_view_pool(view, p);
    uint64_t state = ml_load_acquire(&pool->state), shift = ml_load_relaxed(&pool->shift);
    bool used = ML_SLOT_STATE(state) == ML_POOL_USED;
    if (ML_SLOT_STATE(state) > ML_POOL_MERGED)
        report(f, 10, p, ML_SLOTS_MAX, ML_POOL_MERGED, state, "unknown pool state");
    if (used && (shift < 12 || shift > 34)) report(f, 11, p, ML_SLOTS_MAX, 12, shift, "unit shift out of 12..34");
    if (used && ml_load_relaxed(&pool->key[0]) == 0) report(f, 12, p, ML_SLOTS_MAX, 1, 0, "a pool in use has no key");
    for (unsigned q = p + 1; used && q < view->pool_count; q++) {
        const ml_pool *other = ml_view_pool(view, q);
        if (ML_SLOT_STATE(ml_load_acquire(&other->state)) == ML_POOL_USED && same_name(pool, other))
            report(f, 13, p, ML_SLOTS_MAX, p, q, "two pools have the same key");
    }
    unsigned unit = (unsigned)(shift < 12 ? 12 : shift > 34 ? 34 : shift);
    for (unsigned s = 0; s < view->slot_count; s++) {
        check_record(f, view, p, s, unit);
        bool opens = ml_load_acquire(&pool->openers[s / 64]) >> (s % 64) & 1;
        if (opens && !ml_slot_in_use(view, s)) report(f, 14, p, s, 0, 1, "a free slot has the pool open");
    }
    if (used) check_newest(f, view, p);
}

static unsigned check_view(const ml_view *view, ml_finding *out, unsigned capacity) {
    findings f = {.out = out, .capacity = capacity};
    for (unsigned s = 0; s < view->slot_count; s++) {
        unsigned state = ML_SLOT_STATE(ml_load_acquire(&ml_view_slot(view, s)->state));
        if (state > ML_SLOT_DYING) report(&f, 15, ML_POOLS_MAX, s, ML_SLOT_DYING, state, "unknown slot state");
    }
    for (unsigned p = 0; p < view->pool_count; p++) check_pool(&f, view, p);
    return f.count;
}

unsigned ml_image_check(ml_image *image, ml_finding *out, unsigned capacity) {
    return check_view(ml_image_view(image), out, capacity);
}

unsigned ml_ledger_check(ml_ledger *ledger, ml_finding *out, unsigned capacity) {
    ml_cold_lock(ledger);
    unsigned count = check_view(ledger->view, out, capacity);
    ml_cold_unlock(ledger);
    return count;
}
