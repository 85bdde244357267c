/* What a group shares: the words of its leader. docs/protocols.md has them with their bounds.
 *
 * Every word carries bits of the generation of the slot it was meant for, so that one which was written for a leader
 * that is gone means nothing to the next owner of the slot. */
#include "core/group.h"

#include <string.h>

#define GENERATION_BITS(generation) ((generation) & 0xfff)
#define INTERRUPT(key, sequence, generation) \
    ((uint64_t)(key) << 24 | ((uint64_t)(sequence) & 0xfff) << 12 | GENERATION_BITS(generation))
/* One ticket per flag, so that a request for one does not hide an earlier one for the other. */
#define FREE_MASK ((UINT64_C(1) << 26) - 1)
#define FREE_SHIFT(flag) ((flag) == ML_FREE_UNLOAD ? 38 : 12)
#define CAS_TRIES 64

/* The leader's slot while it lives: its words count. Gone, or never there: NULL. */
static ml_slot *leader_of(const ml_ledger *ledger, uint64_t *generation) {
    ml_slot *slot = ml_ptr_load_acquire(&ledger->leader);
    *generation = ml_load_acquire(&ledger->leader_generation);
    if (!slot || ml_load_acquire(&slot->state) != ML_SLOT_WORD(*generation, ML_SLOT_LIVE)) return NULL;
    return slot;
}

int ml_group_follow(ml_ledger *ledger, unsigned slot, uint64_t generation) {
    int status = ml_enter_wait(ledger);
    if (status != ML_OK) return status;
    bool none = slot >= ledger->view->slot_count;
    ml_ptr_store_release(&ledger->leader, NULL);
    ml_store_release(&ledger->prompt_seen, 0); /* that of another leader */
    ml_store_release(&ledger->leader_generation, generation);
    if (!none) ml_ptr_store_release(&ledger->leader, ml_view_slot(ledger->view, slot));
    if (ledger->seat.slot) {
        ML_KILL_POINT("group.leader");
        ml_store_release(&ledger->seat.slot->leader, none ? 0 : generation << 16 | (slot + 1));
    }
    ml_lock_release(&ledger->lock);
    return ML_OK;
}

unsigned ml_group_leader(ml_ledger *ledger, uint64_t *generation) {
    /* M: the slot and the view that it is counted in must be of one moment. */
    ml_lock_wait(&ledger->lock);
    const ml_slot *slot = leader_of(ledger, generation);
    uint64_t index = ML_SLOTS_MAX;
    if (slot)
        index = ((uint64_t)((const unsigned char *)slot - ledger->view->segment.base) - ledger->view->slot_offset) /
                ledger->view->slot_stride;
    ml_lock_release(&ledger->lock);
    return (unsigned)index;
}

uint64_t ml_job_key(const char *id) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (const unsigned char *c = (const unsigned char *)id; *c; c++) hash = (hash ^ *c) * UINT64_C(1099511628211);
    hash = (hash ^ hash >> 40) & ((UINT64_C(1) << 40) - 1);
    return hash ? hash : 1;
}

int ml_group_interrupt(ml_ledger *ledger, uint64_t job_key) {
    uint64_t generation;
    ml_slot *slot = leader_of(ledger, &generation);
    if (!slot) return ML_NOT_READY;
    uint64_t running = ml_load_acquire(&slot->prompt_key);
    uint64_t key = job_key ? job_key : running;
    if (!key || (running && key != running)) {
        (void)ml_ledger_count(ledger, ML_COUNT_IGNORED, 1);
        return ML_REFUSED;
    }
    for (int i = 0; i < CAS_TRIES; i++) {
        uint64_t word = ml_load_acquire(&slot->interrupt);
        if (word >> 24 == key && GENERATION_BITS(word) == GENERATION_BITS(generation)) return ML_OK; /* it is already */
        ML_KILL_POINT("group.interrupt");
        if (ml_cas_seq_cst(&slot->interrupt, word, INTERRUPT(key, (word >> 12) + 1, generation))) return ML_OK;
    }
    return ML_BUSY;
}

bool ml_group_interrupted(const ml_ledger *ledger, uint64_t job_key) {
    uint64_t generation;
    const ml_slot *slot = leader_of(ledger, &generation);
    if (ML_LIKELY(!slot)) return false;
    uint64_t word = ml_load_acquire(&slot->interrupt);
    if (ML_LIKELY(word >> 24 == 0) || GENERATION_BITS(word) != GENERATION_BITS(generation)) return false;
    return word >> 24 == (job_key ? job_key : ml_load_acquire(&slot->prompt_key));
}

/* A new job starts clear, and an ended one leaves nothing behind. */
static void clear_interrupt(ml_slot *slot) {
    for (int i = 0; i < CAS_TRIES; i++) {
        uint64_t word = ml_load_acquire(&slot->interrupt);
        if (word >> 24 == 0) return;
        ML_KILL_POINT("group.interrupt_clear");
        if (ml_cas_seq_cst(&slot->interrupt, word, word & 0xffffff)) return;
    }
}

int ml_prompt_begin(ml_ledger *ledger, const char *id) {
    int status = ml_enter_wait(ledger);
    if (status != ML_OK) return status;
    ml_slot *slot = ledger->seat.slot;
    bool leads = slot && ml_ptr_load_acquire(&ledger->leader) == slot;
    if (leads) {
        uint64_t sequence = (ml_load_relaxed(&slot->prompt) >> 1) + 1;
        ML_KILL_POINT("prompt.key");
        ml_store_release(&slot->prompt_key, 0);
        clear_interrupt(slot);
        ml_words_store(slot->prompt_id[sequence % 2], ML_LABEL_WORDS, id);
        ML_KILL_POINT("prompt.begin");
        ml_store_release(&slot->prompt_key, ml_job_key(id));
        ML_KILL_POINT("prompt.running");
        ml_store_release(&slot->prompt, sequence << 1 | 1);
    }
    ml_lock_release(&ledger->lock);
    return leads ? ML_OK : ML_REFUSED;
}

int ml_prompt_end(ml_ledger *ledger) {
    int status = ml_enter_wait(ledger);
    if (status != ML_OK) return status;
    ml_slot *slot = ledger->seat.slot;
    bool leads = slot && ml_ptr_load_acquire(&ledger->leader) == slot;
    if (leads) {
        ML_KILL_POINT("prompt.end");
        ml_store_release(&slot->prompt_key, 0);
        clear_interrupt(slot);
        ML_KILL_POINT("prompt.ended");
        ml_store_release(&slot->prompt, ml_load_relaxed(&slot->prompt) & ~UINT64_C(1));
    }
    ml_lock_release(&ledger->lock);
    return leads ? ML_OK : ML_REFUSED;
}

int ml_prompt_get(ml_ledger *ledger, ml_prompt *out) {
    uint64_t generation;
    memset(out, 0, sizeof *out);
    const ml_slot *slot = leader_of(ledger, &generation);
    if (!slot) return ML_NOT_READY;
    for (int i = 0; i < CAS_TRIES; i++) {
        uint64_t word = ml_load_acquire(&slot->prompt);
        out->sequence = word >> 1;
        out->active = word & 1;
        if (out->sequence) ml_words_load(slot->prompt_id[out->sequence % 2], ML_LABEL_WORDS, out->id);
        /* The id of a sequence is rewritten two prompts later at the earliest. */
        if (ml_load_acquire(&slot->prompt) >> 1 != out->sequence) continue;
        ml_store_release(&ledger->prompt_seen, word);
        return out->sequence ? ML_OK : ML_NOT_READY;
    }
    return ML_BUSY;
}

/* ---- free ---- */

/* `word` with this request in it: per flag the later ticket stays. */
static uint64_t with_request(uint64_t word, unsigned flags, uint64_t ticket, uint64_t generation) {
    uint64_t out = GENERATION_BITS(word) == GENERATION_BITS(generation) ? word : GENERATION_BITS(generation);
    for (unsigned flag = ML_FREE_UNLOAD; flag <= ML_FREE_CACHE; flag <<= 1) {
        uint64_t old = out >> FREE_SHIFT(flag) & FREE_MASK;
        if (!(flags & flag) || (old && ((ticket - old) & FREE_MASK) > FREE_MASK / 2)) continue;
        out = (out & ~(FREE_MASK << FREE_SHIFT(flag))) | (ticket & FREE_MASK) << FREE_SHIFT(flag);
    }
    return out;
}

static int raise_free(ml_ledger *ledger, ml_u64 *word, unsigned flags, uint64_t generation) {
    uint64_t ticket;
    do { /* a field of 0 is no request */
        ML_KILL_POINT("group.free_ticket");
        ticket = ml_fetch_add_seq_cst(&ml_view_header(ledger->view)->free_ticket, 1) + 1;
    } while ((ticket & FREE_MASK) == 0);
    for (int i = 0; i < CAS_TRIES; i++) {
        uint64_t old = ml_load_acquire(word);
        ML_KILL_POINT("group.free");
        if (ml_cas_seq_cst(word, old, with_request(old, flags, ticket, generation))) return ML_OK;
    }
    return ML_BUSY;
}

int ml_free_request(ml_ledger *ledger, unsigned flags, bool all) {
    uint64_t generation = 0;
    flags &= ML_FREE_UNLOAD | ML_FREE_CACHE;
    if (!flags) return ML_ERR_ARGUMENT;
    if (ml_is_forked(ledger)) (void)ml_ledger_recover(ledger, ML_SLOW_FORK);
    if (all) return raise_free(ledger, &ml_view_header(ledger->view)->free_all, flags, 0);
    ml_slot *slot = leader_of(ledger, &generation);
    return slot ? raise_free(ledger, &slot->free_request, flags, generation) : ML_NOT_READY;
}

/* The newest request in `word` as a full ticket, and which flags were wanted after `since`. The counter was raised
 * before the word, so it is at most 2^26 ahead; 67 million requests later an old one would look new. */
static uint64_t newest_request(uint64_t word, uint64_t counter, uint64_t since, unsigned *flags) {
    uint64_t newest = 0;
    for (unsigned flag = ML_FREE_UNLOAD; flag <= ML_FREE_CACHE; flag <<= 1) {
        uint64_t field = word >> FREE_SHIFT(flag) & FREE_MASK;
        uint64_t ticket = counter - ((counter - field) & FREE_MASK);
        if (field == 0 || ticket > counter) continue;
        if (ticket > since) *flags |= flag;
        newest = ml_max_u64(newest, ticket);
    }
    return newest;
}

/* The newest request that concerns this member, and the flags of those after `since`. */
static uint64_t free_words(const ml_ledger *ledger, uint64_t since, unsigned *flags) {
    uint64_t generation;
    const ml_slot *slot = leader_of(ledger, &generation);
    const ml_header *header = ml_view_header(ledger->view);
    uint64_t all = ml_load_acquire(&header->free_all);
    uint64_t own = slot ? ml_load_acquire(&slot->free_request) : 0;
    *flags = 0;
    if (GENERATION_BITS(own) != GENERATION_BITS(generation)) own = 0;
    if (ML_LIKELY((all | own) == 0)) return 0;
    uint64_t counter = ml_load_acquire(&header->free_ticket);
    uint64_t newest = newest_request(all, counter, since, flags);
    return ml_max_u64(newest, newest_request(own, counter, since, flags));
}

uint64_t ml_free_epoch(ml_ledger *ledger, unsigned *flags) {
    if (ml_is_forked(ledger)) (void)ml_ledger_recover(ledger, ML_SLOW_FORK);
    uint64_t seen = ml_load_acquire(&ledger->free_seen);
    uint64_t epoch = free_words(ledger, seen, flags);
    if (epoch > seen) ml_store_release(&ledger->free_seen, epoch);
    return epoch;
}

void ml_group_forget(ml_ledger *ledger) {
    ml_ptr_store_release(&ledger->leader, NULL);
    /* Requests from before this process came are not for it, whoever it will follow. */
    ml_store_release(&ledger->free_seen, ml_load_acquire(&ml_view_header(ledger->view)->free_ticket));
    ml_store_release(&ledger->prompt_seen, 0);
}

unsigned ml_pending(const ml_ledger *ledger) {
    unsigned pending = 0, flags;
    uint64_t generation;
    const ml_slot *own = ledger->seat.slot;
    if (own && ML_UNLIKELY(ml_load_acquire(&own->attention) & ML_ATTENTION_ASK)) pending |= ML_PENDING_ASK;
    if (ML_UNLIKELY(free_words(ledger, UINT64_MAX, &flags) > ml_load_relaxed(&ledger->free_seen)))
        pending |= ML_PENDING_FREE;
    const ml_slot *slot = leader_of(ledger, &generation);
    if (!slot) return pending;
    if (ML_UNLIKELY(ml_group_interrupted(ledger, 0))) pending |= ML_PENDING_INTERRUPT;
    if (ml_load_acquire(&slot->prompt) != ml_load_relaxed(&ledger->prompt_seen)) pending |= ML_PENDING_PROMPT;
    return pending;
}
