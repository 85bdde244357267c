/* Claims: bytes promised before they are allocated. docs/claims.md has the protocol, its argument and its numbers.
 *
 * A claimer stores what it wants as *pending* in its own word at every level of the chain, then scans everybody's
 * words, and moves its own from pending to committed by one CAS per level. Committed units refuse; pending ones only
 * hinder, and whoever is hindered may clear them by CAS: so a claimer that is stopped hinders nobody. */
#include "core/claim.h"
#include "core/hot.h"
#include "core/publish.h"
#include "core/waiting.h"

#include <string.h>

#define HOT_ATTEMPTS 3
#define COLD_ATTEMPTS 64
#define REFUSAL_TRIES 4

typedef enum outcome { GRANTED, REFUSED, WAITING, HINDERED, LOST, MOVED } outcome;

typedef struct attempt {
    ml_device *device;
    uint64_t bytes;
    unsigned number; /* of this attempt, from 0 */
    unsigned age;
    bool cold;
    uint64_t random;
    bool unknown;   /* a level has nothing to check against, or nobody to check with */
    bool unchecked; /* that, or it fits only because a frozen source is not believed */
    uint64_t committed[ML_LEVELS_MAX], units[ML_LEVELS_MAX], mine[ML_LEVELS_MAX];
    uint64_t wanted[ML_LEVELS_MAX]; /* own units after the grant; not saturated, unlike those in a word */
    uint64_t top[ML_LEVELS_MAX];    /* T', UINT64_MAX when unknown */
    uint64_t room[ML_LEVELS_MAX];   /* bytes that this process's own reading leaves; UINT64_MAX less its claims: no such
                                       bound */
    uint64_t surely[ML_LEVELS_MAX]; /* below top where the source is frozen: what fits between is granted unchecked */
    uint64_t gone[ML_LEVELS_MAX][ML_SLOT_WORDS];
    ml_ticket *ticket; /* NULL in hot calls */
} attempt;

static ml_u64 *own_word(const attempt *a, unsigned level) {
    return &a->device->level[level]->own->word;
}
static const ml_u64 *word_of(const attempt *a, unsigned level, unsigned slot) {
    const ml_local_pool *pool = a->device->level[level];
    return &ml_view_record(pool->view, pool->index, slot)->word;
}

/* Pending at all levels, before any scan. */
static void set_pending(attempt *a) {
    for (unsigned i = a->device->level_count; i-- > 0;) {
        ml_local_pool *pool = a->device->level[i];
        uint64_t bytes = ml_add_sat(ml_add_sat(pool->held, pool->claims), a->bytes);
        if (ML_UNLIKELY(!pool->published && pool->me != ML_NO_SLOT)) {
            ML_KILL_POINT("claim.publishers");
            ml_bit_set(pool->entry->publishers, pool->me);
        }
        a->committed[i] = ml_committed_units(pool);
        a->wanted[i] = (bytes >> pool->shift) + ((bytes & ((UINT64_C(1) << pool->shift) - 1)) != 0);
        a->units[i] = ml_min_u64(a->wanted[i], ML_UNITS_MAX) - a->committed[i];
        a->mine[i] = ML_WORD(a->committed[i], a->units[i], a->age);
        memset(a->gone[i], 0, sizeof a->gone[i]);
        /* [O7] A seq_cst exchange, and the scan's loads seq_cst too: of two claimers at least one sees the other.
         * Other end: the scan's loads. Else: both see an empty pool and both are granted (acq_rel: shown by a model
         * checker; a plain release store: 833 times in 4 s on x86). */
        ML_KILL_POINT("claim.pending");
        ml_exchange_seq_cst(own_word(a, i), a->mine[i]);
    }
    for (unsigned i = 0; i < a->device->level_count; i++) {
        const ml_totals *totals = ml_totals_get(a->device->level[i]);
        a->room[i] = ml_sub_sat(totals->own_free_bytes, a->device->level[i]->claims);
        a->surely[i] = totals->known ? totals->units : UINT64_MAX;
        a->top[i] = totals->known ? ml_max_u64(totals->units, totals->thawed_units) : UINT64_MAX;
        if (!totals->known || !a->device->level[i]->view->shared) a->unknown = true;
    }
}

static void clear_pending(attempt *a) {
    for (unsigned i = a->device->level_count; i-- > 0;) {
        ML_KILL_POINT("claim.clear_pending");
        ml_store_release(own_word(a, i), ML_WORD(a->committed[i], 0, 0));
    }
}

typedef struct sums {
    uint64_t committed, pending;
    uint64_t waiting; /* not 0: somebody stands in line here */
} sums;

static sums scan(attempt *a, unsigned level, uint64_t seen[ML_SLOTS_MAX]) {
    const ml_local_pool *pool = a->device->level[level];
    sums s = {a->wanted[level], 0, 0};
    ML_FOR_EACH_SLOT(i, ML_SLOT_BITS(pool->entry->publishers), pool->view->slot_count) {
        if (i == pool->me) continue;
        const ml_record *record = ml_view_record(pool->view, pool->index, i);
        /* [O7] Also the acquire of [O6]: whose smaller word is seen here has freed the memory before. */
        uint64_t word = ml_load_seq_cst(&record->word);
        seen[i] = word;
        s.waiting |= ml_load_acquire(&record->waiting);
        s.committed += ML_WORD_COMMITTED(word);
        /* A member whose pending was once absent or aborted has started anew since: its later pendings come after
         * ours, so it is that member which will see us. Without this a lower one that re-tries at once hinders a
         * higher one for ever. */
        if (ml_bit_in(a->gone[level], i)) continue;
        if (ML_WORD_PENDING(word))
            s.pending += ML_WORD_PENDING(word);
        else
            a->gone[level][i / 64] |= UINT64_C(1) << (i % 64);
    }
    return s;
}

/* One pass over a level for surely_full. The digests stand for 256 kept words: equal digests of two passes are taken
 * for equal passes; an error (2^-64) refuses one claim wrongly. */
typedef struct pass {
    uint64_t total, words, versions;
    bool agree; /* each word is what its record says */
} pass;

static pass pass_over(const attempt *a, unsigned level) {
    const ml_local_pool *pool = a->device->level[level];
    pass p = {.total = a->wanted[level], .agree = true};
    ML_FOR_EACH_SLOT(i, ML_SLOT_BITS(pool->entry->publishers), pool->view->slot_count) {
        if (i == pool->me) continue;
        const ml_record *record = ml_view_record(pool->view, pool->index, i);
        uint64_t committed = ML_WORD_COMMITTED(ml_load_seq_cst(&record->word)), version = 0;
        ml_figure f;
        bool read = ml_record_read(record, &f, &version);
        p.agree = p.agree && read && ml_units_ceil(ml_add_sat(f.held, f.claims), pool->shift) == committed;
        p.total += committed;
        p.words = (p.words ^ committed) * UINT64_C(0x9e3779b97f4a7c15) + i;
        p.versions = (p.versions ^ version) * UINT64_C(0xc2b2ae3d27d4eb4f) + i;
    }
    return p;
}

/* Bytes that move from one member to another during a scan count twice, so a refusal is exact only if two passes find
 * the same words, and either the change counter stood still from before the first to after the second, or every version
 * did and every record agrees with its word. (Words and versions alone prove nothing: a member that shrank and grew
 * again has the old pair back until it publishes. A model finds that run.) Where the tries run out the claim is refused
 * all the same: the committed units of one pass did not leave room. */
static bool surely_full(const attempt *a, unsigned level) {
    const ml_u64 *change = &a->device->level[level]->entry->change;
    for (int t = 0; t < REFUSAL_TRIES; t++) {
        uint64_t counter = ml_load_seq_cst(change);
        pass first = pass_over(a, level);
        if (first.total <= a->top[level]) return false;
        pass second = pass_over(a, level);
        if (second.total <= a->top[level]) return false;
        if (first.words != second.words) continue;
        if (ml_load_seq_cst(change) == counter) return true;
        if (first.versions == second.versions && first.agree && second.agree) return true;
    }
    return true;
}

/* Abort those that stand in the way at this level; older ones only after giving them time. False: own attempt was
 * aborted meanwhile. */
static bool push_through(attempt *a, unsigned level, const uint64_t seen[ML_SLOTS_MAX]) {
    const ml_local_pool *pool = a->device->level[level];
    unsigned budget = 64u << (a->number < 5 ? a->number : 5);
    ML_FOR_EACH_SLOT(i, ML_SLOT_BITS(pool->entry->publishers), pool->view->slot_count) {
        if (i == pool->me || ml_bit_in(a->gone[level], i) || !ML_WORD_PENDING(seen[i])) continue;
        uint64_t age = ML_WORD_AGE(seen[i]);
        bool older = age > a->age || (age == a->age && i < pool->me);
        for (unsigned p = 0; older && p < budget && ml_load_relaxed(word_of(a, level, i)) == seen[i]; p++) {
            if (ml_load_relaxed(own_word(a, level)) != a->mine[level]) return false;
            ml_pause();
        }
        /* Only ever a CAS from the exact value seen: a plain store could put back an old committed. */
        ML_KILL_POINT("claim.abort");
        (void)ml_cas_acq_rel((ml_u64 *)word_of(a, level, i), seen[i],
                             ML_WORD(ML_WORD_COMMITTED(seen[i]), 0, ML_WORD_AGE(seen[i])));
        a->gone[level][i / 64] |= UINT64_C(1) << (i % 64);
        if (ml_load_relaxed(own_word(a, level)) != a->mine[level]) return false;
    }
    return true;
}

static outcome scan_levels(attempt *a) {
    uint64_t seen[ML_SLOTS_MAX];
    unsigned levels = a->device->level_count;
    for (unsigned round = 0; round <= 3 * levels; round++) {
        bool hindered = false;
        a->unchecked = a->unknown;
        for (unsigned l = 0; l < levels && !hindered; l++) {
            if (a->top[l] == UINT64_MAX) continue;
            if (a->bytes > a->room[l]) return REFUSED;
            sums s = scan(a, l, seen);
            if (s.committed > a->top[l]) {
                if (surely_full(a, l)) return REFUSED;
                hindered = true;
            } else if (s.committed + s.pending > a->top[l]) {
                if (!push_through(a, l, seen)) return LOST;
                hindered = true;
            }
            if (s.committed > a->surely[l]) a->unchecked = true;
            if (!hindered && l == levels - 1) {
                uint64_t taken = s.committed + s.pending;
                if (s.waiting && !ml_ticket_look(a->ticket, a->device->level[l], taken, a->top[l])) return WAITING;
            }
        }
        if (!hindered) return GRANTED;
    }
    return HINDERED;
}

/* Undo what was won at the outer levels, clear the rest. A won level was visible as committed for a moment, so its
 * record is published too: (committed, version) pairs never repeat, on which surely_full relies. */
static void undo(attempt *a, unsigned lost) {
    for (unsigned l = 0; l < a->device->level_count; l++) {
        ml_local_pool *pool = a->device->level[l];
        bool won = l > lost;
        if (won) ml_record_publish(pool, a->device->ledger->seat.generation);
        ML_KILL_POINT("claim.undo_word");
        ml_store_release(own_word(a, l), ML_WORD(a->committed[l], 0, 0));
        ML_KILL_POINT("claim.undo_change");
        if (won) ml_fetch_add_seq_cst(&pool->entry->change, 1);
    }
}

static bool commit(attempt *a) {
    for (unsigned l = a->device->level_count; l-- > 0;) {
        uint64_t total = ml_min_u64(a->committed[l] + a->units[l], ML_UNITS_MAX);
        ML_KILL_POINT("claim.commit");
        if (!ml_cas_acq_rel(own_word(a, l), a->mine[l], ML_WORD(total, 0, 0))) {
            undo(a, l);
            return false;
        }
    }
    return true;
}

/* Granted: the records say so too. */
static void publish_grant(attempt *a) {
    for (unsigned l = a->device->level_count; l-- > 0;) {
        ml_local_pool *pool = a->device->level[l];
        pool->claims = ml_add_sat(pool->claims, a->bytes);
        ml_record_publish(pool, a->device->ledger->seat.generation);
        ML_KILL_POINT("claim.change");
        ml_fetch_add_seq_cst(&pool->entry->change, 1);
    }
}

/* Has an entry of the chain been merged into another or recycled? Looked at after the scan: then every word that was
 * read was there before others left. */
static bool any_moved(const ml_device *device) {
    for (unsigned l = 0; l < device->level_count; l++)
        if (ml_load_seq_cst(&device->level[l]->entry->state) != device->level[l]->entry_state) return true;
    return false;
}

/* One attempt, under M. */
static outcome attempt_once(attempt *a) {
    a->unknown = false;
    set_pending(a);
    outcome result = scan_levels(a);
    if (any_moved(a->device)) result = MOVED;
    if (result == GRANTED) {
        if (!commit(a)) return LOST;
        publish_grant(a);
        return GRANTED;
    }
    clear_pending(a);
    return result;
}

static bool is_unregistered(const ml_device *device) {
    for (unsigned l = 0; l < device->level_count; l++)
        if (device->level[l]->me == ML_NO_SLOT) return true;
    return false;
}

/* No slot, so no word that others could see: promise without a check, and say so. */
static void grant_unregistered(ml_device *device, uint64_t bytes) {
    for (unsigned l = 0; l < device->level_count; l++) {
        ml_local_pool *pool = device->level[l];
        pool->claims = ml_add_sat(pool->claims, bytes);
    }
}

static void back_off(attempt *a) {
    a->random = a->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    unsigned bound = 16u << (a->number < 6 ? a->number : 6);
    for (unsigned p = (unsigned)(a->random >> 33) % bound; p > 0; p--) ml_pause();
    if (a->cold && a->number >= 9) os_yield();
}

static int status_of(outcome result) {
    return result == REFUSED ? ML_REFUSED : result == WAITING ? ML_WAITING : ML_BUSY;
}

int ml_claim_acquire(ml_account *account, uint64_t bytes, ml_ticket *ticket, bool cold, uint32_t *checked) {
    ml_ledger *ledger = account->device->ledger;
    attempt a; /* set_pending fills what belongs to levels; clearing all of it would cost more than the scan */
    a.device = account->device;
    a.bytes = bytes;
    a.cold = cold;
    a.ticket = ticket;
    a.number = a.age = 0;
    outcome result = HINDERED;
    /* Members must not back off in step: the counter's start is random and their slots differ. */
    a.random =
        ml_load_relaxed(&account->device->level[0]->entry->change) + ledger->seat.me * UINT64_C(0x9e3779b97f4a7c15);
    *checked = 0;
    for (unsigned limit = cold ? COLD_ATTEMPTS : HOT_ATTEMPTS; a.number < limit; a.number++) {
        int status = ml_enter(ledger);
        if (status != ML_OK) return status;
        account = ml_account_now(account);
        a.device = account->device;
        if (bytes == 0) {
            *checked = 1;
            return ML_OK;
        }
        if (is_unregistered(account->device)) {
            grant_unregistered(account->device, bytes);
            return ML_OK;
        }
        result = attempt_once(&a);
        if (result == GRANTED) {
            *checked = !a.unchecked;
            return ML_OK;
        }
        ml_lock_release(&ledger->lock);
        if (result == MOVED) return ML_SLOW_LOST;
        if (result == REFUSED || result == WAITING) return status_of(result);
        if (a.age < 15) a.age++;
        back_off(&a);
    }
    return status_of(result);
}
