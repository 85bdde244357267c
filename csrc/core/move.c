/* How a handle comes to its segment and slot, and moves to another one: first join, a segment that vanished or was
 * replaced, a slot that was lost, a fork, a degraded handle that tries again. What this process publishes is kept in
 * its own memory and carried over once, as growth without a check. */
#include "core/core.h"
#include "core/group.h"
#include "core/publish.h"

#include <string.h>

#define VERIFY_NS UINT64_C(1000000000)
#define RETRY_FIRST_NS UINT64_C(1000000000)
#define RETRY_LONGEST_NS UINT64_C(30000000000)
#define ASKED_NS UINT64_C(60000000000)
#define FORK_STEAL_NS UINT64_C(100000000)
#define ENTER_TRIES 1000

void ml_cold_lock(ml_ledger *ledger) {
    ml_lock_wait(&ledger->cold);
}
void ml_cold_unlock(ml_ledger *ledger) {
    ml_lock_release(&ledger->cold);
}

int ml_enter_wait(ml_ledger *ledger) {
    int status = ML_BUSY;
    for (int i = 0; i < ENTER_TRIES; i++) {
        status = ml_enter(ledger);
        if (status < ML_SLOW_LOCK) return status;
        if (ml_ledger_recover(ledger, status) != ML_OK) break;
    }
    return status;
}

/* ---- joining a view ---- */

static void degrade(ml_ledger *ledger, int mode, int status, const os_error *error) {
    ml_lock_wait(&ledger->lock); /* hot calls read it under M */
    ledger->mode = mode;
    ml_lock_release(&ledger->lock);
    ledger->degraded_status = status;
    ledger->degraded_error = error ? *error : (os_error){0};
}

/* A slot in `view`; sweeps once when the table is full. */
static int find_seat(ml_ledger *ledger, ml_view *view, ml_seat *seat, os_error *error) {
    int status = ml_slot_join(ledger, view, seat, error);
    if (status != ML_FULL) return status;
    ml_sweep sweep;
    uint64_t freed;
    if (ml_sweep_begin_in(ledger, view, ML_NO_SLOT, true, &sweep) == ML_OK)
        (void)ml_sweep_commit(ledger, &sweep, &freed);
    return ml_slot_join(ledger, view, seat, error);
}

/* Where each of this handle's pools goes. A pool that the shared table cannot take opens privately, and is tried
 * again by tick. */
typedef struct placement {
    ml_view *view[ML_LOCAL_POOLS_MAX];
    unsigned index[ML_LOCAL_POOLS_MAX];
} placement;

static void place(ml_ledger *ledger, const ml_local_pool *pool, ml_view *view, unsigned me, ml_view **at,
                  unsigned *index) {
    *at = view;
    if (ml_pool_open(ledger, pool, view, me, index) == ML_OK) return;
    *at = ledger->private_view;
    if (ml_pool_open(ledger, pool, ledger->private_view, 0, index) != ML_OK) *at = NULL;
}

static void attach_placed(ml_ledger *ledger, ml_local_pool *pool, ml_view *at, unsigned index, unsigned me) {
    if (!at) return; /* 48 pools fit nowhere: it stays where it is */
    ml_pool_attach(pool, at, index, at == ledger->private_view ? 0 : me);
    pool->private_fallback = at == ledger->private_view && ledger->view != ledger->private_view;
}

/* Under M: two of our pools have come to stand for one entry (two names that turned out to be one device). Their bytes
 * are one sum in one record, so the later pool is folded into the earlier, and devices point to that one. */
static void fold_into(ml_ledger *ledger, ml_local_pool *pool, ml_local_pool *twin) {
    twin->held = ml_add_sat(twin->held, pool->held);
    twin->releasable = ml_add_sat(twin->releasable, pool->releasable);
    twin->pinned = ml_add_sat(twin->pinned, pool->pinned);
    twin->claims = ml_add_sat(twin->claims, pool->claims);
    twin->headroom = ml_max_u64(twin->headroom, pool->headroom);
    twin->floor_bytes = ml_max_u64(twin->floor_bytes, pool->floor_bytes);
    twin->limit = ml_min_u64(twin->limit, pool->limit);
    twin->can_read = twin->can_read || pool->can_read;
    pool->held = pool->releasable = pool->pinned = pool->claims = pool->headroom = pool->floor_bytes = 0;
    pool->limit = UINT64_MAX;
    pool->can_read = pool->private_fallback = false;
    pool->me = ML_NO_SLOT;
    pool->own = &pool->scratch;
    pool->twin = twin;
    for (ml_device *device = ledger->devices; device; device = device->next) {
        for (unsigned l = 0; l < device->level_count; l++)
            if (device->level[l] == pool) device->level[l] = twin;
        ml_store_release(&device->tag[0], 0); /* what was cached belongs to the other entry */
    }
}

static void fold_twins(ml_ledger *ledger) {
    for (unsigned n = 0; n < ledger->pool_count; n++) {
        for (unsigned m = 0; m < n && !ledger->pool[n].twin; m++) {
            ml_local_pool *twin = &ledger->pool[m], *pool = &ledger->pool[n];
            if (!twin->twin && twin->entry == pool->entry) fold_into(ledger, pool, twin);
        }
    }
}

/* Move everything to `view` and `seat`, in one step for the threads of this process. The old slot is emptied first,
 * while its lock is still ours, so that whoever looks at both sees the bytes at most once. */
static void move_to(ml_ledger *ledger, ml_view *view, const ml_seat *seat) {
    placement to;
    /* Before M: nothing may enter the kernel under it. Whoever reads next becomes the refresher. */
    for (unsigned n = 0; n < ledger->pool_count; n++) os_token_drop(&ledger->pool[n].refresher);
    for (unsigned n = 0; n < ledger->pool_count; n++)
        place(ledger, &ledger->pool[n], view, seat->me, &to.view[n], &to.index[n]);
    ml_lock_wait(&ledger->lock);
    ml_view *old_view = ledger->view;
    ml_seat old = ledger->seat;
    if (old_view && old.slot) {
        ml_slot_clear(old_view, old.me);
        uint64_t word = ml_load_acquire(&old.slot->state);
        ML_KILL_POINT("move.free");
        (void)ml_cas_seq_cst(&old.slot->state, word, ML_SLOT_WORD(ML_SLOT_GENERATION(word), ML_SLOT_FREE));
    }
    uint32_t *word = ml_wake_raise(ledger);
    ledger->view = view;
    ledger->seat = *seat;
    ml_group_forget(ledger);
    for (unsigned n = 0; n < ledger->pool_count; n++) {
        if (!ledger->pool[n].twin) attach_placed(ledger, &ledger->pool[n], to.view[n], to.index[n], seat->me);
    }
    fold_twins(ledger);
    for (unsigned n = 0; n < ledger->pool_count; n++)
        if (!ledger->pool[n].twin) ml_pool_republish(ledger, &ledger->pool[n]);
    ledger->rejoin_count++;
    ml_lock_release(&ledger->lock);
    os_wake(word);
    os_token_drop(&old.token);
    if (old_view && old_view != view && old_view->shared) os_segment_retire(&old_view->segment);
}

static bool is_lost(const ml_local_pool *pool) {
    return ml_load_acquire(&pool->entry->state) != pool->entry_state;
}

/* Entries that were merged into another one, or recycled: look their names up again, and move what we publish. A
 * process without a slot has nothing to move. */
static void move_lost_pools(ml_ledger *ledger) {
    for (unsigned n = 0; n < ledger->pool_count; n++) {
        ml_local_pool *pool = &ledger->pool[n];
        if (pool->twin || !is_lost(pool)) continue;
        ml_view *at;
        unsigned index = 0, me = ledger->view == ledger->private_view ? 0 : ledger->seat.me;
        place(ledger, pool, ledger->view, me, &at, &index);
        os_token_drop(&pool->refresher);
        ml_lock_wait(&ledger->lock);
        if (pool->me != ML_NO_SLOT && pool->view == ledger->view) ml_slot_clear_pool(pool->view, pool->index, pool->me);
        attach_placed(ledger, pool, at, index, me);
        fold_twins(ledger);
        for (unsigned m = 0; m < ledger->pool_count; m++)
            if (ledger->pool[m].entry == pool->entry && !ledger->pool[m].twin)
                ml_pool_republish(ledger, &ledger->pool[m]);
        ml_lock_release(&ledger->lock);
    }
}

static void go_private(ml_ledger *ledger, int status, const os_error *error) {
    ml_seat seat = {.me = ML_NO_SLOT};
    os_error ignored;
    degrade(ledger, ML_MODE_PRIVATE, status, error);
    if (ledger->view == ledger->private_view) return;
    if (ml_slot_join(ledger, ledger->private_view, &seat, &ignored) != ML_OK)
        seat = (ml_seat){.slot = NULL, .me = 0, .generation = 1};
    move_to(ledger, ledger->private_view, &seat);
}

/* The view to join: the one that is mapped already, where it still stands under the name. */
static ml_view *shared_view(ml_ledger *ledger, int *status, os_error *error) {
    unsigned layout[2] = {0, 0};
    *status = ML_ERR_SYSTEM;
    if (ledger->view && ledger->view->shared &&
        os_segment_verify(ledger->path, &ledger->view->segment, error) == OS_OK) {
        *status = ML_OK;
        return ledger->view;
    }
    if (!ledger->path[0]) {
        error->call = "path";
        return NULL;
    }
    ml_view *view = ml_view_open(ledger->path, ledger->options.slots, status, error, layout);
    if (layout[0]) memcpy(ledger->seen_layout, layout, sizeof layout);
    if (view) {
        view->next = ledger->views;
        ledger->views = view;
    }
    return view;
}

void ml_ledger_attach(ml_ledger *ledger) {
    os_error error = {0};
    int status;
    ml_seat seat = {.me = ML_NO_SLOT};
    ml_view *view = shared_view(ledger, &status, &error);
    if (view) status = find_seat(ledger, view, &seat, &error);
    if (view && status == ML_OK) {
        degrade(ledger, ML_MODE_SHARED, ML_OK, NULL);
        ledger->retry_step_ns = 0;
        move_to(ledger, view, &seat);
    } else if (view && status == ML_FULL) {
        bool again = ledger->mode == ML_MODE_UNREGISTERED && ledger->view == view && !ledger->seat.slot;
        degrade(ledger, ML_MODE_UNREGISTERED, ML_FULL, NULL);
        if (again) return;
        ML_KILL_POINT("join.overflow");
        ml_fetch_add_seq_cst(&ml_view_header(view)->overflow_count, 1);
        seat = (ml_seat){.me = ML_NO_SLOT};
        move_to(ledger, view, &seat);
    } else {
        if (view && view != ledger->view) { /* nobody has seen it */
            ledger->views = view->next;
            ml_view_free(view);
        }
        go_private(ledger, status, &error);
    }
}

void ml_ledger_open_pool(ml_ledger *ledger, ml_local_pool *pool) {
    ml_view *at;
    unsigned index = 0;
    unsigned me = ledger->view == ledger->private_view ? 0 : ledger->seat.me;
    place(ledger, pool, ledger->view, me, &at, &index);
    ml_lock_wait(&ledger->lock);
    attach_placed(ledger, pool, at, index, me);
    ml_lock_release(&ledger->lock);
}

/* ---- fork ---- */

static void before_fork(void *context) {
    ml_lock_wait(&((ml_ledger *)context)->lock);
}
static void after_fork_in_parent(void *context) {
    ml_lock_release(&((ml_ledger *)context)->lock);
}
static void after_fork_in_child(void *context) {
    ml_ledger *ledger = context;
    ledger->plain_cookie = 0;
    /* Where a child inherits the parent's locks, they would live as long as it does. */
    os_token_drop(&ledger->seat.token);
    for (unsigned n = 0; n < ledger->pool_count; n++) os_token_drop(&ledger->pool[n].refresher);
    for (size_t i = 0; i < sizeof ledger->sweeps / sizeof *ledger->sweeps; i++) {
        if (ledger->sweeps[i]) os_probe_close(ledger->sweeps[i]);
        ledger->sweeps[i] = NULL;
    }
    ml_store_release(&ledger->cold, 0);
    ledger->forked_by_hook = true;
    ml_lock_release(&ledger->lock);
}

os_status ml_fork_watch(ml_ledger *ledger) {
    static const os_fork_hooks hooks = {before_fork, after_fork_in_parent, after_fork_in_child};
    return os_fork_register(&hooks, ledger);
}
void ml_fork_unwatch(ml_ledger *ledger) {
    os_fork_unregister(ledger);
}

/* In the child: nothing of what the parent holds is ours, and its locks were not inherited. */
static void forget_parent(ml_ledger *ledger) {
    ml_store_release(&ledger->lock, 0);
    for (ml_claim *claim = ledger->claims, *next; claim; claim = next) {
        next = claim->next;
        claim->link = NULL;
        claim->next = NULL;
        claim->open_bytes = 0;
    }
    ledger->claims = NULL;
    for (ml_device *d = ledger->devices; d; d = d->next)
        for (ml_account *a = &d->account; a; a = a->next) a->amounts = (ml_amounts){0, 0, 0};
    for (unsigned n = 0; n < ledger->pool_count; n++) {
        ml_local_pool *pool = &ledger->pool[n];
        pool->held = pool->releasable = pool->pinned = pool->claims = 0;
        pool->refresher = (os_token){0};
    }
    ledger->seat = (ml_seat){.me = ML_NO_SLOT};
    ledger->fork_count++;
}

/* The shared view is inherited and stays; the private one was copied, with the parent's figures in it. */
static void attach_child(ml_ledger *ledger) {
    ml_view *private_view = ledger->private_view;
    ml_slot_clear(private_view, 0);
    ml_store_release(&ml_view_slot(private_view, 0)->state, ML_SLOT_FREE);
    if (ledger->view == private_view) ledger->view = NULL;
    ml_ledger_attach(ledger);
}

static void join_after_fork(ml_ledger *ledger) {
    uint64_t limit_ns = os_now_ns() + FORK_STEAL_NS;
    /* A child made by raw clone runs no hooks: then the lock may be held by a thread that does not exist here. */
    while (!ml_lock_try(&ledger->cold)) {
        if (!ledger->forked_by_hook && os_now_ns() >= limit_ns) break;
        os_sleep_ns(1000000);
    }
    if (!ml_is_forked(ledger)) {
        ml_cold_unlock(ledger);
        return; /* another thread of the child was first */
    }
    forget_parent(ledger);
    if (!ml_load_relaxed(&ledger->closed)) attach_child(ledger);
    const volatile uint64_t *word = os_cookie_new(ledger->cookie_value);
    if (!word) {
        ledger->plain_cookie = ledger->cookie_value;
        word = &ledger->plain_cookie;
    }
    ml_ptr_store_release(&ledger->cookie, (void *)(uintptr_t)word);
    ml_cold_unlock(ledger);
}

int ml_ledger_recover(ml_ledger *ledger, int slow_status) {
    if (slow_status == ML_SLOW_FORK || ml_is_forked(ledger)) {
        join_after_fork(ledger);
        return ml_load_acquire(&ledger->closed) ? ML_ERR_CLOSED : ML_OK;
    }
    if (slow_status == ML_SLOW_LOCK) {
        ml_lock_wait(&ledger->lock);
        ml_lock_release(&ledger->lock);
        return ML_OK;
    }
    if (slow_status != ML_SLOW_LOST) return ML_ERR_ARGUMENT;
    ml_cold_lock(ledger);
    bool slot_lost = ledger->seat.slot && ml_load_acquire(&ledger->seat.slot->state) != ledger->seat.slot_word;
    if (!ml_load_acquire(&ledger->closed)) {
        if (slot_lost) ml_ledger_attach(ledger);
        move_lost_pools(ledger);
    }
    ml_cold_unlock(ledger);
    return ML_OK;
}

/* ---- tick ---- */

/* Is the segment that is mapped still the one under the name? Members of one that is not would never meet newcomers. */
static void verify_segment(ml_ledger *ledger, uint64_t now_ns) {
    os_error error = {0};
    if (now_ns < ledger->verify_at_ns) return;
    ledger->verify_at_ns = now_ns + VERIFY_NS;
    os_status status = os_segment_verify(ledger->path, &ledger->view->segment, &error);
    if (status == OS_OK || status == OS_FAILED) return;
    /* Cut short: the pages behind its end raise SIGBUS. Zeros go over them before anything else is touched. */
    if (status == OS_FOREIGN && error.call && strcmp(error.call, "size") == 0)
        os_segment_retire(&ledger->view->segment);
    ml_ledger_attach(ledger);
}

static void retry(ml_ledger *ledger, uint64_t now_ns) {
    if (now_ns < ledger->retry_at_ns) return;
    uint64_t step = ledger->retry_step_ns ? ml_min_u64(ledger->retry_step_ns * 2, RETRY_LONGEST_NS) : RETRY_FIRST_NS;
    bool first = ledger->retry_step_ns == 0;
    if (!first) ml_ledger_attach(ledger);
    ledger->retry_step_ns = step;
    ledger->retry_at_ns = now_ns + step;
}

static void retry_private_pools(ml_ledger *ledger) {
    for (unsigned n = 0; n < ledger->pool_count; n++) {
        ml_local_pool *pool = &ledger->pool[n];
        unsigned index;
        if (!pool->private_fallback) continue;
        if (ml_pool_open(ledger, pool, ledger->view, ledger->seat.me, &index) != ML_OK) continue;
        ml_lock_wait(&ledger->lock);
        ml_pool_attach(pool, ledger->view, index, ledger->seat.me);
        pool->private_fallback = false;
        ml_pool_republish(ledger, pool);
        ml_lock_release(&ledger->lock);
    }
}

static void pass_on_asked(ml_ledger *ledger, uint64_t now_ns) {
    ml_slot *slot = ledger->seat.slot;
    if (!slot) return;
    if (ml_load_relaxed(&ledger->asked)) {
        ml_store_relaxed(&ledger->asked, 0);
        ML_KILL_POINT("tick.asked");
        ml_store_release(&slot->asked, 1);
        ledger->asked_clear_at_ns = now_ns + ASKED_NS;
    } else if (now_ns >= ledger->asked_clear_at_ns && ml_load_relaxed(&slot->asked)) {
        ML_KILL_POINT("tick.asked_clear");
        ml_store_release(&slot->asked, 0);
    }
}

int ml_ledger_tick(ml_ledger *ledger, ml_tick *out) {
    memset(out, 0, sizeof *out);
    out->next_ns = ML_PERIOD_IDLE_NS;
    if (ml_is_forked(ledger)) join_after_fork(ledger);
    if (ml_load_acquire(&ledger->closed)) return ML_ERR_CLOSED;
    uint64_t now_ns = os_now_ns();
    ml_cold_lock(ledger);
    if (ml_load_acquire(&ledger->closed)) { /* left meanwhile: nothing may join again */
        ml_cold_unlock(ledger);
        return ML_ERR_CLOSED;
    }
    uint64_t moves = ledger->rejoin_count;
    /* First, so that a segment which was cut short is not touched any more. */
    if (ledger->mode == ML_MODE_SHARED)
        verify_segment(ledger, now_ns);
    else
        retry(ledger, now_ns);
    bool lost = ledger->seat.slot && ml_load_acquire(&ledger->seat.slot->state) != ledger->seat.slot_word;
    if (lost) ml_ledger_attach(ledger);
    move_lost_pools(ledger);
    /* Then expiry, which writes to the own records: they are ours only now. */
    ml_lock_wait(&ledger->lock);
    ml_claims_expire(ledger, now_ns);
    for (const ml_claim *claim = ledger->claims; claim; claim = claim->next)
        if (claim->deadline_ns) out->next_ns = ML_PERIOD_BUSY_NS;
    ml_lock_release(&ledger->lock);
    retry_private_pools(ledger);
    pass_on_asked(ledger, now_ns);
    ml_people_refresh(ledger);
    ml_ask_tick(ledger, now_ns);
    for (unsigned n = 0; n < ledger->pool_count; n++) ml_reading_due(ledger, &ledger->pool[n], n, now_ns, out);
    ledger->period_ns = out->next_ns;
    out->changed = ledger->rejoin_count != moves;
    ml_cold_unlock(ledger);
    return ML_OK;
}
