/* What sources say about whole pools: taking a reading, publishing it, and what follows from it.
 *
 * Each pool entry has one word `newest` {sequence, slot}. A reader loads it before it asks the source, writes the
 * reading into its own slot's ring under its handle's lock, then moves `newest` by CAS from the value loaded: a late
 * reading never wins. */
#include "core/snapshot.h"

#include <string.h>

#define SAMPLE_TRIES 4
#define SHORTEST_TICK_NS UINT64_C(5000000)
#define FROZEN_BYTES (UINT64_C(256) << 20)
#define FROZEN_READINGS 2 /* identical to the one before, this many times: three in a row */

#define NEWEST(sequence, slot) ((uint64_t)(sequence) << 16 | ((uint64_t)(slot) + 1))
#define NEWEST_SEQUENCE(word) ((word) >> 16)
#define NEWEST_SLOT(word) ((unsigned)((word) & 0xffff) - 1)

static void cell_load(const ml_reading_cell *cell, ml_sample *out) {
    out->time_ns = ml_load_acquire(&cell->time_ns);
    out->total = ml_load_acquire(&cell->total);
    out->free = ml_load_acquire(&cell->free);
    out->reserved = ml_load_acquire(&cell->reserved);
    out->immediate = ml_load_acquire(&cell->immediate);
    out->soft_limit = ml_load_acquire(&cell->soft_limit);
    out->source = ml_load_acquire(&cell->source);
    uint64_t meta = ml_load_acquire(&cell->meta);
    out->scope = (unsigned)(meta & 0xff);
    out->reason = (unsigned)(meta >> 8 & 0xff);
    out->flags = (unsigned)(meta >> 16 & 0xff);
    out->identical = (unsigned)(meta >> 24 & 0xff);
    out->unaccounted = ml_load_acquire(&cell->unaccounted);
    for (int j = 0; j < 2; j++) {
        out->excess[j] = ml_load_acquire(&cell->excess[j]);
        out->held[j] = ml_load_acquire(&cell->held[j]);
    }
    out->pair_time_ns = ml_load_acquire(&cell->pair_time_ns);
    out->run_sequence = ml_load_acquire(&cell->run_sequence);
    out->run_held = ml_load_acquire(&cell->run_held);
    out->run_unaccounted = ml_load_acquire(&cell->run_unaccounted);
    out->run_claims = ml_load_acquire(&cell->run_claims);
}

static inline void put(ml_u64 *field, uint64_t value) {
    ML_KILL_POINT("reading.field");
    ml_store_release(field, value);
}

static void cell_store(ml_reading_cell *cell, const ml_sample *in) {
    ML_KILL_POINT("reading.tag_clear");
    ml_exchange_seq_cst(&cell->tag, 0);
    /* [O4] Fields with release after the tag was cleared. Other end: ml_sample_newest checks the tag again after its
     * loads. Else: a user mixes the total of one reading with the free of another. */
    put(&cell->time_ns, in->time_ns);
    put(&cell->total, in->total);
    put(&cell->free, in->free);
    put(&cell->reserved, in->reserved);
    put(&cell->immediate, in->immediate);
    put(&cell->soft_limit, in->soft_limit);
    put(&cell->source, in->source);
    put(&cell->meta,
        (uint64_t)in->scope | (uint64_t)in->reason << 8 | (uint64_t)in->flags << 16 | (uint64_t)in->identical << 24);
    put(&cell->unaccounted, in->unaccounted);
    for (int j = 0; j < 2; j++) {
        put(&cell->excess[j], in->excess[j]);
        put(&cell->held[j], in->held[j]);
    }
    put(&cell->pair_time_ns, in->pair_time_ns);
    put(&cell->run_sequence, in->run_sequence);
    put(&cell->run_held, in->run_held);
    put(&cell->run_unaccounted, in->run_unaccounted);
    put(&cell->run_claims, in->run_claims);
    ML_KILL_POINT("reading.tag");
    ml_store_release(&cell->tag, in->sequence);
}

/* Hostile bytes: whatever a cell says, no figure made from it may exceed what a source could have said. */
static void clamp(ml_sample *s) {
    if (s->reason > ML_REASON_PRIVATE) s->reason = ML_REASON_IMPLAUSIBLE;
    if (s->reason != ML_REASON_NONE) return;
    if (s->total == 0 || s->total > ML_BYTES_MAX || s->free > s->total) {
        s->reason = ML_REASON_IMPLAUSIBLE;
        return;
    }
    s->reserved = ml_min_u64(s->reserved, s->total);
    s->unaccounted = ml_min_u64(s->unaccounted, s->total);
    s->run_unaccounted = ml_min_u64(s->run_unaccounted, s->total);
    for (int j = 0; j < 2; j++) s->excess[j] = ml_min_u64(s->excess[j], s->total);
}

bool ml_sample_newest(const ml_view *view, unsigned index, const ml_pool *entry, ml_sample *out) {
    for (int i = 0; i < SAMPLE_TRIES; i++) {
        uint64_t newest = ml_load_acquire(&entry->newest);
        uint64_t sequence = NEWEST_SEQUENCE(newest);
        unsigned slot = NEWEST_SLOT(newest);
        if (newest == 0 || slot >= view->slot_count) {
            memset(out, 0, sizeof *out);
            return true;
        }
        const ml_reading_cell *cell = ml_view_cell(view, index, slot, sequence);
        ml_sample s;
        if (ml_load_acquire(&cell->tag) != sequence) continue;
        cell_load(cell, &s);
        if (ml_load_acquire(&cell->tag) != sequence) continue; /* [O4] */
        s.sequence = sequence;
        s.slot = slot;
        clamp(&s);
        *out = s;
        return true;
    }
    return false;
}

static ml_figure figure_of(const ml_view *view, unsigned index, unsigned slot) {
    ml_figure f;
    uint64_t version;
    (void)ml_record_read(ml_view_record(view, index, slot), &f, &version);
    return f;
}

static uint64_t held_of(const ml_view *view, unsigned index, unsigned slot) {
    return figure_of(view, index, slot).held;
}

/* What pair j of `from` says about unaccounted bytes, now that members publish `held` in all: what they have published
 * since was in flight between the driver and the ledger then, or has landed since; either way it is nobody else's. */
static uint64_t said_by(const ml_sample *from, unsigned j, uint64_t held) {
    return ml_sub_sat(from->excess[j], ml_sub_sat(held, from->held[j]));
}

/* U: what the newest reading shows as used and nobody holds, or the one before it where that says more: a member that
 * has freed bytes and not published it yet hides as many foreign ones. */
static uint64_t unaccounted_of(const ml_sample *s) {
    /* Growth since the reading before is taken off it only where the newest one is not itself masked by somebody's late
     * shrink: else foreign bytes would vanish behind the growth of one member and the shrink of another. */
    if (!(s->flags & ML_SAMPLE_SETTLED)) return ml_max_u64(s->excess[0], s->excess[1]);
    return ml_max_u64(s->excess[0], said_by(s, 1, s->held[0]));
}

/* The newest pair of `previous` becomes the older one of `s`. A reading that follows closer than one and a half periods
 * does not push it out unless it says more, so that somebody who refreshes in a loop does not shorten the window. */
static void carry_pair(ml_sample *s, const ml_sample *previous) {
    /* A pair from the future is of another member's clock, which rules nothing here: it moves on. */
    bool close = previous->pair_time_ns != 0 && s->time_ns >= previous->pair_time_ns &&
                 s->time_ns - previous->pair_time_ns < ML_PERIOD_BUSY_NS + ML_PERIOD_BUSY_NS / 2;
    unsigned j = close && said_by(previous, 1, s->held[0]) > said_by(previous, 0, s->held[0]) ? 1 : 0;
    s->excess[1] = previous->excess[j];
    s->held[1] = previous->held[j];
    s->pair_time_ns = close ? previous->pair_time_ns : previous->time_ns;
}

/* How far held moved from `from` by more than the claims explain. A claim that is settled late turns into held long
 * after its bytes have landed, and what it had promised beyond them just goes: a fall of the claims explains as much
 * growth of held, and nothing else. One that replaces bytes grows as they go. */
static uint64_t moved_by(uint64_t from_held, uint64_t from_claims, uint64_t held, uint64_t claims) {
    if (held >= from_held) return ml_sub_sat(held - from_held, ml_sub_sat(from_claims, claims));
    return ml_sub_sat(from_held - held, ml_sub_sat(claims, from_claims));
}

/* Held bytes of members that published here for the first time during the run of identical readings: they may have
 * held them all along, so they prove nothing. */
static uint64_t joined_during(const ml_view *view, unsigned index, const ml_pool *entry, uint64_t run_sequence) {
    uint64_t joined = 0;
    ML_FOR_EACH_SLOT(i, ML_SLOT_BITS(entry->publishers), view->slot_count) {
        const ml_record *record = ml_view_record(view, index, i);
        if (ml_load_acquire(&record->first_sequence) >= run_sequence)
            joined = ml_add_sat(joined, ml_min_u64(ml_load_acquire(&record->first_held), ML_BYTES_MAX));
    }
    return joined;
}

/* A source that answers the same to the bit while the ledger moves is not measuring. */
static void judge_frozen(const ml_view *view, unsigned index, const ml_pool *entry, ml_sample *s,
                         const ml_sample *previous) {
    s->run_sequence = s->sequence;
    s->run_held = s->held[0];
    s->run_unaccounted = s->unaccounted;
    s->run_claims = s->claims;
    if (!previous->sequence || previous->reason != ML_REASON_NONE || previous->free != s->free ||
        previous->total != s->total)
        return;
    s->identical = previous->identical < 255 ? previous->identical + 1 : 255;
    s->run_sequence = previous->run_sequence;
    s->run_held = previous->run_held;
    s->run_unaccounted = previous->run_unaccounted;
    s->run_claims = previous->run_claims;
    /* The first of the run may have been taken while a member had freed bytes that it had not published: then its U was
     * too small, and the second one tells. */
    if (s->identical == 1) s->run_unaccounted = ml_max_u64(s->run_unaccounted, s->unaccounted);
    if (s->identical < FROZEN_READINGS) return;
    uint64_t held = ml_sub_sat(s->held[0], joined_during(view, index, entry, s->run_sequence));
    uint64_t moved = moved_by(s->run_held, s->run_claims, held, s->claims);
    if (moved <= FROZEN_BYTES && !(previous->flags & ML_SAMPLE_FROZEN)) return;
    s->flags |= ML_SAMPLE_FROZEN;
    s->unaccounted = s->run_unaccounted;
}

int ml_reading_begin(ml_ledger *ledger, unsigned number, const uint64_t *dead, ml_reading_op *op) {
    memset(op, 0, sizeof *op);
    ml_lock_wait(&ledger->lock);
    bool known = number < ledger->pool_count;
    ml_view *view = known ? ledger->pool[number].view : NULL;
    unsigned index = known ? ledger->pool[number].index : 0;
    ml_lock_release(&ledger->lock);
    if (!known) return ML_ERR_ARGUMENT;
    ml_pool *entry = ml_view_pool(view, index);
    op->pool = number;
    op->view = view;
    if (dead) memcpy(op->dead, dead, sizeof op->dead);
    op->newest = ml_load_acquire(&entry->newest);
    ML_FOR_EACH_SLOT(i, ML_SLOT_BITS(entry->publishers), view->slot_count) op->held_before[i] = held_of(view, index, i);
    op->begin_ns = os_now_ns();
    return ML_OK;
}

bool ml_reading_plausible(const ml_reading *r) {
    return r->total > 0 && r->total <= ML_BYTES_MAX && r->free <= r->total && r->reserved <= r->total - r->free;
}

/* Fill *s from what the source said. */
static void measure(const ml_view *view, unsigned index, const ml_pool *entry, const ml_reading_op *op,
                    const ml_reading *r, uint64_t took_ns, const ml_sample *previous, ml_sample *s) {
    memset(s, 0, sizeof *s);
    s->sequence = NEWEST_SEQUENCE(op->newest) + 1;
    s->time_ns = ml_sub_sat(os_boottime_ns(), took_ns); /* when the source was asked */
    s->source = r->source;
    s->immediate = r->immediate;
    s->soft_limit = r->soft_limit;
    s->flags = r->flags & (ML_SAMPLE_SETTLED - 1);
    s->reason = r->reason;
    if (s->reason == ML_REASON_NONE && !ml_reading_plausible(r)) s->reason = ML_REASON_IMPLAUSIBLE;
    if (s->reason != ML_REASON_NONE) {
        /* Absent. What is known of the window stays, for the next reader. */
        memcpy(s->excess, previous->excess, sizeof s->excess);
        memcpy(s->held, previous->held, sizeof s->held);
        s->pair_time_ns = previous->pair_time_ns;
        s->unaccounted = previous->unaccounted;
        return;
    }
    s->scope = r->scope;
    s->total = r->total;
    s->free = r->free;
    s->reserved = r->reserved;
    ML_FOR_EACH_SLOT(i, ML_SLOT_BITS(entry->publishers), view->slot_count) {
        if (ml_bit_in(op->dead, i)) continue;
        ml_figure f = figure_of(view, index, i);
        /* The smaller of before and after: bytes that came or went while the driver was asked are not surely in
         * its answer. */
        s->held[0] = ml_add_sat(s->held[0], ml_min_u64(op->held_before[i], f.held));
        s->claims = ml_add_sat(s->claims, f.claims);
    }
    s->excess[0] = ml_sub_sat(r->total - r->reserved - r->free, s->held[0]);
    carry_pair(s, previous);
    s->unaccounted = unaccounted_of(s);
    judge_frozen(view, index, entry, s, previous);
}

/* Under M, or while the slot is not live yet. */
static bool publish_sample(ml_view *view, unsigned index, unsigned writer, uint64_t from, ml_sample *s) {
    ml_pool *entry = ml_view_pool(view, index);
    /* Only from the newest: a cell that `newest` points to is then never the one being written. */
    if (ml_load_acquire(&entry->newest) != from) return false;
    s->sequence = NEWEST_SEQUENCE(from) + 1;
    cell_store(ml_view_cell(view, index, writer, s->sequence), s);
    ML_KILL_POINT("reading.newest");
    if (!ml_cas_seq_cst(&entry->newest, from, NEWEST(s->sequence, writer))) return false;
    ML_KILL_POINT("reading.change");
    ml_fetch_add_seq_cst(&entry->change, 1);
    return true;
}

/* Somebody holds, claims or waits in line; or a reading showed less unaccounted than the window still counts, so that
 * bytes which have just come free (a dead member's, say) wait for the next two readings. */
static bool is_busy(const ml_local_pool *pool) {
    ML_FOR_EACH_SLOT(i, ML_SLOT_BITS(pool->entry->publishers), pool->view->slot_count) {
        const ml_record *record = ml_view_record(pool->view, pool->index, i);
        if (ml_load_acquire(&record->word) != 0 || ml_load_acquire(&record->waiting) != 0) return true;
    }
    ml_sample newest;
    bool known = ml_sample_newest(pool->view, pool->index, pool->entry, &newest) && newest.sequence;
    return known && newest.reason == ML_REASON_NONE && newest.unaccounted > newest.excess[0];
}

static uint64_t period_of(const ml_local_pool *pool) {
    return is_busy(pool) ? ML_PERIOD_BUSY_NS : ML_PERIOD_IDLE_NS;
}

int ml_reading_end(ml_ledger *ledger, const ml_reading_op *op, const ml_reading *reading) {
    if (op->pool >= ML_LOCAL_POOLS_MAX || !op->view || reading->scope == ML_SCOPE_PROCESS) return ML_ERR_ARGUMENT;
    uint64_t end_ns = os_now_ns(), took_ns = end_ns - op->begin_ns;
    ml_lock_wait(&ledger->lock);
    ml_local_pool *pool = &ledger->pool[op->pool];
    if (ml_load_relaxed(&ledger->closed)) {
        ml_lock_release(&ledger->lock);
        return ML_ERR_CLOSED;
    }
    if (reading->reason == ML_REASON_NONE && took_ns > period_of(pool)) {
        ml_lock_release(&ledger->lock);
        return ML_NOT_READY;
    }
    int status = ML_BUSY;
    if (pool->view == op->view && pool->me != ML_NO_SLOT) {
        ml_sample previous, s;
        if (!ml_sample_newest(pool->view, pool->index, pool->entry, &previous)) memset(&previous, 0, sizeof previous);
        measure(pool->view, pool->index, pool->entry, op, reading, took_ns, &previous, &s);
        if (publish_sample(pool->view, pool->index, pool->me, op->newest, &s)) {
            status = ML_OK;
            ml_store_release(&pool->own_reading_ns, op->begin_ns);
            pool->excluded_newest = NEWEST(s.sequence, pool->me);
            memcpy(pool->excluded_dead, op->dead, sizeof op->dead);
        }
    }
    ml_lock_release(&ledger->lock);
    return status;
}

/* Has any member that belongs to this reading come to hold less since it was begun? */
static bool somebody_shrank(const ml_local_pool *pool, const ml_reading_op *op) {
    ML_FOR_EACH_SLOT(i, ML_SLOT_BITS(pool->entry->publishers), pool->view->slot_count) {
        if (!ml_bit_in(op->dead, i) && held_of(pool->view, pool->index, i) < op->held_before[i]) return true;
    }
    return false;
}

/* Under M: the newest reading, if it is the one of `op`. */
static int settle(ml_local_pool *pool, const ml_reading_op *op) {
    uint64_t newest = ml_load_acquire(&pool->entry->newest);
    ml_sample s;
    bool ours = pool->view == op->view && newest == pool->excluded_newest &&
                NEWEST_SEQUENCE(newest) == NEWEST_SEQUENCE(op->newest) + 1;
    if (!ours || !ml_sample_newest(pool->view, pool->index, pool->entry, &s) || s.reason != ML_REASON_NONE)
        return ML_BUSY;
    if (somebody_shrank(pool, op)) return ML_NOT_READY;
    s.flags |= ML_SAMPLE_SETTLED;
    uint64_t unaccounted = s.flags & ML_SAMPLE_FROZEN ? s.unaccounted : unaccounted_of(&s);
    if (unaccounted == s.unaccounted) return ML_OK; /* the caution cost nothing: no need to publish it again */
    s.unaccounted = unaccounted;
    ML_KILL_POINT("reading.settle");
    if (!publish_sample(pool->view, pool->index, pool->me, newest, &s)) return ML_BUSY;
    pool->excluded_newest = NEWEST(s.sequence, pool->me);
    return ML_OK;
}

int ml_reading_settle(ml_ledger *ledger, const ml_reading_op *op) {
    int status = ml_enter_wait(ledger);
    if (status != ML_OK) return status;
    status = op->pool < ledger->pool_count && ledger->pool[op->pool].me != ML_NO_SLOT ? ML_OK : ML_BUSY;
    if (status == ML_OK) status = settle(&ledger->pool[op->pool], op);
    ml_lock_release(&ledger->lock);
    return status;
}

int ml_reading_local(ml_ledger *ledger, unsigned number, const ml_reading *reading) {
    int status = ml_enter_wait(ledger);
    if (status != ML_OK) return status;
    status = number < ledger->pool_count ? ML_OK : ML_ERR_ARGUMENT;
    if (status == ML_OK) {
        ml_local_pool *pool = &ledger->pool[number];
        bool usable = reading->reason == ML_REASON_NONE && ml_reading_plausible(reading);
        pool->local = usable ? *reading : (ml_reading){0};
        pool->totals_valid = false;
        ML_KILL_POINT("reading.local_change");
        ml_fetch_add_seq_cst(&pool->entry->change, 1);
    }
    ml_lock_release(&ledger->lock);
    return status;
}

void ml_reading_carry(ml_view *view, unsigned index, unsigned writer, const uint64_t *dead) {
    ml_pool *entry = ml_view_pool(view, index);
    for (int i = 0; i < SAMPLE_TRIES; i++) {
        uint64_t newest = ml_load_acquire(&entry->newest), gone = 0;
        ml_sample s;
        if (newest == 0 || !ml_sample_newest(view, index, entry, &s) || s.sequence == 0) return;
        ML_FOR_EACH_SLOT(j, ML_SLOT_BITS(entry->publishers), view->slot_count) {
            if (ml_bit_in(dead, j)) gone = ml_add_sat(gone, held_of(view, index, j));
        }
        if (gone == 0 || s.reason != ML_REASON_NONE) return;
        uint64_t taken = ml_min_u64(gone, s.held[0]);
        s.held[0] -= taken;
        /* To U alone, not to the pairs: the next real reading tells at once whether the driver has given them back. */
        s.run_unaccounted = ml_min_u64(ml_add_sat(s.run_unaccounted, taken), s.total);
        s.unaccounted = ml_min_u64(ml_add_sat(s.unaccounted, taken), s.total);
        ML_KILL_POINT("reading.carry");
        if (publish_sample(view, index, writer, newest, &s)) return;
    }
}

int ml_reading_get(ml_ledger *ledger, unsigned number, ml_reading *out) {
    if (ml_is_forked(ledger)) (void)ml_ledger_recover(ledger, ML_SLOW_FORK);
    ml_lock_wait(&ledger->lock);
    bool known = number < ledger->pool_count;
    ml_sample s = {0};
    if (known) s = ml_totals_get(&ledger->pool[number])->sample;
    ml_lock_release(&ledger->lock);
    if (!known) return ML_ERR_ARGUMENT;
    ml_sample_to_reading(&s, out);
    return s.sequence && s.reason == ML_REASON_NONE ? ML_OK : ML_NOT_READY;
}

/* ---- when ---- */

static bool somebody_asked(const ml_view *view, const ml_pool *entry) {
    ML_FOR_EACH_SLOT(i, ML_SLOT_BITS(entry->openers), view->slot_count) {
        if (ml_load_acquire(&ml_view_slot(view, i)->asked)) return true;
    }
    return false;
}

static void publish_stale(ml_local_pool *pool) {
    uint64_t newest = ml_load_acquire(&pool->entry->newest);
    ml_sample s;
    if (pool->me == ML_NO_SLOT || newest == 0) return;
    if (!ml_sample_newest(pool->view, pool->index, pool->entry, &s)) return;
    if (s.sequence == 0 || s.reason != ML_REASON_NONE) return;
    s.reason = ML_REASON_STALE;
    ML_KILL_POINT("reading.stale");
    (void)publish_sample(pool->view, pool->index, pool->me, newest, &s);
}

static bool is_refresher(ml_local_pool *pool) {
    os_error error;
    if (!pool->view->shared || pool->refresher.page || pool->refresher.extra) return true;
    return os_token_take(pool->view->path, &pool->view->segment, pool->view->lock_kind, OS_LOCK_REFRESHER + pool->index,
                         &pool->refresher, &error) == OS_OK;
}

void ml_reading_due(ml_ledger *ledger, ml_local_pool *pool, unsigned number, uint64_t now_ns, ml_tick *tick) {
    uint64_t newest = ml_load_acquire(&pool->entry->newest);
    if (newest != pool->newest_seen || pool->newest_seen_ns == 0) {
        /* A reading of another member is as old as our having seen it: no clock of another is obeyed. */
        bool own = newest && pool->me != ML_NO_SLOT && NEWEST_SLOT(newest) == pool->me;
        uint64_t own_ns = ml_load_acquire(&pool->own_reading_ns);
        pool->newest_seen = newest;
        pool->newest_seen_ns = own && own_ns && own_ns < now_ns ? own_ns : now_ns;
    }
    uint64_t period = period_of(pool);
    bool wanted = period == ML_PERIOD_BUSY_NS || somebody_asked(pool->view, pool->entry);
    uint64_t age = newest ? now_ns - pool->newest_seen_ns : UINT64_MAX;
    if (!wanted) {
        pool->wanted_ns = 0;
        ml_store_relaxed(&pool->due, pool->can_read && age > 2 * period);
        return;
    }
    if (!pool->wanted_ns) pool->wanted_ns = now_ns;
    uint64_t left = age < period ? period - age : period;
    tick->next_ns = ml_min_u64(tick->next_ns, ml_max_u64(left, SHORTEST_TICK_NS));
    ml_store_relaxed(&pool->due, pool->can_read && age > 2 * period);
    /* Its lock saves work; it is not the right to read: a refresher may be stopped, hung in a driver, or starved. */
    if (pool->can_read && age >= period - period / 8 && (age > 2 * period || is_refresher(pool)))
        tick->due_pools |= UINT64_C(1) << number;
    if (newest && ml_min_u64(age, now_ns - pool->wanted_ns) > ML_STALE_PERIODS * period) {
        ml_lock_wait(&ledger->lock);
        publish_stale(pool);
        ml_lock_release(&ledger->lock);
    }
}
