/* Taking back what the dead left. Proof of death is the kernel's: the lock on the slot's byte is free. Sweepers hold
 * it shared while they clear, so that one which is stopped in the middle does not keep the dead one's bytes for
 * ever, and no new owner can come in between. */
#include "core/core.h"

#include <stdlib.h>
#include <string.h>

#define OPEN_SWEEPS (sizeof((ml_ledger *)0)->sweeps / sizeof(os_probe *))

typedef struct sweep_state {
    os_probe probe;
    ml_view *view;
    unsigned me; /* the sweeper's own slot in it */
} sweep_state;

/* Does the slot have anything that a sweep would clear? */
static bool has_left_something(const ml_view *view, unsigned slot) {
    if (ml_slot_in_use(view, slot)) return true;
    for (unsigned p = 0; p < view->pool_count; p++) {
        const ml_pool *pool = ml_view_pool(view, p);
        if (ml_load_acquire(&pool->publishers[slot / 64]) >> (slot % 64) & 1) return true;
        if (ml_load_acquire(&pool->openers[slot / 64]) >> (slot % 64) & 1) return true;
    }
    return false;
}

static uint64_t left_in(const ml_view *view, unsigned pool, unsigned slot) {
    ml_figure f;
    uint64_t version;
    const ml_record *record = ml_view_record(view, pool, slot);
    (void)ml_record_read(record, &f, &version);
    return ml_add_sat(f.held, f.claims);
}

static void note_wanted(ml_ledger *ledger, sweep_state *state, ml_sweep *out) {
    ml_lock_wait(&ledger->lock);
    for (unsigned n = 0; n < ledger->pool_count; n++) {
        ml_local_pool *pool = &ledger->pool[n];
        if (pool->view != state->view) continue;
        for (unsigned i = 0; i < state->view->slot_count; i++) {
            if (ml_bit_in(out->dead, i) && left_in(state->view, pool->index, i)) out->want_reading |= UINT64_C(1) << n;
        }
    }
    ml_lock_release(&ledger->lock);
}

/* A child that is forked meanwhile must not keep the locks: its fork hook closes what stands here. */
static bool register_probe(ml_ledger *ledger, os_probe *probe) {
    for (size_t i = 1; i < OPEN_SWEEPS; i++) {
        if (ledger->sweeps[i]) continue;
        ledger->sweeps[i] = probe;
        return true;
    }
    return false;
}

static void unregister_probe(ml_ledger *ledger, const os_probe *probe) {
    for (size_t i = 1; i < OPEN_SWEEPS; i++)
        if (ledger->sweeps[i] == probe) ledger->sweeps[i] = NULL;
}

static void finish(ml_ledger *ledger, ml_sweep *sweep) {
    sweep_state *state = sweep->state;
    if (!state) return;
    ml_lock_wait(&ledger->lock);
    unregister_probe(ledger, &state->probe);
    ml_lock_release(&ledger->lock);
    os_probe_close(&state->probe);
    free(state);
    sweep->state = NULL;
}

#define MANY_SLOTS 16 /* below, looking at all costs a few microseconds */

static unsigned slots_in_use(const ml_view *view) {
    unsigned count = 0;
    for (unsigned i = 0; i < view->slot_count; i++) count += ml_slot_in_use(view, i);
    return count;
}

/* Look at the other slots from the own one on, and hold the locks of those that are dead. */
static void find_dead(sweep_state *state, bool full, ml_sweep *out) {
    const ml_view *view = state->view;
    unsigned start = state->me == ML_NO_SLOT ? 0 : state->me + 1;
    bool to_next_only = !full && slots_in_use(view) > MANY_SLOTS;
    for (unsigned n = 0; n < view->slot_count; n++) {
        unsigned i = (start + n) % view->slot_count;
        if (i == state->me || !has_left_something(view, i)) continue;
        os_answer held = os_probe_held(&state->probe, i);
        if (held == OS_YES && to_next_only && ml_slot_in_use(view, i)) return;
        if (held != OS_NO || os_probe_share(&state->probe, i) != OS_OK) continue;
        out->dead[i / 64] |= UINT64_C(1) << (i % 64);
        out->count++;
    }
}

static bool has_candidates(const ml_view *view, unsigned me) {
    for (unsigned i = 0; i < view->slot_count; i++)
        if (i != me && has_left_something(view, i)) return true;
    return false;
}

int ml_sweep_begin_in(ml_ledger *ledger, ml_view *view, unsigned me, bool full, ml_sweep *out) {
    os_error error;
    memset(out, 0, sizeof *out);
    if (!view->shared || !has_candidates(view, me)) return ML_OK;
    sweep_state *state = calloc(1, sizeof *state);
    if (!state) return ML_ERR_MEMORY;
    state->view = view;
    state->me = me;
    state->probe.fd = -1;
    out->state = state;
    os_fork_guard_lock();
    os_status opened = os_probe_open(view->path, &view->segment, view->lock_kind, &state->probe, &error);
    ml_lock_wait(&ledger->lock);
    bool registered = opened == OS_OK && register_probe(ledger, &state->probe);
    ml_lock_release(&ledger->lock);
    os_fork_guard_unlock();
    if (!registered) {
        finish(ledger, out);
        return opened == OS_OK ? ML_BUSY : ML_ERR_SYSTEM;
    }
    find_dead(state, full, out);
    if (out->count == 0)
        finish(ledger, out);
    else
        note_wanted(ledger, state, out);
    return ML_OK;
}

static int begin(ml_ledger *ledger, bool full, ml_sweep *out) {
    if (ml_is_forked(ledger)) (void)ml_ledger_recover(ledger, ML_SLOW_FORK);
    ml_lock_wait(&ledger->lock);
    ml_view *view = ledger->view;
    unsigned me = ledger->seat.me;
    ml_lock_release(&ledger->lock);
    return ml_sweep_begin_in(ledger, view, me, full, out);
}

int ml_sweep_begin(ml_ledger *ledger, ml_sweep *out) {
    return begin(ledger, true, out);
}

int ml_sweep_begin_near(ml_ledger *ledger, ml_sweep *out) {
    return begin(ledger, false, out);
}

/* Is the newest reading of this pool one of ours that left all of `dead` out? Under M. */
static bool left_out(const ml_ledger *ledger, const ml_view *view, unsigned index, const uint64_t *dead) {
    for (unsigned n = 0; n < ledger->pool_count; n++) {
        const ml_local_pool *pool = &ledger->pool[n];
        if (pool->view != view || pool->index != index || !pool->excluded_newest) continue;
        bool all = ml_load_acquire(&pool->entry->newest) == pool->excluded_newest;
        for (unsigned w = 0; w < ML_SLOT_WORDS; w++) all = all && !(dead[w] & ~pool->excluded_dead[w]);
        return all;
    }
    return false;
}

/* Where the newest reading may still count the dead, move their bytes from held to unaccounted: the driver may have
 * them yet, and the next reading tells. Two sweepers that subtract twice err on the safe side. */
static void carry_all(ml_ledger *ledger, const ml_sweep *sweep) {
    sweep_state *state = sweep->state;
    if (state->me == ML_NO_SLOT) return; /* no ring of readings to write into; the next reader corrects it */
    ml_lock_wait(&ledger->lock);
    /* Left, or moved to another slot since: then that ring is no longer ours to write. */
    bool ours = ledger->seat.slot && ledger->seat.me == state->me && ledger->view == state->view;
    for (unsigned p = 0; ours && p < state->view->pool_count; p++)
        if (!left_out(ledger, state->view, p, sweep->dead)) ml_reading_carry(state->view, p, state->me, sweep->dead);
    ml_lock_release(&ledger->lock);
}

int ml_sweep_commit(ml_ledger *ledger, ml_sweep *sweep, uint64_t *freed_bytes) {
    sweep_state *state = sweep->state;
    *freed_bytes = 0;
    if (!state) return ML_OK;
    ml_view *view = state->view;
    carry_all(ledger, sweep);
    for (unsigned i = 0; i < view->slot_count; i++) {
        if (!ml_bit_in(sweep->dead, i)) continue;
        for (unsigned p = 0; p < view->pool_count; p++) *freed_bytes = ml_add_sat(*freed_bytes, left_in(view, p, i));
        ml_slot *slot = ml_view_slot(view, i);
        uint64_t word = ml_load_acquire(&slot->state);
        ml_slot_clear(view, i);
        ML_KILL_POINT("sweep.free");
        if (ML_SLOT_STATE(word) != ML_SLOT_FREE &&
            ml_cas_seq_cst(&slot->state, word, ML_SLOT_WORD(ML_SLOT_GENERATION(word), ML_SLOT_FREE))) {
            ML_KILL_POINT("sweep.count");
            ml_fetch_add_seq_cst(&ml_view_header(view)->sweep_count, 1);
        }
        os_probe_release(&state->probe, i);
    }
    finish(ledger, sweep);
    return ML_OK;
}
