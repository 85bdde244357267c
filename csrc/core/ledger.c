/* The handle: joining, leaving, devices and their accounts. */
#include "core/core.h"

#include <stdlib.h>
#include <string.h>

static void copy_text(char *to, size_t capacity, const char *from) {
    size_t length = from ? strlen(from) : 0;
    if (length >= capacity) length = capacity - 1;
    if (length) memcpy(to, from, length);
    to[length] = '\0';
}

void ml_lock_wait(ml_u64 *lock) {
    while (!ml_lock_try(lock)) os_sleep_ns(20000);
}

static void make_cookie(ml_ledger *ledger) {
    ledger->cookie_value = os_random_u64() | 1;
    const volatile uint64_t *word = os_cookie_new(ledger->cookie_value);
    if (!word) { /* then the fork hook clears this one; children made by raw clone go unnoticed */
        ledger->plain_cookie = ledger->cookie_value;
        word = &ledger->plain_cookie;
    }
    ml_ptr_store_release(&ledger->cookie, (void *)(uintptr_t)word);
}

static void resolve_path(ml_ledger *ledger, const char *path) {
    if (!path || !*path) path = getenv("MEMLEDGER_PATH");
    if (path && *path)
        copy_text(ledger->path, sizeof ledger->path, path);
    else if (os_segment_default_path(ledger->path, ML_LAYOUT_MAJOR) != OS_OK)
        ledger->path[0] = '\0';
}

int ml_ledger_join(const ml_join_options *options, ml_ledger **out) {
    *out = NULL;
    if (options->slots > ML_SLOTS_MAX || options->role < ML_ROLE_OTHER || options->role > ML_ROLE_WORKER)
        return ML_ERR_ARGUMENT;
    if (options->path && strlen(options->path) >= ML_PATH_BYTES) return ML_ERR_ARGUMENT;
    ml_ledger *ledger = calloc(1, sizeof *ledger);
    if (!ledger) return ML_ERR_MEMORY;
    ledger->options = *options;
    ledger->options.path = ledger->options.label = ledger->options.program = ledger->options.version = NULL;
    if (!ledger->options.slots) ledger->options.slots = ML_SLOTS_MAX;
    copy_text(ledger->label, sizeof ledger->label, options->label);
    copy_text(ledger->program, sizeof ledger->program, options->program);
    copy_text(ledger->version, sizeof ledger->version, options->version);
    resolve_path(ledger, options->path);
    ledger->seat.me = ML_NO_SLOT;
    ledger->private_view = ml_view_private();
    make_cookie(ledger);
    if (!ledger->private_view || ml_fork_watch(ledger) != OS_OK) {
        ml_store_release(&ledger->closed, 1); /* it never was open */
        ml_ledger_free(ledger);
        return ML_ERR_MEMORY;
    }
    ml_ledger_attach(ledger);
    *out = ledger;
    return ML_OK;
}

int ml_ledger_leave(ml_ledger *ledger) {
    if (ml_is_forked(ledger)) {
        /* The slot is the parent's. This process has none until its first use, and now there will be none. */
        ml_store_release(&ledger->closed, 1);
        return ML_OK;
    }
    ml_cold_lock(ledger);
    ml_lock_wait(&ledger->lock);
    bool was_open = !ml_load_relaxed(&ledger->closed);
    ml_store_release(&ledger->closed, 1);
    while (ledger->claims) {
        ml_claim *claim = ledger->claims;
        ledger->claims = claim->next;
        claim->link = NULL;
        claim->next = NULL;
        claim->open_bytes = 0;
    }
    if (was_open && ledger->seat.slot) ml_slot_leave(ledger->view, ledger->seat.me, ledger->seat.slot_word);
    ml_seat seat = ledger->seat;
    uint32_t *word = ml_wake_raise(ledger);
    ledger->seat = (ml_seat){.me = ML_NO_SLOT};
    ml_ptr_store_release(&ledger->leader, NULL);
    for (unsigned n = 0; n < ledger->pool_count; n++) {
        /* A reading or a claim that is still on its way must not write into what is another member's soon. */
        ml_ptr_store_release(&ledger->pool[n].change, &ledger->closed);
        ledger->pool[n].me = ML_NO_SLOT;
        ledger->pool[n].own = &ledger->pool[n].scratch;
    }
    ml_lock_release(&ledger->lock);
    for (unsigned n = 0; n < ledger->pool_count; n++) os_token_drop(&ledger->pool[n].refresher);
    os_token_drop(&seat.token);
    ml_fork_unwatch(ledger);
    ml_cold_unlock(ledger);
    os_wake(word);
    /* The handle and its mappings stay until ml_ledger_free: another thread may be on its way into a hot call. */
    return ML_OK;
}

void ml_ledger_free(ml_ledger *ledger) {
    if (!ledger || !ml_load_acquire(&ledger->closed)) return;
    ml_fork_unwatch(ledger); /* a forked child that left has not done it */
    const volatile uint64_t *cookie = ml_ptr_load_acquire(&ledger->cookie);
    if (cookie != &ledger->plain_cookie) os_cookie_free(cookie);
    for (ml_device *device = ledger->devices, *next_device; device; device = next_device) {
        next_device = device->next;
        for (ml_account *account = device->account.next, *next; account; account = next) {
            next = account->next;
            free(account);
        }
        free(device);
    }
    for (unsigned n = 0; n < ledger->pool_count; n++) free(ledger->pool[n].waiters);
    for (ml_view *view = ledger->views, *next; view; view = next) {
        next = view->next;
        ml_view_free(view);
    }
    ml_view_free(ledger->private_view);
    free(ledger->keeper);
    free(ledger);
}

void ml_ledger_get_info(ml_ledger *ledger, ml_ledger_info *out) {
    memset(out, 0, sizeof *out);
    ml_cold_lock(ledger);
    out->mode = ledger->mode;
    out->degraded_status = ledger->degraded_status;
    out->system_code = ledger->degraded_error.code;
    out->system_call = ledger->degraded_error.call ? ledger->degraded_error.call : "";
    out->slot = ledger->seat.me;
    out->generation = ledger->seat.generation;
    memcpy(out->path, ledger->path, sizeof out->path);
    out->layout_major = ledger->seen_layout[0];
    out->layout_minor = ledger->seen_layout[1];
    out->rejoin_count = ledger->rejoin_count;
    out->period_ns = ledger->period_ns;
    if (ledger->view->shared) {
        out->file_device = ledger->view->segment.device_id;
        out->file_id = ledger->view->segment.file_id;
        out->lock_kind = (int)ledger->view->lock_kind;
        out->overflow_count = ml_load_relaxed(&ml_view_header(ledger->view)->overflow_count);
        out->sweep_count = ml_load_relaxed(&ml_view_header(ledger->view)->sweep_count);
    }
    ml_cold_unlock(ledger);
}

uint64_t ml_ledger_fork_count(const ml_ledger *ledger) {
    return ledger->fork_count;
}

/* ---- devices ---- */

/* A key that does not read back as it was written would never be found again: each look makes one more entry. */
static bool key_is_valid(const char *key) {
    return strlen(key) < ML_KEY_BYTES && ml_text_is_plain(key);
}

static bool spec_is_valid(const ml_pool_spec *spec) {
    if (!spec->key || !*spec->key || !key_is_valid(spec->key)) return false;
    for (unsigned a = 0; a < ML_ALIASES_MAX; a++)
        if (spec->aliases[a] && !key_is_valid(spec->aliases[a])) return false;
    return spec->kind >= ML_KIND_DEVICE && spec->kind <= ML_KIND_PIN;
}

static ml_local_pool *find_pool(ml_ledger *ledger, const char *name) {
    for (unsigned n = 0; n < ledger->pool_count; n++) {
        ml_local_pool *pool = &ledger->pool[n];
        if (strcmp(pool->key, name) == 0) return pool->twin ? pool->twin : pool;
        for (unsigned a = 0; a < ML_ALIASES_MAX; a++)
            if (pool->alias[a][0] && strcmp(pool->alias[a], name) == 0) return pool->twin ? pool->twin : pool;
    }
    return NULL;
}

static ml_local_pool *open_pool(ml_ledger *ledger, const ml_pool_spec *spec) {
    ml_local_pool *pool = find_pool(ledger, spec->key);
    for (unsigned a = 0; a < ML_ALIASES_MAX && !pool; a++)
        if (spec->aliases[a] && *spec->aliases[a]) pool = find_pool(ledger, spec->aliases[a]);
    if (pool) return pool;
    if (ledger->pool_count == ML_LOCAL_POOLS_MAX) return NULL;
    pool = &ledger->pool[ledger->pool_count];
    memset(pool, 0, sizeof *pool);
    copy_text(pool->key, sizeof pool->key, spec->key);
    for (unsigned a = 0; a < ML_ALIASES_MAX; a++) copy_text(pool->alias[a], sizeof pool->alias[a], spec->aliases[a]);
    pool->kind = (unsigned)spec->kind;
    pool->largest_bytes = spec->largest_bytes ? spec->largest_bytes : (UINT64_C(4) << 40) - 1;
    pool->limit = UINT64_MAX;
    ml_ledger_open_pool(ledger, pool);
    if (!pool->entry) return NULL;
    /* The table may know that this is another name of what is open already: two sums would overwrite each other in
     * one record. */
    for (unsigned n = 0; n < ledger->pool_count; n++)
        if (ledger->pool[n].view == pool->view && ledger->pool[n].index == pool->index) return &ledger->pool[n];
    /* Visible to scans of the handle's pools only when whole. */
    ml_lock_wait(&ledger->lock);
    ledger->pool_count++;
    ml_lock_release(&ledger->lock);
    return pool;
}

static ml_device *find_device(ml_ledger *ledger, ml_local_pool *const *level, unsigned level_count) {
    for (ml_device *d = ledger->devices; d; d = d->next)
        if (d->level_count == level_count && memcmp(d->level, level, level_count * sizeof *level) == 0) return d;
    return NULL;
}

int ml_device_open(ml_ledger *ledger, const ml_pool_spec *levels, unsigned level_count, ml_device **out) {
    *out = NULL;
    if (level_count < 1 || level_count > ML_LEVELS_MAX) return ML_ERR_ARGUMENT;
    for (unsigned l = 0; l < level_count; l++)
        if (!spec_is_valid(&levels[l])) return ML_ERR_ARGUMENT;
    if (ml_is_forked(ledger) && ml_ledger_recover(ledger, ML_SLOW_FORK) != ML_OK) return ML_ERR_CLOSED;
    if (ml_load_acquire(&ledger->closed)) return ML_ERR_CLOSED;
    ml_device *device = calloc(1, sizeof *device);
    if (!device) return ML_ERR_MEMORY;
    ml_cold_lock(ledger);
    int status = ML_OK;
    for (unsigned l = 0; l < level_count && status == ML_OK; l++) {
        device->level[l] = open_pool(ledger, &levels[l]);
        if (!device->level[l]) status = ML_FULL;
        for (unsigned k = 0; k < l && status == ML_OK; k++) /* words are per pool: twice would count twice */
            if (device->level[k] == device->level[l]) status = ML_ERR_ARGUMENT;
    }
    ml_device *known = status == ML_OK ? find_device(ledger, device->level, level_count) : NULL;
    if (status == ML_OK && !known) {
        device->ledger = ledger;
        device->level_count = level_count;
        device->account.device = device;
        ml_store_relaxed(&device->cached, UINT64_MAX);
        device->next = ledger->devices;
        ledger->devices = device;
        known = device;
        device = NULL;
    }
    ml_cold_unlock(ledger);
    free(device);
    *out = known;
    return status;
}

unsigned ml_device_level_count(const ml_device *device) {
    return device->level_count;
}

unsigned ml_device_pool(const ml_device *device, unsigned level) {
    return level < device->level_count ? (unsigned)(device->level[level] - device->ledger->pool) : ML_LOCAL_POOLS_MAX;
}

ml_account *ml_device_account(ml_device *device) {
    return &device->account;
}

int ml_account_open(ml_device *device, const char *name, ml_account **out) {
    *out = NULL;
    if (!name || !*name || strlen(name) >= sizeof device->account.name) return ML_ERR_ARGUMENT;
    ml_cold_lock(device->ledger);
    ml_account *account = device->account.next;
    while (account && strcmp(account->name, name) != 0) account = account->next;
    if (!account) {
        account = calloc(1, sizeof *account);
        if (account) {
            account->device = device;
            copy_text(account->name, sizeof account->name, name);
            ml_lock_wait(&device->ledger->lock);
            account->next = device->account.next;
            device->account.next = account;
            ml_lock_release(&device->ledger->lock);
        }
    }
    ml_cold_unlock(device->ledger);
    *out = account;
    return account ? ML_OK : ML_ERR_MEMORY;
}

int ml_device_set_headroom(ml_device *device, uint64_t bytes) {
    if (bytes > ML_BYTES_MAX) return ML_ERR_FIGURE;
    int status = ml_enter_wait(device->ledger);
    if (status != ML_OK) return status;
    device->level[0]->headroom = bytes;
    ml_pool_publish_params(device->level[0]);
    ml_lock_release(&device->ledger->lock);
    return ML_OK;
}

void ml_ledger_set_reader(ml_ledger *ledger, unsigned pool, bool can_read) {
    ml_cold_lock(ledger);
    if (pool < ledger->pool_count) ledger->pool[pool].can_read = can_read;
    if (pool < ledger->pool_count && !can_read) os_token_drop(&ledger->pool[pool].refresher);
    ml_cold_unlock(ledger);
}

void ml_ledger_set_foreign_layout(ml_ledger *ledger, bool present) {
    ml_store_release(&ledger->foreign_layout, present);
}

/* ---- waiting ---- */

static uint32_t *wake_word(ml_ledger *ledger) {
    ml_slot *slot = ledger->seat.slot;
    return (uint32_t *)(void *)(slot ? &slot->wake : &ledger->wake_fallback);
}

void ml_ledger_wait(ml_ledger *ledger, uint64_t timeout_ns) {
    uint64_t before = ml_load_acquire(&ledger->woken);
    ml_lock_wait(&ledger->lock);
    uint32_t *word = wake_word(ledger);
    uint32_t value = (uint32_t)ml_load_acquire((const ml_u64 *)(const void *)word);
    ml_lock_release(&ledger->lock);
    if (before != ml_load_acquire(&ledger->waited)) { /* woken since the last wait ended */
        ml_store_release(&ledger->waited, before);
        return;
    }
    os_wait(word, value, timeout_ns);
    ml_store_release(&ledger->waited, ml_load_acquire(&ledger->woken));
}

/* The futex word, and above it how often this process has raised it itself or moved to another one. */
static uint64_t mark_of(ml_ledger *ledger, uint32_t **word) {
    ml_lock_wait(&ledger->lock);
    *word = wake_word(ledger);
    uint64_t value = (uint32_t)ml_load_acquire((const ml_u64 *)(const void *)*word);
    value |= ml_load_acquire(&ledger->woken) << 32;
    ml_lock_release(&ledger->lock);
    return value;
}

uint64_t ml_ledger_wake_mark(ml_ledger *ledger) {
    uint32_t *word;
    return mark_of(ledger, &word);
}

void ml_ledger_wait_from(ml_ledger *ledger, uint64_t mark, uint64_t timeout_ns) {
    uint32_t *word;
    if (mark_of(ledger, &word) == mark) os_wait(word, (uint32_t)mark, timeout_ns);
}

uint32_t *ml_wake_raise(ml_ledger *ledger) {
    uint32_t *word = wake_word(ledger);
    ml_fetch_add_seq_cst(&ledger->woken, 1);
    ML_KILL_POINT("wake.raise");
    ml_fetch_add_seq_cst((ml_u64 *)(void *)word, 1);
    return word;
}

void ml_ledger_wake(ml_ledger *ledger) {
    ml_lock_wait(&ledger->lock);
    uint32_t *word = ml_wake_raise(ledger);
    ml_lock_release(&ledger->lock);
    os_wake(word);
}
