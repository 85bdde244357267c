/* The pool table: which entry stands for which key. Entries are made under the table's lock and published by one
 * store; opening an existing one needs no lock. */
#include "core/core.h"

#include <stdlib.h>
#include <string.h>

#define TABLE_LOCK_NS UINT64_C(50000000)
#define ATTACH_TRIES 8

static bool names_match(const ml_u64 *words, const char *name) {
    char text[ML_KEY_BYTES];
    if (ml_load_acquire(&words[0]) == 0 || !name[0]) return false;
    ml_words_load(words, ML_KEY_WORDS, text);
    return strcmp(text, name) == 0;
}

/* Is `name` one of the entry's names? */
static bool entry_has(const ml_pool *entry, const char *name) {
    if (names_match(entry->key, name)) return true;
    for (unsigned a = 0; a < ML_ALIASES_MAX; a++)
        if (names_match(entry->alias[a], name)) return true;
    return false;
}

static bool entry_is(const ml_pool *entry, const ml_local_pool *pool) {
    if (ML_SLOT_STATE(ml_load_acquire(&entry->state)) != ML_POOL_USED) return false;
    if (entry_has(entry, pool->key)) return true;
    for (unsigned a = 0; a < ML_ALIASES_MAX; a++)
        if (entry_has(entry, pool->alias[a])) return true;
    return false;
}

static int find(const ml_view *view, const ml_local_pool *pool) {
    for (unsigned p = 0; p < view->pool_count; p++)
        if (entry_is(ml_view_pool(view, p), pool)) return (int)p;
    return -1;
}

static bool has_openers(const ml_pool *entry) {
    for (unsigned w = 0; w < ML_SLOT_WORDS; w++)
        if (ml_load_seq_cst(&entry->openers[w])) return true;
    return false;
}

/* Smallest shift >= 12 with which `largest` fits a claim word. Never changed for an entry, since words of two units
 * cannot be added. */
static unsigned shift_for(uint64_t largest) {
    unsigned shift = 12;
    while (shift < 34 && (largest >> shift) > ML_UNITS_MAX) shift++;
    return shift;
}

/* Under the table's lock: an entry that nobody has open, for another device. False: somebody has. */
static bool reclaim(ml_pool *entry) {
    uint64_t word = ml_load_acquire(&entry->state);
    /* Not even for a moment one that is in use: whoever is killed before it opens it again would leave it closed. */
    if (has_openers(entry)) return false;
    /* [O5] Closed first, then looked at. Other end: open_entry sets its bit, then looks at the state. Else: an opener
     * and we miss each other, and it publishes into another device's entry. */
    ML_KILL_POINT("pool.recycle");
    ml_exchange_seq_cst(&entry->state, ML_SLOT_WORD(ML_SLOT_GENERATION(word) + 1, ML_POOL_MERGED));
    if (!has_openers(entry)) return true;
    ML_KILL_POINT("pool.reopen");
    ml_exchange_seq_cst(&entry->state, word);
    return false;
}

/* Under the table's lock: make an entry, in a free place or in one that nobody has open. */
static int make(ml_view *view, const ml_local_pool *pool) {
    for (int pass = 0; pass < 2; pass++) {
        for (unsigned p = 0; p < view->pool_count; p++) {
            ml_pool *entry = ml_view_pool(view, p);
            uint64_t word = ml_load_acquire(&entry->state);
            bool used = ML_SLOT_STATE(word) != ML_POOL_FREE;
            if (used != (pass == 1)) continue;
            if (used && !reclaim(entry)) continue;
            uint64_t next = ML_SLOT_GENERATION(ml_load_acquire(&entry->state)) + 1;
            ML_KILL_POINT("pool.newest");
            ml_store_release(&entry->newest, 0);
            ML_KILL_POINT("pool.ticket");
            ml_store_release(&entry->ticket, 0);
            ML_KILL_POINT("pool.shift");
            ml_store_release(&entry->shift, shift_for(pool->largest_bytes));
            ML_KILL_POINT("pool.kind");
            ml_store_release(&entry->kind, pool->kind);
            for (unsigned a = 0; a < ML_ALIASES_MAX; a++) ml_words_store(entry->alias[a], ML_KEY_WORDS, pool->alias[a]);
            ml_words_store(entry->key, ML_KEY_WORDS, pool->key);
            ML_KILL_POINT("pool.change");
            ml_fetch_add_seq_cst(&entry->change, 1);
            ML_KILL_POINT("pool.param_version");
            ml_fetch_add_seq_cst(&entry->param_version, 1);
            ML_KILL_POINT("pool.used");
            ml_exchange_seq_cst(&entry->state, ML_SLOT_WORD(next, ML_POOL_USED));
            return (int)p;
        }
    }
    return -1;
}

/* Under the table's lock: names that we know and the entry does not. */
static void add_aliases(ml_pool *entry, const ml_local_pool *pool) {
    for (unsigned a = 0; a <= ML_ALIASES_MAX; a++) {
        const char *name = a < ML_ALIASES_MAX ? pool->alias[a] : pool->key;
        if (!name[0] || entry_has(entry, name)) continue;
        for (unsigned e = 0; e < ML_ALIASES_MAX; e++) {
            if (ml_load_relaxed(&entry->alias[e][0])) continue;
            ml_words_store(entry->alias[e], ML_KEY_WORDS, name);
            break;
        }
    }
}

/* Under the table's lock: entries that we know to be the same device as `kept` are closed. Their openers find the state
 * changed, look their name up again, and move to `kept` with all they publish. Until each has done so its held bytes
 * are unaccounted there, so they are missing from no figure. */
static void merge_others(ml_view *view, unsigned kept, const ml_local_pool *pool) {
    for (unsigned p = 0; p < view->pool_count; p++) {
        ml_pool *entry = ml_view_pool(view, p);
        if (p == kept || !entry_is(entry, pool)) continue;
        uint64_t word = ml_load_acquire(&entry->state);
        ML_KILL_POINT("pool.merge");
        ml_exchange_seq_cst(&entry->state, ML_SLOT_WORD(ML_SLOT_GENERATION(word) + 1, ML_POOL_MERGED));
        ML_KILL_POINT("pool.merge_change");
        ml_fetch_add_seq_cst(&entry->change, 1);
    }
}

static bool stands_alone(const ml_view *view, unsigned kept, const ml_local_pool *pool) {
    for (unsigned p = 0; p < view->pool_count; p++)
        if (p != kept && entry_is(ml_view_pool(view, p), pool)) return false;
    return true;
}

static bool knows_all(const ml_pool *entry, const ml_local_pool *pool) {
    if (!entry_has(entry, pool->key)) return false;
    for (unsigned a = 0; a < ML_ALIASES_MAX; a++)
        if (pool->alias[a][0] && !entry_has(entry, pool->alias[a])) return false;
    return true;
}

/* Say that we have it open, and make sure that it is still what we looked up. */
static bool open_entry(ml_view *view, unsigned index, const ml_local_pool *pool, unsigned me) {
    ml_pool *entry = ml_view_pool(view, index);
    if (me != ML_NO_SLOT) {
        ML_KILL_POINT("pool.openers");
        ml_bit_set(entry->openers, me);
    }
    if (entry_is(entry, pool)) return true; /* [O5] */
    if (me != ML_NO_SLOT) {
        ML_KILL_POINT("pool.openers_clear");
        ml_bit_clear(entry->openers, me);
    }
    return false;
}

void ml_pool_attach(ml_local_pool *pool, ml_view *view, unsigned index, unsigned me) {
    ml_pool *entry = ml_view_pool(view, index);
    uint64_t shift = ml_load_relaxed(&entry->shift);
    pool->view = view;
    pool->entry = entry;
    pool->index = index;
    pool->me = me;
    pool->own = me == ML_NO_SLOT ? &pool->scratch : ml_view_record(view, index, me);
    pool->shift = (unsigned)(shift < 12 ? 12 : shift > 34 ? 34 : shift);
    /* Closed since it was looked up: then it is lost, and tick looks again. */
    uint64_t state = ml_load_acquire(&entry->state);
    pool->entry_state = ML_SLOT_STATE(state) == ML_POOL_USED ? state : 0;
    pool->totals_valid = false;
    pool->published = false;
    pool->newest_seen_ns = 0;
    pool->excluded_newest = 0;
    ml_ptr_store_release(&pool->change, &entry->change);
}

/* Where to attach; takes the table's lock only to make an entry or to add a name. */
static int locate(ml_ledger *ledger, const ml_local_pool *pool, ml_view *view) {
    int index = find(view, pool);
    if (index >= 0 && knows_all(ml_view_pool(view, (unsigned)index), pool) && stands_alone(view, (unsigned)index, pool))
        return index;
    if (!view->shared) return index >= 0 ? index : make(view, pool);
    os_probe *probe = calloc(1, sizeof *probe);
    os_error error;
    if (!probe) return index >= 0 ? index : -2;
    int result = index >= 0 ? index : -2;
    os_fork_guard_lock();
    os_status opened = os_probe_open(view->path, &view->segment, view->lock_kind, probe, &error);
    /* Before the guard is left: closed in a child that is forked meanwhile. Place 0 is that of who has the cold lock.
     */
    if (opened == OS_OK) ledger->sweeps[0] = probe;
    os_fork_guard_unlock();
    if (opened == OS_OK) {
        if (os_probe_exclude(probe, OS_LOCK_TABLE, os_now_ns() + TABLE_LOCK_NS) == OS_OK) {
            index = find(view, pool);
            if (index < 0) {
                index = make(view, pool);
            } else {
                /* The names before the merge: whoever is sent away must find them here. */
                add_aliases(ml_view_pool(view, (unsigned)index), pool);
                merge_others(view, (unsigned)index, pool);
            }
            result = index;
            os_probe_release(probe, OS_LOCK_TABLE);
        }
        ledger->sweeps[0] = NULL;
        os_probe_close(probe);
    }
    free(probe);
    return result;
}

int ml_pool_open(ml_ledger *ledger, const ml_local_pool *pool, ml_view *view, unsigned me, unsigned *index) {
    for (int i = 0; i < ATTACH_TRIES; i++) {
        int found = locate(ledger, pool, view);
        if (found < 0) return found == -1 ? ML_FULL : ML_BUSY;
        *index = (unsigned)found;
        if (open_entry(view, *index, pool, me)) return ML_OK;
    }
    return ML_BUSY;
}

void ml_pool_publish_params(ml_local_pool *pool) {
    ml_record *own = pool->own;
    if (pool->me == ML_NO_SLOT) return; /* nobody would see it, and nobody would take it back */
    ML_KILL_POINT("params.publishers");
    ml_bit_set(pool->entry->publishers, pool->me);
    ML_KILL_POINT("params.headroom");
    ml_store_release(&own->headroom, pool->headroom);
    ML_KILL_POINT("params.limit");
    ml_store_release(&own->limit, pool->limit == UINT64_MAX ? 0 : pool->limit + 1);
    ML_KILL_POINT("params.floor");
    ml_store_release(&own->floor, pool->floor_bytes);
    ML_KILL_POINT("params.version");
    ml_fetch_add_seq_cst(&pool->entry->param_version, 1);
    ML_KILL_POINT("params.change");
    ml_fetch_add_seq_cst(&pool->entry->change, 1);
}

void ml_pool_republish(ml_ledger *ledger, ml_local_pool *pool) {
    if (pool->headroom || pool->limit != UINT64_MAX || pool->floor_bytes) ml_pool_publish_params(pool);
    if (!pool->held && !pool->claims && !pool->releasable && !pool->pinned) return;
    ML_KILL_POINT("republish.publishers");
    if (pool->me != ML_NO_SLOT) ml_bit_set(pool->entry->publishers, pool->me);
    pool->published = true;
    ML_KILL_POINT("republish.first_held");
    ml_store_release(&pool->own->first_held, pool->held);
    ML_KILL_POINT("republish.first_sequence");
    ml_store_release(&pool->own->first_sequence, ml_load_acquire(&pool->entry->newest) >> 16);
    ML_KILL_POINT("republish.word");
    ml_store_release(&pool->own->word, ML_WORD(ml_committed_units(pool), 0, 0));
    ml_record_publish(pool, ledger->seat.generation);
    ML_KILL_POINT("republish.change");
    ml_fetch_add_seq_cst(&pool->entry->change, 1);
}
