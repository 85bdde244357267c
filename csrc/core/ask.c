/* Asks: one member wants another to release bytes of a pool. docs/protocols.md, "Ask".
 *
 * One word beside the victim's record says who is asking it for how much; it is taken by CAS from idle, so one ask at a
 * time per victim and pool, and given back by CAS from exactly what was stored. The answer stands in the victim's own
 * record while the word says answered; its asker takes it by one CAS to idle, so it is credited at most once. Nothing
 * here waits. */
#include "core/core.h"

#include <string.h>

/* state (bits 0..1) | asker + 1 (2..10) | sequence (11..23) | generation of the victim (24..33) | units (34..63) */
#define IDLE 0u
#define ASKED 1u
#define ACCEPTED 2u
#define ANSWERED 3u
#define UNREAD_NS UINT64_C(1000000000) /* for so long the victim leaves an answer to an asker that is stopped */
#define ASK(state, asker, sequence, generation, units)                                    \
    ((uint64_t)(state) | (uint64_t)(asker) << 2 | ((uint64_t)(sequence) & 0x1fff) << 11 | \
     ((uint64_t)(generation) & 0x3ff) << 24 | (uint64_t)(units) << 34)
#define ASK_STATE(word) ((unsigned)((word) & 3))
#define ASK_ASKER(word) ((unsigned)((word) >> 2 & 0x1ff))
#define ASK_SEQUENCE(word) ((word) >> 11 & 0x1fff)
#define ASK_GENERATION(word) ((word) >> 24 & 0x3ff)
#define ASK_UNITS(word) ((word) >> 34)
/* What names one ask: everything but its state. */
#define ASK_NAME(word) ((word) & ~UINT64_C(3))

/* The answer to an ask: asker, sequence and generation as in its word (bits 2..33), and the outcome (34..63). */
#define ANSWER_NAME(word) ((word) & UINT64_C(0x3fffffffc))
#define ANSWER(outcome, word) (ANSWER_NAME(word) | (uint64_t)(outcome) << 34)
#define ANSWER_OUTCOME(answer) ((int)((answer) >> 34))

static void raise_attention(ml_view *view, unsigned slot) {
    ml_slot *s = ml_view_slot(view, slot);
    ML_KILL_POINT("ask.attention");
    ml_fetch_or_seq_cst(&s->attention, ML_ATTENTION_ASK);
    ML_KILL_POINT("ask.wake");
    ml_fetch_add_seq_cst(&s->wake, 1);
    os_wake((uint32_t *)(void *)&s->wake);
}

uint64_t ml_asking_begin(ml_ledger *ledger) {
    if (ml_enter_wait(ledger) != ML_OK) return 0;
    uint64_t ticket = 0;
    if (ledger->seat.slot) {
        ML_KILL_POINT("ask.ticket");
        ticket = ml_fetch_add_seq_cst(&ml_view_header(ledger->view)->ask_ticket, 1) + 1;
        ML_KILL_POINT("ask.asking");
        ml_exchange_seq_cst(&ledger->seat.slot->asking, ticket);
    }
    ml_lock_release(&ledger->lock);
    return ticket;
}

void ml_asking_end(ml_ledger *ledger) {
    if (ml_enter_wait(ledger) != ML_OK) return;
    if (ledger->seat.slot) {
        ML_KILL_POINT("ask.asking_end");
        ml_store_release(&ledger->seat.slot->asking, 0);
    }
    ml_lock_release(&ledger->lock);
}

static bool is_live(uint64_t slot_word) {
    return ML_SLOT_STATE(slot_word) == ML_SLOT_LIVE;
}

/* Is somebody there who will read this answer? Who has ended its ask does not. */
static bool is_awaited(const ml_view *view, uint64_t word) {
    unsigned asker = ASK_ASKER(word);
    if (asker == 0 || asker > view->slot_count) return false;
    const ml_slot *slot = ml_view_slot(view, asker - 1);
    return is_live(ml_load_acquire(&slot->state)) && ml_load_acquire(&slot->asking) != 0;
}

/* Under M. */
static int send(ml_ledger *ledger, ml_local_pool *pool, unsigned victim, uint64_t bytes, ml_ask *ask) {
    if (pool->me == ML_NO_SLOT || victim >= pool->view->slot_count || victim == pool->me) return ML_ERR_ARGUMENT;
    uint64_t slot_word = ml_load_acquire(&ml_view_slot(pool->view, victim)->state);
    if (!is_live(slot_word)) return ML_EXPIRED;
    ml_u64 *ask_word = &ml_view_record(pool->view, pool->index, victim)->ask;
    uint64_t old = ml_load_acquire(ask_word);
    uint64_t generation = ML_SLOT_GENERATION(slot_word);
    /* Of an earlier owner of the slot: nobody will ever answer it. */
    bool stale = ASK_GENERATION(old) != (generation & 0x3ff);
    bool left = ASK_STATE(old) == ANSWERED && !is_awaited(pool->view, old);
    if (ASK_STATE(old) != IDLE && !stale && !left) return ML_BUSY;
    uint64_t word = ASK(ASKED, pool->me + 1, ASK_SEQUENCE(old) + 1, generation, ml_units_ceil(bytes, pool->shift));
    ML_KILL_POINT("ask.send");
    if (!ml_cas_seq_cst(ask_word, old, word)) return ML_BUSY;
    *ask = (ml_ask){.pool = (unsigned)(pool - ledger->pool),
                    .victim = victim,
                    .word = word,
                    .victim_generation = generation,
                    .view = pool->view};
    return ML_OK;
}

int ml_ask_send(ml_ledger *ledger, unsigned number, unsigned victim, uint64_t bytes, ml_ask *ask) {
    int status = ml_enter_wait(ledger);
    if (status != ML_OK) return status;
    ml_view *view = NULL;
    status = ML_ERR_ARGUMENT;
    if (number < ledger->pool_count && bytes > 0) {
        view = ledger->pool[number].view;
        status = send(ledger, &ledger->pool[number], victim, bytes, ask);
    }
    ml_lock_release(&ledger->lock);
    if (status == ML_OK) {
        raise_attention(view, victim);
        (void)ml_ledger_count(ledger, ML_COUNT_ASKED, 1);
    }
    return status;
}

/* The victim's record, or NULL when this handle has moved to another segment since. Under M. */
static ml_record *record_of(ml_ledger *ledger, unsigned number, unsigned slot, const void *view) {
    if (number >= ledger->pool_count) return NULL;
    const ml_local_pool *pool = &ledger->pool[number];
    if (pool->view != view || slot >= pool->view->slot_count) return NULL;
    return ml_view_record(pool->view, pool->index, slot);
}

/* Under M. */
static int poll(ml_ledger *ledger, const ml_ask *ask, int *outcome, uint64_t *bytes) {
    ml_record *record = record_of(ledger, ask->pool, ask->victim, ask->view);
    if (!record) return ML_EXPIRED;
    /* [O8] The word first: both parts of the answer were stored before it said answered. Other end:
     * ml_request_answer. Else: our own word, and the bytes of an earlier ask. */
    uint64_t word = ml_load_acquire(&record->ask);
    if (word == (ASK_NAME(ask->word) | ANSWERED)) {
        uint64_t answer = ml_load_acquire(&record->answer);
        uint64_t freed = ml_min_u64(ml_load_acquire(&record->answer_bytes), ML_BYTES_MAX);
        int said = ANSWER_OUTCOME(answer);
        ML_KILL_POINT("ask.taken");
        /* Until this succeeds nobody else may have the cell; so what was read is ours, and is credited once. */
        if (!ml_cas_seq_cst(&record->ask, word, ASK_NAME(word) | IDLE)) return ML_EXPIRED;
        if (ANSWER_NAME(answer) != ANSWER_NAME(word) || said < ML_ANSWER_DONE || said > ML_ANSWER_BUSY)
            return ML_EXPIRED;
        *bytes = freed;
        *outcome = said;
        return ML_OK;
    }
    const ml_slot *slot = ml_view_slot(ledger->pool[ask->pool].view, ask->victim);
    if (ml_load_acquire(&slot->state) != ML_SLOT_WORD(ask->victim_generation, ML_SLOT_LIVE)) return ML_EXPIRED;
    return ASK_NAME(word) == ASK_NAME(ask->word) && ASK_STATE(word) != IDLE ? ML_NOT_READY : ML_EXPIRED;
}

int ml_ask_poll(ml_ledger *ledger, const ml_ask *ask, int *outcome, uint64_t *bytes) {
    *outcome = 0;
    *bytes = 0;
    int status = ml_enter_wait(ledger);
    if (status != ML_OK) return status;
    status = poll(ledger, ask, outcome, bytes);
    ml_lock_release(&ledger->lock);
    return status;
}

int ml_ask_withdraw(ml_ledger *ledger, const ml_ask *ask) {
    int status = ml_enter_wait(ledger);
    if (status != ML_OK) return status;
    ml_record *record = record_of(ledger, ask->pool, ask->victim, ask->view);
    status = ML_OK;
    if (record) {
        uint64_t idle = ASK_NAME(ask->word) | IDLE;
        ML_KILL_POINT("ask.withdraw");
        /* Accepted or not: whoever is in the middle of an answer finds it gone, and nobody is credited. */
        bool taken = ml_cas_seq_cst(&record->ask, ask->word, idle);
        if (!taken) {
            ML_KILL_POINT("ask.withdraw_accepted");
            taken = ml_cas_seq_cst(&record->ask, ASK_NAME(ask->word) | ACCEPTED, idle);
        }
        if (!taken) status = ML_BUSY;
    }
    ml_lock_release(&ledger->lock);
    return status;
}

/* ---- the victim ---- */

static bool accept(ml_ledger *ledger, ml_local_pool *pool, ml_request *out) {
    uint64_t word = ml_load_acquire(&pool->own->ask);
    if (ASK_STATE(word) != ASKED || ASK_GENERATION(word) != (ledger->seat.generation & 0x3ff)) return false;
    ML_KILL_POINT("ask.accept");
    if (!ml_cas_seq_cst(&pool->own->ask, word, ASK_NAME(word) | ACCEPTED)) return false;
    *out = (ml_request){.pool = (unsigned)(pool - ledger->pool),
                        .asker = ASK_ASKER(word) - 1,
                        .bytes = ASK_UNITS(word) << pool->shift,
                        .word = word,
                        .view = pool->view};
    return true;
}

int ml_request_next(ml_ledger *ledger, ml_request *out) {
    int status = ml_enter_wait(ledger);
    if (status != ML_OK) return status;
    status = ML_NOT_READY;
    /* Cleared first, then looked: an ask that comes meanwhile raises it again. */
    if (ledger->seat.slot) {
        ML_KILL_POINT("ask.attention_clear");
        ml_fetch_and_seq_cst(&ledger->seat.slot->attention, ~(uint64_t)ML_ATTENTION_ASK);
    }
    for (unsigned n = 0; n < ledger->pool_count && status != ML_OK; n++) {
        ml_local_pool *pool = &ledger->pool[n];
        if (pool->view == ledger->view && pool->me != ML_NO_SLOT && accept(ledger, pool, out)) status = ML_OK;
    }
    /* There may be more: the next call looks again. */
    if (status == ML_OK) {
        ML_KILL_POINT("ask.attention_again");
        ml_fetch_or_seq_cst(&ledger->seat.slot->attention, ML_ATTENTION_ASK);
    }
    ml_lock_release(&ledger->lock);
    return status;
}

int ml_request_answer(ml_ledger *ledger, const ml_request *request, int outcome, uint64_t bytes) {
    if (outcome < ML_ANSWER_DONE || outcome > ML_ANSWER_BUSY) return ML_ERR_ARGUMENT;
    int status = ml_enter_wait(ledger);
    if (status != ML_OK) return status;
    ml_view *view = NULL;
    unsigned me = request->pool < ledger->pool_count ? ledger->pool[request->pool].me : ML_NO_SLOT;
    ml_record *own = me == ML_NO_SLOT ? NULL : record_of(ledger, request->pool, me, request->view);
    status = ML_EXPIRED;
    /* Only while the ask stands: the cell may hold the answer to a later one, which its asker has not read yet. */
    if (own && ml_load_acquire(&own->ask) == (ASK_NAME(request->word) | ACCEPTED)) {
        ML_KILL_POINT("ask.answer_bytes");
        ml_store_release(&own->answer_bytes, bytes);
        ML_KILL_POINT("ask.answer");
        ml_store_release(&own->answer, ANSWER(outcome, request->word));
        ML_KILL_POINT("ask.answered");
        /* [O8] Fails when it was taken back meanwhile: then no word ever leads to what was stored. */
        if (ml_cas_seq_cst(&own->ask, ASK_NAME(request->word) | ACCEPTED, ASK_NAME(request->word) | ANSWERED)) {
            status = ML_OK;
            view = ledger->pool[request->pool].view;
        }
    }
    ml_lock_release(&ledger->lock);
    if (status == ML_OK && request->asker < view->slot_count) {
        ml_slot *asker = ml_view_slot(view, request->asker);
        ML_KILL_POINT("ask.wake_asker");
        ml_fetch_add_seq_cst(&asker->wake, 1);
        os_wake((uint32_t *)(void *)&asker->wake);
        (void)ml_ledger_count(ledger, bytes ? ML_COUNT_ANSWERED : ML_COUNT_DECLINED, 1);
    }
    return status;
}

/* Under M: an answer that its asker does not fetch, since it is stopped, must not keep others from asking. */
static void drop_unread(ml_local_pool *pool, uint64_t now_ns) {
    uint64_t word = ml_load_acquire(&pool->own->ask);
    if (ASK_STATE(word) != ANSWERED) {
        pool->answered_word = 0;
    } else if (word != pool->answered_word) {
        pool->answered_word = word;
        pool->answered_ns = now_ns;
    } else if (now_ns - pool->answered_ns >= UNREAD_NS) {
        ML_KILL_POINT("ask.unread");
        (void)ml_cas_seq_cst(&pool->own->ask, word, ASK_NAME(word) | IDLE);
    }
}

void ml_ask_tick(ml_ledger *ledger, uint64_t now_ns) {
    ml_lock_wait(&ledger->lock);
    for (unsigned n = 0; n < ledger->pool_count && ledger->seat.slot; n++) {
        ml_local_pool *pool = &ledger->pool[n];
        if (pool->view == ledger->view && pool->me != ML_NO_SLOT) drop_unread(pool, now_ns);
    }
    ml_lock_release(&ledger->lock);
}

void ml_ask_forget(ml_view *view, unsigned index, unsigned slot) {
    const ml_pool *pool = ml_view_pool(view, index);
    ML_FOR_EACH_SLOT(i, ML_SLOT_BITS(pool->publishers), view->slot_count) {
        ml_u64 *ask = &ml_view_record(view, index, i)->ask;
        uint64_t word = ml_load_acquire(ask);
        if (ASK_STATE(word) == IDLE || ASK_ASKER(word) != slot + 1) continue;
        ML_KILL_POINT("ask.forget");
        (void)ml_cas_seq_cst(ask, word, ASK_NAME(word) | IDLE);
    }
}

/* ---- choosing ---- */

static bool in_prompt(const ml_view *view, const ml_slot *slot) {
    uint64_t leader = ml_load_acquire(&slot->leader);
    unsigned index = (unsigned)(leader & 0xffff);
    if (index == 0 || index > view->slot_count) return false;
    const ml_slot *leads = ml_view_slot(view, index - 1);
    return ml_load_acquire(&leads->state) == ML_SLOT_WORD(leader >> 16, ML_SLOT_LIVE) &&
           (ml_load_acquire(&leads->prompt) & 1);
}

unsigned ml_ask_victims(ml_ledger *ledger, unsigned number, ml_victim *out, unsigned capacity) {
    unsigned count = 0;
    if (ml_enter_wait(ledger) != ML_OK) return 0;
    /* Who has no slot cannot be answered. */
    if (number < ledger->pool_count && ledger->pool[number].me != ML_NO_SLOT) {
        const ml_local_pool *pool = &ledger->pool[number];
        ML_FOR_EACH_SLOT(i, ML_SLOT_BITS(pool->entry->publishers), pool->view->slot_count) {
            const ml_record *record = ml_view_record(pool->view, pool->index, i);
            const ml_slot *slot = ml_view_slot(pool->view, i);
            uint64_t slot_word = ml_load_acquire(&slot->state), version;
            ml_figure f;
            if (i == pool->me || count == capacity || !is_live(slot_word)) continue;
            if (!ml_record_read(record, &f, &version) || f.releasable == 0) continue;
            out[count++] = (ml_victim){.slot = i,
                                       .generation = ML_SLOT_GENERATION(slot_word),
                                       .held = f.held,
                                       .releasable = f.releasable,
                                       .asking = ml_load_acquire(&slot->asking),
                                       .window = ml_load_acquire(&record->window) != 0,
                                       .prompt = in_prompt(pool->view, slot)};
        }
    }
    ml_lock_release(&ledger->lock);
    return count;
}
