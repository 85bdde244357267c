/* Slots: one per member, at a fixed index, with a generation. Who holds the kernel's lock on a slot's byte owns it;
 * the state word only says how far its owner has come. */
#include "core/core.h"

#include <string.h>

bool ml_slot_in_use(const ml_view *view, unsigned slot) {
    return ML_SLOT_STATE(ml_load_acquire(&ml_view_slot(view, slot)->state)) != ML_SLOT_FREE;
}

/* Zero one record, if it is not zero yet. Idempotent: two sweepers write the same zeros under the same version. Also
 * where only the word has bytes (its owner died between the two): a (committed, version) pair must never come back, on
 * which the exact refusal in claim.c relies. */
static void clear_record(ml_view *view, unsigned index, unsigned slot, uint64_t generation) {
    ml_pool *pool = ml_view_pool(view, index);
    ml_record *record = ml_view_record(view, index, slot);
    ml_figure f;
    uint64_t version = ml_load_acquire(&record->version), read_version;
    bool read = ml_record_read(record, &f, &read_version);
    bool changed = false;
    if (!read || f.held || f.releasable || f.pinned || f.claims || ml_load_acquire(&record->word)) {
        ml_record_publish_zero(record, version, generation);
        changed = true;
    }
    if (ml_load_relaxed(&record->word) != 0) {
        ML_KILL_POINT("clear.word");
        ml_exchange_seq_cst(&record->word, 0);
        changed = true;
    }
    if (ml_load_relaxed(&record->waiting) != 0) {
        ML_KILL_POINT("clear.waiting");
        ml_store_release(&record->waiting, 0);
        changed = true;
    }
    /* No change counter for these: they are in no figure. A stale ask finds another generation, or its word gone. */
    if (ml_load_relaxed(&record->ask) & 3) {
        ML_KILL_POINT("clear.ask");
        ml_store_release(&record->ask, ml_load_relaxed(&record->ask) & ~UINT64_C(3));
    }
    if (ml_load_relaxed(&record->window)) {
        ML_KILL_POINT("clear.window");
        ml_store_release(&record->window, 0);
    }
    for (unsigned a = 0; a < ML_ACCOUNTS_MAX; a++) {
        if (ml_load_relaxed(&record->account_held[a])) {
            ML_KILL_POINT("clear.account_held");
            ml_store_release(&record->account_held[a], 0);
        }
    }
    if (ml_load_relaxed(&record->headroom) || ml_load_relaxed(&record->limit) || ml_load_relaxed(&record->floor)) {
        ML_KILL_POINT("clear.headroom");
        ml_store_release(&record->headroom, 0);
        ML_KILL_POINT("clear.limit");
        ml_store_release(&record->limit, 0);
        ML_KILL_POINT("clear.floor");
        ml_store_release(&record->floor, 0);
        ML_KILL_POINT("clear.params");
        ml_fetch_add_seq_cst(&pool->param_version, 1);
        changed = true;
    }
    if (changed) {
        ML_KILL_POINT("clear.change");
        ml_fetch_add_seq_cst(&pool->change, 1);
    }
}

void ml_slot_clear_pool(ml_view *view, unsigned index, unsigned slot) {
    ml_pool *pool = ml_view_pool(view, index);
    clear_record(view, index, slot, ML_SLOT_GENERATION(ml_load_acquire(&ml_view_slot(view, slot)->state)));
    ml_ask_forget(view, index, slot);
    /* After the record: a set bit over zeros costs a scan one load, zeros without a bit cost nothing, but bytes without
     * a bit would be invisible. */
    ML_KILL_POINT("clear.publishers");
    if (ml_load_relaxed(&pool->publishers[slot / 64]) >> (slot % 64) & 1) ml_bit_clear(pool->publishers, slot);
    ML_KILL_POINT("clear.openers");
    if (ml_load_relaxed(&pool->openers[slot / 64]) >> (slot % 64) & 1) ml_bit_clear(pool->openers, slot);
}

void ml_slot_clear(ml_view *view, unsigned slot) {
    for (unsigned p = 0; p < view->pool_count; p++) ml_slot_clear_pool(view, p, slot);
}

static inline void put(ml_u64 *field, uint64_t value) {
    ML_KILL_POINT("join.identity");
    ml_store_relaxed(field, value);
}

static void describe_self(const ml_ledger *ledger, ml_slot *slot) {
    os_identity self;
    os_identity_self(&self);
    put(&slot->token, os_random_u64());
    put(&slot->pid, self.pid);
    put(&slot->parent_pid, self.parent_pid);
    put(&slot->pid_namespace, self.pid_namespace);
    put(&slot->start_ticks, self.start_ticks);
    put(&slot->boot_id[0], self.boot_id[0]);
    put(&slot->boot_id[1], self.boot_id[1]);
    put(&slot->user_id, self.user_id);
    put(&slot->role, (uint64_t)ledger->options.role);
    put(&slot->joined_ns, os_boottime_ns());
    put(&slot->wake, 0);
    put(&slot->asked, 0);
    ml_words_store(slot->label, ML_LABEL_WORDS, ledger->label);
    ml_words_store(slot->program, ML_LABEL_WORDS, ledger->program);
    ml_words_store(slot->version, 4, ledger->version);
    put(&slot->group, ledger->options.group);
    ml_u64 *const cleared[] = {&slot->attention,  &slot->interrupt, &slot->free_request, &slot->prompt,
                               &slot->prompt_key, &slot->leader,    &slot->asking};
    for (size_t i = 0; i < sizeof cleared / sizeof *cleared; i++) put(cleared[i], 0);
    for (unsigned c = 0; c < ML_COUNTERS; c++) put(&slot->counter[c], 0);
    for (unsigned a = 0; a < ML_ACCOUNTS_MAX; a++) ml_words_store(slot->account[a], 2, "");
}

static int take(const ml_ledger *ledger, ml_view *view, unsigned index, ml_seat *seat, os_error *error) {
    os_token token = {0};
    if (view->shared) {
        os_status status = os_token_take(view->path, &view->segment, view->lock_kind, index, &token, error);
        if (status == OS_BUSY) return ML_BUSY;
        if (status != OS_OK) return ML_ERR_SYSTEM;
    }
    /* From here the slot is ours alone, whatever its state says: the last owner may have been killed anywhere. */
    ml_slot *slot = ml_view_slot(view, index);
    uint64_t generation = ML_SLOT_GENERATION(ml_load_acquire(&slot->state)) + 1;
    ml_slot_clear(view, index);
    ML_KILL_POINT("join.joining");
    ml_exchange_seq_cst(&slot->state, ML_SLOT_WORD(generation, ML_SLOT_JOINING));
    describe_self(ledger, slot);
    ML_KILL_POINT("join.live");
    ml_exchange_seq_cst(&slot->state, ML_SLOT_WORD(generation, ML_SLOT_LIVE));
    *seat = (ml_seat){.slot = slot, .slot_word = ML_SLOT_WORD(generation, ML_SLOT_LIVE), .me = index, .token = token};
    seat->generation = ML_SLOT_GENERATION(seat->slot_word);
    return ML_OK;
}

int ml_slot_join(const ml_ledger *ledger, ml_view *view, ml_seat *seat, os_error *error) {
    for (unsigned i = 0; i < view->slot_count; i++) {
        if (ml_slot_in_use(view, i)) continue;
        int status = take(ledger, view, i, seat, error);
        if (status != ML_BUSY) return status;
    }
    return ML_FULL;
}

void ml_slot_leave(ml_view *view, unsigned index, uint64_t slot_word) {
    ml_slot *slot = ml_view_slot(view, index);
    uint64_t generation = ML_SLOT_GENERATION(slot_word);
    ML_KILL_POINT("leave.dying");
    if (!ml_cas_seq_cst(&slot->state, slot_word, ML_SLOT_WORD(generation, ML_SLOT_DYING))) return;
    ml_slot_clear(view, index);
    ML_KILL_POINT("leave.free");
    ml_cas_seq_cst(&slot->state, ML_SLOT_WORD(generation, ML_SLOT_DYING), ML_SLOT_WORD(generation, ML_SLOT_FREE));
}

int ml_slot_liveness(const ml_view *view, unsigned slot, os_probe *probe) {
    unsigned state = ML_SLOT_STATE(ml_load_acquire(&ml_view_slot(view, slot)->state));
    if (state == ML_SLOT_FREE) return 0;
    if (probe) {
        os_answer held = os_probe_held(probe, slot);
        if (held == OS_NO) return ML_MEMBER_DEAD;
        if (held == OS_UNKNOWN) return ML_MEMBER_UNVERIFIED;
    } else if (view->shared) {
        return ML_MEMBER_UNVERIFIED;
    }
    return state == ML_SLOT_LIVE ? ML_MEMBER_LIVE : ML_MEMBER_JOINING;
}

void ml_slot_describe(const ml_view *view, unsigned index, ml_member *out) {
    const ml_slot *slot = ml_view_slot(view, index);
    memset(out, 0, sizeof *out);
    out->slot = index;
    out->generation = ML_SLOT_GENERATION(ml_load_acquire(&slot->state));
    uint64_t role = ml_load_relaxed(&slot->role);
    out->role = role <= ML_ROLE_WORKER ? (int)role : ML_ROLE_OTHER;
    out->pid = ml_load_relaxed(&slot->pid);
    out->pid_namespace = ml_load_relaxed(&slot->pid_namespace);
    out->start_ticks = ml_load_relaxed(&slot->start_ticks);
    out->token = ml_load_relaxed(&slot->token);
    out->parent_pid = ml_load_relaxed(&slot->parent_pid);
    out->joined_ns = ml_load_relaxed(&slot->joined_ns);
    uint64_t leader = ml_load_relaxed(&slot->leader) & 0xffff;
    out->leader = leader >= 1 && leader <= view->slot_count ? leader - 1 : ML_SLOTS_MAX;
    out->group = ml_load_relaxed(&slot->group);
    for (unsigned c = 0; c < ML_COUNTERS; c++) out->counter[c] = ml_load_relaxed(&slot->counter[c]);
    for (unsigned a = 0; a < ML_ACCOUNTS_MAX; a++) ml_words_load(slot->account[a], 2, out->account[a]);
    ml_words_load(slot->label, ML_LABEL_WORDS, out->label);
    ml_words_load(slot->program, ML_LABEL_WORDS, out->program);
    ml_words_load(slot->version, 4, out->version);
}
