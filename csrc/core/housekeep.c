/* Housekeeping for programs without Python: the rounds that src/memledger/housekeeping.py serves, with sources and a
 * holder as C callbacks. The steps are the same functions (ml_ledger_tick, ml_sweep_begin and its commit, ml_reading_*,
 * ml_request_*); only who asks the source differs. Callbacks run without any lock of ours. */
#include "core/core.h"

#include <stdlib.h>
#include <string.h>

#define SETTLE_NS UINT64_C(40000000)
#define FULL_SWEEP_NS UINT64_C(1000000000)
#define RETRY_FIRST_NS UINT64_C(1000000000)
#define RETRY_LONGEST_NS UINT64_C(60000000000)
#define ASKS_PER_ROUND 64

typedef struct kept_source {
    ml_source source; /* under M; read NULL: none */
    /* Written only by whoever is inside a source call of this pool: fork count + 1 of its process; 0: nobody. */
    ml_u64 asking;
    ml_u64 retry_at_ns, retry_step_ns; /* step 0: it has not failed */
    /* Only whoever is in ml_housekeep: the reading that is looked at again at settle_at_ns; 0: none. */
    ml_reading_op settling;
    uint64_t settle_at_ns;
    bool settle_again; /* it may be taken once more */
} kept_source;

struct ml_keeper {
    ml_u64 inside; /* fork count + 1 of the process that is in ml_housekeep; 0: nobody */
    uint64_t fork_count;
    uint64_t full_sweep_at_ns;
    bool has_holder; /* under M, like the holder */
    ml_holder holder;
    kept_source kept[ML_LOCAL_POOLS_MAX];
};

/* Made at its first use, freed with the handle. NULL: out of memory. */
static ml_keeper *keeper_of(ml_ledger *ledger) {
    ml_cold_lock(ledger);
    if (!ledger->keeper) ledger->keeper = calloc(1, sizeof *ledger->keeper);
    ml_keeper *keeper = ledger->keeper;
    ml_cold_unlock(ledger);
    return keeper;
}

static int joined(ml_ledger *ledger) {
    if (ml_is_forked(ledger)) return ml_ledger_recover(ledger, ML_SLOW_FORK);
    return ml_load_acquire(&ledger->closed) ? ML_ERR_CLOSED : ML_OK;
}

bool ml_ledger_retry(ml_ledger *ledger, int status) {
    bool slow = status == ML_SLOW_LOCK || status == ML_SLOW_FORK || status == ML_SLOW_LOST;
    return slow && ml_ledger_recover(ledger, status) == ML_OK;
}

/* ---- sources ---- */

int ml_device_set_source(ml_device *device, unsigned level, const ml_source *source) {
    ml_ledger *ledger = device->ledger;
    if (level >= device->level_count || (source && !source->read)) return ML_ERR_ARGUMENT;
    int status = joined(ledger);
    ml_keeper *keeper = status == ML_OK ? keeper_of(ledger) : NULL;
    if (!keeper) return status == ML_OK ? ML_ERR_MEMORY : status;
    unsigned number = ml_device_pool(device, level);
    ml_lock_wait(&ledger->lock);
    keeper->kept[number].source = source ? *source : (ml_source){0};
    ml_lock_release(&ledger->lock);
    ml_ledger_set_reader(ledger, number, source != NULL);
    ml_ledger_wake(ledger);
    return ML_OK;
}

/* The source of pool `number`, or of a pool that was found to be the same and folded into it; and the pool's key. */
static kept_source *find_source(ml_ledger *ledger, ml_keeper *keeper, unsigned number, ml_source *source, char *key) {
    kept_source *found = NULL;
    ml_lock_wait(&ledger->lock);
    for (unsigned n = 0; n < ledger->pool_count && !found; n++) {
        bool same = n == number || ledger->pool[n].twin == &ledger->pool[number];
        if (same && keeper->kept[n].source.read) found = &keeper->kept[n];
    }
    if (found) {
        *source = found->source;
        memcpy(key, ledger->pool[number].key, ML_KEY_BYTES);
    }
    ml_lock_release(&ledger->lock);
    return found;
}

static uint64_t name_of(const ml_source *source) {
    uint64_t packed = 0;
    for (unsigned i = 0; source->name && i < 8 && source->name[i]; i++)
        packed |= (uint64_t)(unsigned char)source->name[i] << (8 * i);
    return packed;
}

/* Leave the pool to members that can read it, and try again with a growing back-off. A GPU that sleeps has not failed:
 * it may be awake in a second, and looking costs nothing. */
static void has_failed(ml_ledger *ledger, kept_source *kept, unsigned number, uint32_t reason) {
    uint64_t step_ns = ml_min_u64(ml_load_relaxed(&kept->retry_step_ns) * 2, RETRY_LONGEST_NS);
    if (step_ns == 0 || reason == ML_REASON_SUSPENDED) step_ns = RETRY_FIRST_NS;
    ml_store_relaxed(&kept->retry_at_ns, os_now_ns() + step_ns);
    ml_store_relaxed(&kept->retry_step_ns, step_ns);
    ml_ledger_set_reader(ledger, number, false);
}

/* What the source said into the ledger; an absent answer only where there is nothing better. */
static int publish(ml_ledger *ledger, kept_source *kept, const ml_reading_op *op, ml_reading *reading) {
    if (reading->reason == ML_REASON_NONE && !ml_reading_plausible(reading)) reading->reason = ML_REASON_IMPLAUSIBLE;
    if (reading->reason != ML_REASON_NONE) {
        ml_reading newest;
        has_failed(ledger, kept, op->pool, reading->reason);
        if (ml_reading_get(ledger, op->pool, &newest) == ML_OK) return ML_NOT_READY;
    } else if (ml_load_relaxed(&kept->retry_step_ns)) {
        ml_store_relaxed(&kept->retry_step_ns, 0);
        ml_ledger_set_reader(ledger, op->pool, true);
    }
    /* One process's view never enters the segment: others would take it for the device's. */
    if (reading->scope == ML_SCOPE_PROCESS) return ml_reading_local(ledger, op->pool, reading);
    int status = ml_reading_end(ledger, op, reading);
    if (status == ML_NOT_READY) has_failed(ledger, kept, op->pool, ML_REASON_PROBE_FAILED); /* slower than a period */
    return status;
}

/* Ask pool `number`'s source and publish the answer. ML_OK: it is the newest reading. `settle`: have housekeeping look
 * at it again; for its own thread only. ML_BUSY: another thread is asking. */
static int take_reading(ml_ledger *ledger, ml_keeper *keeper, unsigned number, const uint64_t *dead, bool settle,
                        bool again) {
    ml_source source;
    char key[ML_KEY_BYTES];
    kept_source *kept = find_source(ledger, keeper, number, &source, key);
    uint64_t own = ml_ledger_fork_count(ledger) + 1, held = kept ? ml_load_acquire(&kept->asking) : 0;
    if (!kept) return ML_NOT_READY;
    /* Of a process that we were forked from: its thread is not here. */
    if (held == own || !ml_cas_acq_rel(&kept->asking, held, own)) return ML_BUSY;
    ml_reading_op op;
    ml_reading reading = {.immediate = UINT64_MAX, .soft_limit = UINT64_MAX, .scope = ML_SCOPE_DEVICE};
    int status = ml_reading_begin(ledger, number, dead, &op);
    if (status == ML_OK) {
        reading.source = name_of(&source);
        reading.reason = source.read(source.context, key, &reading);
        status = publish(ledger, kept, &op, &reading);
    }
    if (status == ML_OK && reading.reason == ML_REASON_NONE && settle) {
        kept->settling = op;
        kept->settle_again = again;
        kept->settle_at_ns = os_now_ns() + SETTLE_NS;
    }
    ml_store_release(&kept->asking, 0);
    return status;
}

int ml_device_refresh(ml_device *device, uint64_t max_age_ns) {
    ml_ledger *ledger = device->ledger;
    int status = joined(ledger), result = ML_OK;
    ml_keeper *keeper = status == ML_OK ? keeper_of(ledger) : NULL;
    if (!keeper) return status == ML_OK ? ML_ERR_MEMORY : status;
    for (unsigned l = 0; l < device->level_count; l++) {
        unsigned number = ml_device_pool(device, l);
        ml_reading newest;
        bool known = ml_reading_get(ledger, number, &newest) == ML_OK;
        if (!known || newest.age_ns > max_age_ns) status = take_reading(ledger, keeper, number, NULL, false, false);
        if (status == ML_OK) ml_store_relaxed(&device->level[l]->due, 0);
        known = known || ml_reading_get(ledger, number, &newest) == ML_OK;
        if (!known) result = ML_NOT_READY;
        status = ML_OK;
    }
    return result;
}

/* Had a member freed bytes just before its source was asked, it has published that by now. The next one that is due;
 * UINT64_MAX: none. */
static uint64_t settle_readings(ml_ledger *ledger, ml_keeper *keeper) {
    uint64_t next_ns = UINT64_MAX;
    for (unsigned n = 0; n < ML_LOCAL_POOLS_MAX; n++) {
        kept_source *kept = &keeper->kept[n];
        uint64_t now_ns = os_now_ns();
        if (kept->settle_at_ns && kept->settle_at_ns <= now_ns) {
            kept->settle_at_ns = 0;
            if (ml_reading_settle(ledger, &kept->settling) == ML_NOT_READY && kept->settle_again)
                (void)take_reading(ledger, keeper, kept->settling.pool, NULL, true, false);
        }
        if (kept->settle_at_ns) next_ns = ml_min_u64(next_ns, ml_sub_sat(kept->settle_at_ns, now_ns));
    }
    return next_ns;
}

static void retry_sources(ml_ledger *ledger, ml_keeper *keeper) {
    for (unsigned n = 0; n < ML_LOCAL_POOLS_MAX; n++) {
        const kept_source *kept = &keeper->kept[n];
        if (!ml_load_relaxed(&kept->retry_step_ns) || os_now_ns() < ml_load_relaxed(&kept->retry_at_ns)) continue;
        const ml_local_pool *twin = ledger->pool[n].twin;
        unsigned number = twin ? (unsigned)(twin - ledger->pool) : n;
        (void)take_reading(ledger, keeper, number, NULL, false, false);
    }
}

/* ---- the dead ---- */

/* Where they held bytes in a pool with a source, a reading without them is published first, so that what the driver
 * still has goes to unaccounted, not to free. */
static void sweep(ml_ledger *ledger, ml_keeper *keeper) {
    ml_sweep dead;
    uint64_t now_ns = os_now_ns(), freed_bytes;
    bool full = now_ns >= keeper->full_sweep_at_ns;
    if (full) keeper->full_sweep_at_ns = now_ns + FULL_SWEEP_NS;
    int status = full ? ml_sweep_begin(ledger, &dead) : ml_sweep_begin_near(ledger, &dead);
    if (status != ML_OK || dead.count == 0) return;
    for (unsigned n = 0; n < ML_LOCAL_POOLS_MAX; n++)
        if (dead.want_reading >> n & 1) (void)take_reading(ledger, keeper, n, dead.dead, false, false);
    (void)ml_sweep_commit(ledger, &dead, &freed_bytes);
}

/* ---- asks ---- */

int ml_ledger_set_holder(ml_ledger *ledger, const ml_holder *holder) {
    int status = joined(ledger);
    ml_keeper *keeper = status == ML_OK ? keeper_of(ledger) : NULL;
    if (!keeper) return status == ML_OK ? ML_ERR_MEMORY : status;
    ml_lock_wait(&ledger->lock);
    keeper->has_holder = holder != NULL;
    keeper->holder = holder ? *holder : (ml_holder){0};
    ml_lock_release(&ledger->lock);
    return ML_OK;
}

/* What this process publishes as held in that pool, and its key. */
static uint64_t own_held(ml_ledger *ledger, unsigned number, char *key) {
    ml_lock_wait(&ledger->lock);
    const ml_local_pool *pool = &ledger->pool[number];
    uint64_t bytes = pool->held;
    memcpy(key, pool->key, ML_KEY_BYTES);
    ml_lock_release(&ledger->lock);
    return bytes;
}

/* Only bytes that were published as gone count, whatever the holder says or does. */
static void answer_one(ml_ledger *ledger, const ml_holder *holder, const ml_request *request) {
    char key[ML_KEY_BYTES];
    uint64_t before = own_held(ledger, request->pool, key);
    if (holder->release) holder->release(holder->context, key, request->bytes);
    uint64_t freed = ml_sub_sat(before, own_held(ledger, request->pool, key));
    int outcome = freed == 0 ? ML_ANSWER_REFUSED : freed >= request->bytes ? ML_ANSWER_DONE : ML_ANSWER_PARTIAL;
    (void)ml_request_answer(ledger, request, outcome, freed);
}

static void answer_asks(ml_ledger *ledger, ml_keeper *keeper) {
    ml_request request;
    ml_lock_wait(&ledger->lock);
    ml_holder holder = keeper->holder;
    bool left_alone = keeper->has_holder && !holder.release;
    ml_lock_release(&ledger->lock);
    if (left_alone) return;
    for (int i = 0; i < ASKS_PER_ROUND && (ml_pending(ledger) & ML_PENDING_ASK); i++)
        if (ml_request_next(ledger, &request) == ML_OK) answer_one(ledger, &holder, &request);
}

/* ---- the rounds ---- */

static int serve_round(ml_ledger *ledger, ml_keeper *keeper, uint64_t *next_ns) {
    ml_tick tick;
    uint64_t settle_ns = settle_readings(ledger, keeper);
    int status = ml_ledger_tick(ledger, &tick);
    if (status != ML_OK) return status;
    sweep(ledger, keeper);
    answer_asks(ledger, keeper);
    for (unsigned n = 0; n < ML_LOCAL_POOLS_MAX; n++) {
        if (!(tick.due_pools >> n & 1)) continue;
        if (take_reading(ledger, keeper, n, NULL, true, true) == ML_OK) settle_ns = ml_min_u64(settle_ns, SETTLE_NS);
    }
    retry_sources(ledger, keeper);
    *next_ns = ml_min_u64(tick.next_ns, settle_ns);
    return ML_OK;
}

/* In a forked child nothing that was begun by the parent goes on. */
static void forget_parents(ml_keeper *keeper, uint64_t fork_count) {
    if (keeper->fork_count == fork_count) return;
    keeper->fork_count = fork_count;
    for (unsigned n = 0; n < ML_LOCAL_POOLS_MAX; n++) keeper->kept[n].settle_at_ns = 0;
}

int ml_housekeep(ml_ledger *ledger, uint64_t timeout_ns) {
    uint64_t deadline_ns = ml_add_sat(os_now_ns(), timeout_ns), now_ns, next_ns;
    int status = joined(ledger);
    ml_keeper *keeper = status == ML_OK ? keeper_of(ledger) : NULL;
    if (!keeper) return status == ML_OK ? ML_ERR_MEMORY : status;
    uint64_t own = ml_ledger_fork_count(ledger) + 1, inside = ml_load_acquire(&keeper->inside);
    if (inside == own || !ml_cas_acq_rel(&keeper->inside, inside, own)) return ML_BUSY;
    forget_parents(keeper, own - 1);
    do {
        /* From the mark: an ask that comes while this round looks elsewhere is not slept on. */
        uint64_t mark = ml_ledger_wake_mark(ledger);
        status = serve_round(ledger, keeper, &next_ns);
        now_ns = os_now_ns();
        if (status == ML_OK && now_ns < deadline_ns)
            ml_ledger_wait_from(ledger, mark, ml_min_u64(next_ns, deadline_ns - now_ns));
        now_ns = os_now_ns();
    } while (status == ML_OK && now_ns < deadline_ns);
    ml_store_release(&keeper->inside, 0);
    return status;
}
