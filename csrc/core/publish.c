/* Accounts: what a process holds, summed over its accounts and claims into one record per pool. */
#include "core/publish.h"
#include "core/hot.h"

#include <string.h>

#define MIRROR_TRIES 64

/* A slot's first publish in a pool. The bit before the bytes: a scan must not miss them. */
static void first_publish(ml_local_pool *pool) {
    uint64_t newest = ml_load_acquire(&pool->entry->newest);
    pool->published = true;
    ML_KILL_POINT("publish.first_held");
    ml_store_release(&pool->own->first_held, pool->held);
    ML_KILL_POINT("publish.first_sequence");
    ml_store_release(&pool->own->first_sequence, newest >> 16);
    ML_KILL_POINT("publish.publishers");
    if (pool->me != ML_NO_SLOT) ml_bit_set(pool->entry->publishers, pool->me);
}

static void store_level(ml_ledger *ledger, ml_local_pool *pool, bool growing) {
    if (ML_UNLIKELY(!pool->published)) first_publish(pool);
    uint64_t word = ML_WORD(ml_committed_units(pool), 0, 0);
    /* Growing: word, then record; shrinking: record, then word. So at every instant the word covers the record, and
     * a claimer that reads the word alone never grants bytes that somebody still holds.
     * [O6] Release: the memory was freed before the smaller word can be seen. Other end: the scan in claim.c. Else:
     * the next owner uses bytes that are still being freed. */
    if (growing) {
        ML_KILL_POINT("publish.word_up");
        ml_store_release(&pool->own->word, word);
        ml_record_publish(pool, ledger->seat.generation);
    } else {
        ml_record_publish(pool, ledger->seat.generation);
        ML_KILL_POINT("publish.word_down");
        ml_store_release(&pool->own->word, word);
    }
    /* [O3] Last: whoever sees the counter unmoved may go on using the figure from before this publish, and this call
     * has not returned yet. */
    ML_KILL_POINT("publish.change");
    ml_fetch_add_seq_cst(&pool->entry->change, 1);
}

void ml_device_store(ml_device *device, bool growing) {
    unsigned n = device->level_count;
    for (unsigned i = 0; i < n; i++) store_level(device->ledger, device->level[growing ? n - 1 - i : i], growing);
}

int ml_enter(ml_ledger *ledger) {
    if (ml_is_forked(ledger)) return ML_SLOW_FORK;
    if (!ml_lock_try(&ledger->lock)) return ML_SLOW_LOCK;
    if (ML_UNLIKELY(ml_load_relaxed(&ledger->closed))) {
        ml_lock_release(&ledger->lock);
        return ML_ERR_CLOSED;
    }
    /* Somebody took the slot for dead and swept it, or the segment was tampered with: the bytes are no longer
     * counted, and this record may be another member's now. */
    if (ML_UNLIKELY(ledger->seat.slot && ml_load_relaxed(&ledger->seat.slot->state) != ledger->seat.slot_word)) {
        ml_lock_release(&ledger->lock);
        return ML_SLOW_LOST;
    }
    return ML_OK;
}

static bool in_range(const ml_amounts *a) {
    return a->held <= ML_BYTES_MAX && a->pinned <= ML_BYTES_MAX && a->releasable <= a->held;
}

/* `sum - old + new` without leaving the range; false when it would. */
static bool replace(uint64_t *sum, uint64_t old_value, uint64_t new_value) {
    uint64_t rest = ml_sub_sat(*sum, old_value);
    if (new_value > ML_BYTES_MAX - rest) return false;
    *sum = rest + new_value;
    return true;
}

int ml_account_apply(ml_account *account, const ml_amounts *new_amounts, uint64_t claims_down, uint64_t claims_up) {
    ml_device *device = account->device;
    const ml_amounts *old = &account->amounts;
    if (!in_range(new_amounts)) return ML_ERR_FIGURE;
    /* All levels first, then all stores: a figure that some level cannot take changes nothing anywhere. */
    for (unsigned l = 0; l < device->level_count; l++) {
        const ml_local_pool *pool = device->level[l];
        uint64_t held = pool->held, pinned = pool->pinned;
        if (!replace(&held, old->held, new_amounts->held) || !replace(&pinned, old->pinned, new_amounts->pinned))
            return ML_ERR_FIGURE;
    }
    bool growing = ml_add_sat(new_amounts->held, claims_up) > ml_add_sat(old->held, claims_down);
    for (unsigned l = 0; l < device->level_count; l++) {
        ml_local_pool *pool = device->level[l];
        (void)replace(&pool->held, old->held, new_amounts->held);
        (void)replace(&pool->pinned, old->pinned, new_amounts->pinned);
        pool->releasable = ml_sub_sat(pool->releasable, old->releasable) + new_amounts->releasable;
        pool->claims = ml_add_sat(ml_sub_sat(pool->claims, claims_down), claims_up);
    }
    account->amounts = *new_amounts;
    ml_device_store(device, growing);
    return ML_OK;
}

int ml_account_publish(ml_account *account, const ml_amounts *amounts) {
    int status = ml_enter(account->device->ledger);
    if (status != ML_OK) return status;
    status = ml_account_apply(ml_account_now(account), amounts, 0, 0);
    ml_lock_release(&account->device->ledger->lock);
    return status;
}

/* a + d, where both ends of the range are errors. */
static bool add_signed(uint64_t *value, int64_t difference) {
    if (difference >= 0) {
        if ((uint64_t)difference > ML_BYTES_MAX - *value) return false;
        *value += (uint64_t)difference;
    } else {
        uint64_t down = (uint64_t)(-(difference + 1)) + 1;
        if (down > *value) return false;
        *value -= down;
    }
    return true;
}

int ml_account_add(ml_account *account, int64_t held, int64_t releasable, int64_t pinned) {
    int status = ml_enter(account->device->ledger);
    if (status != ML_OK) return status;
    account = ml_account_now(account);
    ml_amounts next = account->amounts;
    if (add_signed(&next.held, held) && add_signed(&next.releasable, releasable) && add_signed(&next.pinned, pinned))
        status = ml_account_apply(account, &next, 0, 0);
    else
        status = ML_ERR_FIGURE;
    ml_lock_release(&account->device->ledger->lock);
    return status;
}

void ml_account_get(const ml_account *account, ml_amounts *out) {
    /* In a forked child the figures are the parent's until this process has joined. */
    if (ml_is_forked(account->device->ledger)) (void)ml_ledger_recover(account->device->ledger, ML_SLOW_FORK);
    ml_lock_wait(&account->device->ledger->lock);
    *out = ml_account_now((ml_account *)account)->amounts;
    ml_lock_release(&account->device->ledger->lock);
}

/* ---- a device that is found to draw from another chain ---- */

static ml_account *account_named(ml_device *device, const char *name) {
    ml_account *account = &device->account;
    while (account && strcmp(account->name, name) != 0) account = account->next;
    return account;
}

typedef struct share {
    ml_amounts amounts;
    uint64_t claims;
} share;

/* What the device's accounts and open claims amount to, moved over to the accounts of `to`. */
static share take_over(ml_ledger *ledger, ml_device *from, ml_device *to) {
    share sum = {{0, 0, 0}, 0};
    for (ml_account *account = &from->account; account; account = account->next) {
        ml_account *heir = account_named(to, account->name);
        /* Added, since the other device may have been in use already. */
        heir->amounts.held = ml_add_sat(heir->amounts.held, account->amounts.held);
        heir->amounts.releasable = ml_add_sat(heir->amounts.releasable, account->amounts.releasable);
        heir->amounts.pinned = ml_add_sat(heir->amounts.pinned, account->amounts.pinned);
        heir->moved_to = NULL; /* a move back */
        account->moved_to = heir;
        sum.amounts.held += account->amounts.held;
        sum.amounts.releasable += account->amounts.releasable;
        sum.amounts.pinned += account->amounts.pinned;
        account->amounts = (ml_amounts){0, 0, 0};
    }
    for (ml_claim *claim = ledger->claims; claim; claim = claim->next) {
        if (!claim->account || claim->account->device != from) continue;
        sum.claims += claim->open_bytes;
        claim->account = account_named(to, claim->account->name);
    }
    return sum;
}

static bool has_level(const ml_device *device, const ml_local_pool *pool) {
    for (unsigned l = 0; l < device->level_count; l++)
        if (device->level[l] == pool) return true;
    return false;
}

static void add_share(ml_local_pool *pool, const share *s) {
    pool->held = ml_add_sat(pool->held, s->amounts.held);
    pool->releasable = ml_add_sat(pool->releasable, s->amounts.releasable);
    pool->pinned = ml_add_sat(pool->pinned, s->amounts.pinned);
    pool->claims = ml_add_sat(pool->claims, s->claims);
}

static void remove_share(ml_local_pool *pool, const share *s) {
    pool->held = ml_sub_sat(pool->held, s->amounts.held);
    pool->releasable = ml_sub_sat(pool->releasable, s->amounts.releasable);
    pool->pinned = ml_sub_sat(pool->pinned, s->amounts.pinned);
    pool->claims = ml_sub_sat(pool->claims, s->claims);
}

/* Headroom and assumed total are the device's own level's. */
static void move_params(ml_local_pool *from, ml_local_pool *to) {
    if (from == to || (from->headroom == 0 && from->limit == UINT64_MAX)) return;
    to->headroom = ml_max_u64(to->headroom, from->headroom);
    to->limit = ml_min_u64(to->limit, from->limit);
    from->headroom = 0;
    from->limit = UINT64_MAX;
    ml_pool_publish_params(to);
    ml_pool_publish_params(from);
}

/* Floors stand at every level. */
static void move_floors(const ml_device *from, const ml_device *to) {
    uint64_t highest = 0;
    for (unsigned l = 0; l < from->level_count; l++) highest = ml_max_u64(highest, from->level[l]->floor_bytes);
    if (highest == 0) return;
    for (unsigned l = 0; l < to->level_count; l++) {
        to->level[l]->floor_bytes = ml_max_u64(to->level[l]->floor_bytes, highest);
        ml_pool_publish_params(to->level[l]);
    }
    for (unsigned l = 0; l < from->level_count; l++) {
        if (has_level(to, from->level[l])) continue;
        from->level[l]->floor_bytes = 0;
        ml_pool_publish_params(from->level[l]);
    }
}

/* Accounts of the same names at `to`, then M: another thread may be making one meanwhile. */
static int enter_with_accounts(ml_device *from, ml_device *to) {
    for (int i = 0; i < MIRROR_TRIES; i++) {
        bool all = true;
        int status = ml_enter_wait(from->ledger);
        if (status != ML_OK) return status;
        char missing[sizeof from->account.name] = "";
        for (const ml_account *account = from->account.next; account && all; account = account->next) {
            all = account_named(to, account->name) != NULL;
            if (!all) memcpy(missing, account->name, sizeof missing);
        }
        if (all) return ML_OK;
        ml_lock_release(&from->ledger->lock);
        ml_account *made;
        status = ml_account_open(to, missing, &made);
        if (status != ML_OK) return status;
    }
    return ML_BUSY;
}

int ml_device_move(ml_device *from, ml_device *to) {
    if (from == to) return ML_OK;
    if (from->ledger != to->ledger) return ML_ERR_ARGUMENT;
    int status = enter_with_accounts(from, to);
    if (status != ML_OK) return status;
    share s = take_over(from->ledger, from, to);
    move_params(from->level[0], to->level[0]);
    move_floors(from, to);
    /* New levels first, so that the bytes are missing from no figure; levels of both chains keep what they have. */
    for (unsigned l = to->level_count; l-- > 0;) {
        if (has_level(from, to->level[l])) continue;
        ML_KILL_POINT("device_move.new_level");
        add_share(to->level[l], &s);
        store_level(from->ledger, to->level[l], true);
    }
    for (unsigned l = 0; l < from->level_count; l++) {
        if (has_level(to, from->level[l])) continue;
        ML_KILL_POINT("device_move.old_level");
        remove_share(from->level[l], &s);
        store_level(from->ledger, from->level[l], false);
    }
    ml_lock_release(&from->ledger->lock);
    return ML_OK;
}
