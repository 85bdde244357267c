/* What is kept for people and for pins: counters, accounts by name, floors. Never on the hot path. */
#include "core/core.h"

#include <string.h>

int ml_ledger_count(ml_ledger *ledger, unsigned counter, uint64_t n) {
    if (counter >= ML_COUNTERS) return ML_ERR_ARGUMENT;
    int status = ml_enter_wait(ledger);
    if (status != ML_OK) return status;
    if (ledger->seat.slot) {
        ML_KILL_POINT("people.counter");
        ml_fetch_add_seq_cst(&ledger->seat.slot->counter[counter], n);
    }
    ml_lock_release(&ledger->lock);
    return ML_OK;
}

/* Index of a named account in the own slot; ML_ACCOUNTS_MAX: all places are taken. */
static unsigned account_place(ml_ledger *ledger, const char *name) {
    char text[16];
    for (unsigned a = 0; a < ML_ACCOUNTS_MAX; a++) {
        ml_words_load(ledger->seat.slot->account[a], 2, text);
        if (strncmp(text, name, sizeof text - 1) == 0) return a;
        if (text[0]) continue;
        ML_KILL_POINT("people.account_name");
        ml_words_store(ledger->seat.slot->account[a], 2, name);
        return a;
    }
    return ML_ACCOUNTS_MAX;
}

/* Names that are the same in their first 15 bytes share a place, and those for which there is none are left out. */
static void store_accounts(ml_ledger *ledger, ml_device *device) {
    ml_local_pool *pool = device->level[0];
    uint64_t held[ML_ACCOUNTS_MAX + 1] = {0};
    if (pool->me == ML_NO_SLOT || pool->view != ledger->view) return;
    for (const ml_account *account = device->account.next; account; account = account->next) {
        unsigned place = account_place(ledger, account->name);
        held[place] = ml_add_sat(held[place], account->amounts.held);
    }
    for (unsigned a = 0; a < ML_ACCOUNTS_MAX; a++) {
        if (ml_load_relaxed(&pool->own->account_held[a]) == held[a]) continue;
        ML_KILL_POINT("people.account_held");
        ml_store_release(&pool->own->account_held[a], held[a]);
    }
}

void ml_people_refresh(ml_ledger *ledger) {
    ml_lock_wait(&ledger->lock);
    for (ml_device *device = ledger->devices; device && ledger->seat.slot; device = device->next)
        if (device->account.next) store_accounts(ledger, device);
    ml_lock_release(&ledger->lock);
}

/* The highest floor that a member wants in this pool. */
static uint64_t highest_floor(const ml_local_pool *pool) {
    uint64_t highest = 0;
    ML_FOR_EACH_SLOT(i, ML_SLOT_BITS(pool->entry->publishers), pool->view->slot_count) {
        uint64_t bytes = ml_load_acquire(&ml_view_record(pool->view, pool->index, i)->floor);
        highest = ml_max_u64(highest, ml_min_u64(bytes, ML_BYTES_MAX));
    }
    return highest;
}

int ml_device_pin_room(ml_device *device, uint64_t *bytes) {
    *bytes = UINT64_MAX;
    int status = ml_enter_wait(device->ledger);
    if (status != ML_OK) return status;
    for (unsigned l = 0; l < device->level_count; l++) {
        ml_local_pool *pool = device->level[l];
        const ml_totals *totals = ml_totals_get(pool);
        if (!totals->known) {
            if (l == 0) status = ML_NOT_READY;
            continue;
        }
        uint64_t taken = ml_committed_by_others(pool) + ml_units_ceil(pool->held, pool->shift);
        uint64_t level_free = ml_sub_sat(totals->units, taken) << pool->shift;
        *bytes = ml_min_u64(*bytes, ml_sub_sat(level_free, highest_floor(pool)));
    }
    ml_lock_release(&device->ledger->lock);
    return status;
}

int ml_device_set_floor(ml_device *device, uint64_t bytes) {
    if (bytes > ML_BYTES_MAX) return ML_ERR_FIGURE;
    int status = ml_enter_wait(device->ledger);
    if (status != ML_OK) return status;
    for (unsigned l = 0; l < device->level_count; l++) {
        device->level[l]->floor_bytes = bytes;
        ml_pool_publish_params(device->level[l]);
    }
    ml_lock_release(&device->ledger->lock);
    return ML_OK;
}

int ml_device_set_level_limit(ml_device *device, unsigned level, uint64_t bytes) {
    if (bytes > ML_BYTES_MAX && bytes != UINT64_MAX) return ML_ERR_FIGURE;
    if (level >= device->level_count) return ML_ERR_ARGUMENT;
    int status = ml_enter_wait(device->ledger);
    if (status != ML_OK) return status;
    device->level[level]->limit = bytes;
    ml_pool_publish_params(device->level[level]);
    ml_lock_release(&device->ledger->lock);
    return ML_OK;
}

int ml_device_set_limit(ml_device *device, uint64_t bytes) {
    return ml_device_set_level_limit(device, 0, bytes);
}
