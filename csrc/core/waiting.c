/* Standing in line, and the claim that blocks. docs/claims.md, "The waiting ticket". */
#include "core/waiting.h"
#include "core/hot.h"

#include <stdlib.h>
#include <string.h>

#define STEP_NS UINT64_C(1000000)
#define STOP_EVERY_NS UINT64_C(50000000)
#define BUSY_NS UINT64_C(50000)
#define BUSY_LIMIT 64

#define WAITING_WORD(ticket, units) ((uint64_t)(ticket) << 30 | (units))
#define WAITING_TICKET(word) ((word) >> 30)
#define WAITING_UNITS(word) ((word) & ML_UNITS_MAX)

/* Since when this process has known somebody's ticket, by its own clock: no clock or deadline in the segment is
 * obeyed. A (slot, generation) is honoured for at most 0.5 s in 5 s, so that one which waits again and again cannot
 * starve the others. */
typedef struct waiter {
    uint64_t word, generation, since_ns, looked_ns, window_ns, spent_ns;
} waiter;
struct ml_waiters {
    waiter of[ML_SLOTS_MAX];
};

static bool honoured(ml_local_pool *pool, unsigned slot, uint64_t word, uint64_t now_ns) {
    if (!pool->waiters) pool->waiters = calloc(1, sizeof *pool->waiters);
    if (!pool->waiters) return false; /* out of memory: nobody is honoured; safety does not depend on it */
    waiter *w = &pool->waiters->of[slot];
    uint64_t generation = ML_SLOT_GENERATION(ml_load_acquire(&ml_view_slot(pool->view, slot)->state));
    if (w->generation != generation) memset(w, 0, sizeof *w);
    if (w->word != word) {
        w->spent_ns = ml_add_sat(w->spent_ns, ml_sub_sat(w->looked_ns, w->since_ns));
        w->word = word;
        w->generation = generation;
        w->since_ns = now_ns;
        if (ml_sub_sat(now_ns, w->window_ns) >= ML_WAIT_BUDGET_NS) {
            w->window_ns = now_ns;
            w->spent_ns = 0;
        }
    }
    w->looked_ns = now_ns;
    return ml_add_sat(w->spent_ns, ml_sub_sat(now_ns, w->since_ns)) < ML_WAIT_HONOURED_NS;
}

/* Is `other` earlier than `own`, both modulo 2^34? */
static bool earlier(uint64_t other, uint64_t own) {
    return ((own - other) & ML_TICKET_MASK) - 1 < ML_TICKET_MASK / 2;
}

static void note(ml_ticket *ticket, ml_local_pool *pool) {
    ML_FOR_EACH_SLOT(i, ML_SLOT_BITS(pool->entry->publishers), pool->view->slot_count) {
        if (i == pool->me) continue;
        uint64_t word = ml_load_acquire(&ml_view_record(pool->view, pool->index, i)->waiting);
        if (word && (!ticket->taken || earlier(WAITING_TICKET(word), ticket->number))) ticket->noted[i] = word;
    }
    ticket->looked = true;
}

bool ml_ticket_look(ml_ticket *ticket, ml_local_pool *pool, uint64_t taken, uint64_t top) {
    if (!ticket) return false;
    if (!ticket->looked) note(ticket, pool);
    uint64_t ahead = 0;
    for (unsigned i = 0; i < pool->view->slot_count; i++) {
        if (!ticket->noted[i]) continue;
        ml_u64 *waiting = &ml_view_record(pool->view, pool->index, i)->waiting;
        uint64_t word = ticket->noted[i];
        if (ml_load_acquire(waiting) != word) {
            ticket->noted[i] = 0;
        } else if (honoured(pool, i, word, ticket->now_ns)) {
            ahead += WAITING_UNITS(word);
        } else {
            /* Its time has run out: later comers shall not pay again. The owner finds 0 and is an ordinary claimer.
             * By CAS: a newer ticket of the same slot must stay. */
            ML_KILL_POINT("waiting.expire");
            (void)ml_cas_acq_rel(waiting, word, 0);
            ticket->noted[i] = 0;
        }
    }
    return taken + ahead <= top;
}

static ml_local_pool *outermost(const ml_device *device) {
    return device->level[device->level_count - 1];
}

/* Could the claim ever be granted, if everybody else gave back all they have? Others must not be held up for less. */
static bool can_fit(ml_device *device, uint64_t bytes) {
    for (unsigned l = 0; l < device->level_count; l++) {
        const ml_totals *totals = ml_totals_get(device->level[l]);
        uint64_t mine = ml_add_sat(ml_add_sat(device->level[l]->held, device->level[l]->claims), bytes);
        if (totals->known && (mine >> device->level[l]->shift) > totals->units) return false;
    }
    return true;
}

/* Stand in line. Under M. */
static void take(ml_ticket *ticket, ml_device *device, uint64_t bytes) {
    ml_local_pool *pool = outermost(device);
    /* One word per member: a second thread of this process that waits here does so without a place in line. */
    if (ticket->taken || pool->me == ML_NO_SLOT || ml_load_relaxed(&pool->own->waiting)) return;
    if (!can_fit(device, bytes)) return;
    ML_KILL_POINT("waiting.ticket");
    ticket->number = ml_fetch_add_seq_cst(&pool->entry->ticket, 1) & ML_TICKET_MASK;
    ticket->taken = true;
    ML_KILL_POINT("waiting.publishers");
    ml_bit_set(pool->entry->publishers, pool->me);
    ML_KILL_POINT("waiting.store");
    ml_store_release(&pool->own->waiting, WAITING_WORD(ticket->number, ml_units_ceil(bytes, pool->shift)));
}

/* More than some level has in all: no sibling can give back enough, so there is nothing to wait for. */
static bool exceeds_device(ml_device *device, uint64_t bytes) {
    bool exceeds = false;
    ml_lock_wait(&device->ledger->lock);
    for (unsigned l = 0; l < device->level_count; l++) {
        const ml_totals *totals = ml_totals_get(device->level[l]);
        exceeds = exceeds || (totals->known && bytes > ml_add_sat(totals->usable_bytes, totals->headroom_bytes));
    }
    ml_lock_release(&device->ledger->lock);
    return exceeds;
}

static void give_up(ml_ticket *ticket, ml_device *device) {
    if (!ticket->taken) return;
    ml_local_pool *pool = outermost(device);
    ml_lock_wait(&device->ledger->lock);
    ML_KILL_POINT("waiting.remove");
    if (WAITING_TICKET(ml_load_relaxed(&pool->own->waiting)) == ticket->number)
        ml_store_release(&pool->own->waiting, 0);
    /* Those behind us look again at once. */
    ML_KILL_POINT("waiting.change");
    ml_fetch_add_seq_cst(&pool->entry->change, 1);
    ml_lock_release(&device->ledger->lock);
    ticket->taken = false;
}

static uint64_t changes(const ml_device *device) {
    uint64_t sum = 0;
    for (unsigned l = 0; l < device->level_count; l++)
        sum += ml_load_acquire((const ml_u64 *)ml_ptr_load_acquire(&device->level[l]->change));
    return sum;
}

/* Until something was published, or the deadline. Publishing never wakes anybody: that would cost the hot path.
 * False: to stop. *ask_ns: when to ask for that again. */
static bool await_change(const ml_device *device, uint64_t seen, uint64_t deadline_ns, ml_stop stop, uint64_t *ask_ns) {
    for (;;) {
        uint64_t now_ns = os_now_ns();
        if (stop.asked && now_ns >= *ask_ns) {
            if (stop.asked(stop.context)) return false;
            *ask_ns = now_ns + STOP_EVERY_NS;
        }
        if (changes(device) != seen || now_ns >= deadline_ns) return true;
        os_sleep_ns(ml_min_u64(STEP_NS, deadline_ns - now_ns));
    }
}

/* Clear the dead. Worth another try even where no record had bytes left: another sweeper may have been stopped between
 * a record and its word. */
static bool sweep_once(ml_ledger *ledger) {
    ml_sweep sweep;
    uint64_t freed = 0;
    if (ml_sweep_begin(ledger, &sweep) != ML_OK || sweep.count == 0) return false;
    return ml_sweep_commit(ledger, &sweep, &freed) == ML_OK;
}

typedef int run_once(void *context, ml_ticket *ticket);

static int run_until(ml_device *device, uint64_t bytes, uint64_t timeout_ns, bool sweep, ml_stop stop, run_once *once,
                     void *context) {
    ml_ledger *ledger = device->ledger;
    ml_ticket ticket = {0};
    uint64_t start_ns = os_now_ns(), deadline_ns = ml_add_sat(start_ns, timeout_ns);
    uint64_t ask_ns = start_ns + STOP_EVERY_NS;
    bool swept = !sweep;
    int status = ML_BUSY;
    for (unsigned busy = 0;;) {
        uint64_t seen = changes(device);
        ticket.now_ns = os_now_ns();
        status = once(context, &ticket);
        if (status >= ML_SLOW_LOCK) {
            if (ml_ledger_recover(ledger, status) != ML_OK) break;
            continue;
        }
        if (status == ML_BUSY && busy++ < BUSY_LIMIT) {
            os_sleep_ns(BUSY_NS);
            continue;
        }
        if (status != ML_REFUSED && status != ML_WAITING) break;
        if (!swept) { /* also for those who died in line */
            swept = true;
            if (sweep_once(ledger)) continue;
        }
        if (ticket.now_ns >= deadline_ns || exceeds_device(device, bytes)) break;
        ml_mark_asked(ledger); /* readings go on while somebody waits for bytes */
        if (ticket.now_ns - start_ns < ML_WAIT_HONOURED_NS) {
            ml_lock_wait(&ledger->lock);
            take(&ticket, device, bytes);
            ml_lock_release(&ledger->lock);
        }
        /* Nobody publishes when the time of those ahead has run out: look again by then, they may all be stopped. */
        uint64_t look_ns = ml_max_u64(start_ns + ML_WAIT_HONOURED_NS, ticket.now_ns + STEP_NS);
        if (status != ML_WAITING) look_ns = deadline_ns;
        if (!await_change(device, seen, ml_min_u64(deadline_ns, look_ns), stop, &ask_ns)) break;
    }
    give_up(&ticket, device);
    return status;
}

typedef struct claim_context {
    ml_account *account;
    const ml_claim_request *request;
    ml_claim *claim;
} claim_context;

static int claim_once(void *context, ml_ticket *ticket) {
    claim_context *c = context;
    return ml_claim_run(c->account, c->request->bytes, c->request->replacing, c->request->ttl_ns, ticket, true,
                        c->claim);
}

int ml_claim_wait_run(ml_account *account, const ml_claim_request *request, ml_claim *claim, uint64_t *free_bytes) {
    claim_context context = {account, request, claim};
    uint64_t bytes = ml_sub_sat(request->bytes, request->replacing);
    int status =
        run_until(account->device, bytes, request->timeout_ns, request->sweep, request->stop, claim_once, &context);
    *free_bytes = 0;
    if (status != ML_OK) (void)ml_device_free(account->device, free_bytes);
    return status;
}

int ml_claim_wait(ml_account *account, uint64_t bytes, uint64_t replacing, uint64_t ttl_ns, uint64_t timeout_ns,
                  ml_claim *claim, uint64_t *free_bytes) {
    ml_claim_request request = {bytes, replacing, ttl_ns, timeout_ns, true, {NULL, NULL}};
    return ml_claim_wait_run(account, &request, claim, free_bytes);
}

typedef struct resize_context {
    ml_claim *claim;
    uint64_t bytes;
} resize_context;

static int resize_once(void *context, ml_ticket *ticket) {
    resize_context *c = context;
    return ml_claim_resize_run(c->claim, c->bytes, ticket, true);
}

int ml_claim_resize_wait(ml_claim *claim, uint64_t bytes, uint64_t timeout_ns, ml_stop stop) {
    resize_context context = {claim, bytes};
    if (!claim->account) return ML_EXPIRED;
    uint64_t grow = ml_sub_sat(bytes, claim->size_bytes);
    return run_until(claim->account->device, grow, timeout_ns, true, stop, resize_once, &context);
}
