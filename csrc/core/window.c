/* Windows: a short time in which a member must not be disturbed. docs/protocols.md, "Window".
 *
 * Open, then look, and go in only when nobody else has one open. Of two that open at once at least one sees the other:
 * the later ticket closes and waits, the earlier one stays until the later has closed or gone in. Going in changes the
 * word: a ticket is taken before it is stored, so an earlier ticket may come to light behind a later one that is in
 * already, and then it is the earlier one that has to go.
 *
 * Every wait is capped by the waiter's own clock from the moment it first saw the window, so a dead or stopped owner
 * holds nobody longer than the window was announced for. */
#include "core/core.h"

#define STEP_NS UINT64_C(500000)
#define OPEN_TRIES 64
#define MS_BITS ((UINT64_C(1) << 29) - 1)
#define INSIDE (UINT64_C(1) << 29)    /* it has looked, and nobody was there */
#define MS_MAX 30000                  /* what a word may announce: a wrong one must not hold siblings for days */
#define OPEN_NS UINT64_C(30000000000) /* and how long open waits for others in all */

#define WINDOW(ticket, ms) ((uint64_t)(ticket) << 30 | (ms))
#define WINDOW_TICKET(word) ((word) >> 30)
#define WINDOW_NS(word) (ml_min_u64((word) & MS_BITS, MS_MAX) * UINT64_C(1000000))

static bool earlier(uint64_t a, uint64_t b) {
    return ((b - a) & ML_TICKET_MASK) - 1 < ML_TICKET_MASK / 2;
}

/* One window of somebody else that is open now; 0: none. Those in `ignored` have had their time. */
static uint64_t other_window(const ml_local_pool *pool, const uint64_t ignored[ML_SLOTS_MAX], unsigned *slot) {
    ML_FOR_EACH_SLOT(i, ML_SLOT_BITS(pool->entry->openers), pool->view->slot_count) {
        if (i == pool->me) continue;
        uint64_t word = ml_load_seq_cst(&ml_view_record(pool->view, pool->index, i)->window);
        if (word == 0 || word == ignored[i]) continue;
        *slot = i;
        return word;
    }
    return 0;
}

/* Until that window is closed, its announced time has passed since now, or the deadline. */
static void outwait(const ml_local_pool *pool, unsigned slot, uint64_t word, uint64_t deadline_ns,
                    uint64_t ignored[ML_SLOTS_MAX]) {
    uint64_t over_ns = ml_add_sat(os_now_ns(), WINDOW_NS(word)), end_ns = ml_min_u64(deadline_ns, over_ns);
    const ml_u64 *window = &ml_view_record(pool->view, pool->index, slot)->window;
    while (ml_load_acquire(window) == word) {
        uint64_t now_ns = os_now_ns();
        if (now_ns >= over_ns) ignored[slot] = word;
        if (now_ns >= end_ns) return;
        os_sleep_ns(ml_min_u64(STEP_NS, end_ns - now_ns));
    }
}

static int set_window(ml_device *device, uint64_t word) {
    int status = ml_enter_wait(device->ledger);
    if (status != ML_OK) return status;
    ml_local_pool *pool = device->level[0];
    if (pool->me != ML_NO_SLOT) {
        ML_KILL_POINT("window.word");
        ml_exchange_seq_cst(&pool->own->window, word);
    }
    ml_lock_release(&device->ledger->lock);
    return ML_OK;
}

int ml_window_open(ml_device *device, uint64_t max_ns, uint64_t *waited_ns) {
    ml_local_pool *pool = device->level[0];
    uint64_t ignored[ML_SLOTS_MAX] = {0}, start_ns = os_now_ns(), ms = ml_min_u64((max_ns + 999999) / 1000000, MS_MAX);
    uint64_t deadline_ns = ml_add_sat(start_ns, OPEN_NS), word = 0;
    *waited_ns = 0;
    /* One ticket for all tries: with new ones two could make way for each other for ever. */
    ML_KILL_POINT("window.ticket");
    uint64_t ticket = ml_fetch_add_seq_cst(&pool->entry->window_ticket, 1) & ML_TICKET_MASK;
    for (int i = 0; i < OPEN_TRIES; i++) {
        unsigned slot = 0;
        int status = set_window(device, WINDOW(ticket, ms ? ms : 1));
        if (status != ML_OK) return status;
        for (int n = 0; n < ML_SLOTS_MAX && (word = other_window(pool, ignored, &slot)) != 0; n++) {
            if ((word & INSIDE) || !earlier(ticket, WINDOW_TICKET(word))) break;
            outwait(pool, slot, word, deadline_ns, ignored);
        }
        *waited_ns = os_now_ns() - start_ns;
        if (word == 0) return set_window(device, WINDOW(ticket, ms ? ms : 1) | INSIDE);
        status = set_window(device, 0);
        if (status != ML_OK) return status;
        outwait(pool, slot, word, deadline_ns, ignored);
    }
    *waited_ns = os_now_ns() - start_ns;
    return ML_BUSY;
}

void ml_window_close(ml_device *device) {
    (void)set_window(device, 0);
}

int ml_window_wait_clear(ml_device *device, uint64_t timeout_ns) {
    const ml_local_pool *pool = device->level[0];
    uint64_t ignored[ML_SLOTS_MAX] = {0}, deadline_ns = ml_add_sat(os_now_ns(), timeout_ns), word;
    unsigned slot = 0;
    while ((word = other_window(pool, ignored, &slot)) != 0) {
        if (os_now_ns() >= deadline_ns) return ML_BUSY;
        outwait(pool, slot, word, deadline_ns, ignored);
    }
    return ML_OK;
}
