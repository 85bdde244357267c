/* Structures of one process: the handle, what it has mapped, and its own part of each pool.
 *
 * Locks, outermost first: ml_ledger.cold (recover, tick, open, leave: may enter the kernel), then ml_ledger.lock (M:
 * publish, claim, scan; nanoseconds; never held over a system call, a callback or a wait). */
#ifndef ML_CORE_CORE_H
#define ML_CORE_CORE_H

#include "base/atomic.h"
#include "core/kill.h"
#include "core/layout.h"
#include "os/os.h"

#define ML_PERIOD_BUSY_NS UINT64_C(250000000)
#define ML_PERIOD_IDLE_NS UINT64_C(1000000000)
#define ML_LOCAL_POOLS_MAX 48 /* pools of the segment, and some that had to be opened privately */
#define ML_NO_SLOT ML_SLOTS_MAX
#define ML_STALE_PERIODS 20
#define ML_WAIT_HONOURED_NS UINT64_C(500000000)
#define ML_WAIT_BUDGET_NS UINT64_C(5000000000)

/* One mapped (or copied) segment. Immutable once made; unmapped with the handle, when nobody can be in a call. */
typedef struct ml_view {
    struct ml_view *next; /* all that this handle has mapped, under cold */
    os_segment segment;
    bool shared;
    os_lock_kind lock_kind;
    unsigned slot_count, pool_count;
    unsigned layout_major, layout_minor;
    uint64_t slot_offset, slot_stride;
    uint64_t pool_offset, pool_stride;
    uint64_t record_offset, record_stride, record_pool_stride;
    uint64_t reading_offset, reading_stride, reading_pool_stride;
    char path[ML_PATH_BYTES];
} ml_view;

static inline ml_header *ml_view_header(const ml_view *view) {
    return (ml_header *)(void *)view->segment.base;
}
static inline ml_slot *ml_view_slot(const ml_view *view, unsigned slot) {
    return (ml_slot *)(void *)(view->segment.base + view->slot_offset + slot * view->slot_stride);
}
static inline ml_pool *ml_view_pool(const ml_view *view, unsigned pool) {
    return (ml_pool *)(void *)(view->segment.base + view->pool_offset + pool * view->pool_stride);
}
static inline ml_record *ml_view_record(const ml_view *view, unsigned pool, unsigned slot) {
    return (ml_record *)(void *)(view->segment.base + view->record_offset + pool * view->record_pool_stride +
                                 slot * view->record_stride);
}
static inline ml_reading_cell *ml_view_cell(const ml_view *view, unsigned pool, unsigned slot, uint64_t sequence) {
    return (ml_reading_cell *)(void *)(view->segment.base + view->reading_offset + pool * view->reading_pool_stride +
                                       slot * view->reading_stride +
                                       (sequence % ML_READING_COPIES) * sizeof(ml_reading_cell));
}

/* A reading as copied out of its cell. */
typedef struct ml_sample {
    uint64_t sequence; /* 0: none */
    unsigned slot;
    uint64_t time_ns, total, free, reserved, immediate, soft_limit, source;
    unsigned scope, reason, flags, identical;
    uint64_t unaccounted, excess[2], held[2], pair_time_ns, run_sequence, run_held, run_unaccounted, run_claims;
    uint64_t claims; /* of all members when it was taken; not in the cell */
} ml_sample;

/* What a scan needs to know of a pool beside the words; kept until `newest` or `param_version` moves. */
typedef struct ml_totals {
    bool known;
    uint32_t flags;        /* ML_FIGURES_LEDGER, ML_FIGURES_FROZEN */
    uint64_t usable_bytes; /* T */
    uint64_t units;        /* T' = floor((T - U) / unit) */
    uint64_t thawed_units; /* the same with the newest excess for U: what a frozen source alone refuses */
    uint64_t headroom_bytes;
    uint64_t own_free_bytes; /* bound by this process's own reading; UINT64_MAX: none */
    ml_sample sample;
} ml_totals;

typedef struct ml_waiters ml_waiters;
typedef struct ml_keeper ml_keeper;

/* This process's part of one pool. Guarded by M unless said otherwise. */
typedef struct ml_local_pool {
    ml_ptr change; /* &entry->change; read without M to test a cached figure */
    ml_view *view;
    ml_pool *entry;
    ml_record *own; /* in the segment, or `scratch` where this process has no slot */
    unsigned index; /* in view */
    unsigned me;    /* own slot in view, ML_NO_SLOT when none */
    unsigned shift;
    uint64_t entry_state;                      /* entry->state as opened: a recycled entry is another pool */
    uint64_t held, releasable, pinned, claims; /* bytes, summed over this process's accounts and claims */
    uint64_t headroom, floor_bytes;
    uint64_t limit; /* UINT64_MAX: none */
    bool published;
    uint64_t seen_newest, seen_params;
    bool totals_valid;
    ml_totals totals;
    ml_reading local;    /* process-scope reading; total 0: none */
    ml_waiters *waiters; /* under M; made when the first waiting word is met */
    /* Housekeeping, under ml_ledger.cold. */
    bool can_read;
    struct ml_local_pool *twin; /* found to be the same entry as that pool of ours, and folded into it; NULL: none */
    bool private_fallback;      /* the shared table could not take it; tried again by tick */
    os_token refresher;
    uint64_t excluded_newest;              /* under M: the last reading of ours that left dead members out, */
    uint64_t excluded_dead[ML_SLOT_WORDS]; /* and which */
    uint64_t newest_seen, newest_seen_ns;  /* when this process first saw the newest reading */
    uint64_t wanted_ns;                    /* since when readings are wanted without a break; 0: not wanted */
    ml_u64 own_reading_ns;                 /* when this process last published a reading here, by os_now_ns */
    ml_u64 due;                            /* process-local: a claim should take a reading first */
    uint64_t answered_word, answered_ns;   /* under M: an answer that waits for its asker, and since when */
    char key[ML_KEY_BYTES];
    char alias[ML_ALIASES_MAX][ML_KEY_BYTES];
    unsigned kind;
    uint64_t largest_bytes;
    ml_record scratch;
} ml_local_pool;

struct ml_account {
    ml_device *device;
    ml_account *next;
    ml_amounts amounts;   /* under M */
    ml_account *moved_to; /* under M: the account that took over, when its device was moved to another chain */
    char name[32];
};

struct ml_device {
    ml_ledger *ledger;
    unsigned level_count;
    ml_local_pool *level[ML_LEVELS_MAX]; /* own pool first, outermost last */
    ml_account account;
    ml_device *next;
    /* free() as last computed, and the change counters loaded before it was. */
    ml_u64 tag[ML_LEVELS_MAX];
    ml_u64 cached; /* UINT64_MAX: not known */
};

/* The slot that a handle owns. */
typedef struct ml_seat {
    ml_slot *slot;      /* NULL: none */
    uint64_t slot_word; /* what slot->state must say */
    unsigned me;        /* its index, ML_NO_SLOT: none */
    uint64_t generation;
    os_token token;
} ml_seat;

struct ml_ledger {
    /* Read by every hot call. */
    ml_ptr cookie; /* its word is cookie_value in the process that joined, 0 in a child */
    uint64_t cookie_value;
    ml_u64 lock;  /* M */
    ml_u64 asked; /* a figure was read since the last tick */
    ml_u64 closed;
    ml_seat seat;  /* changed under cold and M */
    ml_ptr leader; /* slot that this member follows; NULL: none */
    ml_u64 leader_generation;
    ml_u64 free_seen, prompt_seen; /* what ml_free_epoch and ml_prompt_get returned last */
    /* Cold. */
    ml_u64 cold;
    bool forked_by_hook; /* in a child: the fork hook ran, so whoever holds `cold` is a thread of this process */
    ml_view *view;
    ml_view *private_view;
    ml_view *views;        /* every shared one so far, also those that are retired */
    uint64_t plain_cookie; /* where the system has no memory that a child sees wiped */
    int mode, degraded_status;
    os_error degraded_error;
    unsigned seen_layout[2]; /* of the segment in use, or of the foreign one that was refused */
    uint64_t rejoin_count, fork_count;
    uint64_t verify_at_ns, retry_at_ns, retry_step_ns, asked_clear_at_ns, period_ns;
    ml_u64 foreign_layout; /* another layout's segment has live members */
    ml_u64 wake_fallback, woken, waited;
    ml_join_options options;
    char path[ML_PATH_BYTES], label[ML_LABEL_BYTES], program[ML_LABEL_BYTES], version[32];
    ml_claim *claims; /* under M */
    ml_device *devices;
    ml_keeper *keeper;   /* housekeep.c: sources and the holder of programs without Python; NULL: none */
    os_probe *sweeps[8]; /* descriptors to close in a forked child */
    unsigned pool_count;
    ml_local_pool pool[ML_LOCAL_POOLS_MAX];
};

/* ---- M ---- */

#define ML_LOCK_PAUSES 200

static inline bool ml_lock_try(ml_u64 *lock) {
    for (int i = 0; i < ML_LOCK_PAUSES; i++) {
        if (ML_LIKELY(ml_load_relaxed(lock) == 0 && ml_cas_acq_rel(lock, 0, 1))) return true;
        ml_pause();
    }
    return false;
}
static inline void ml_lock_release(ml_u64 *lock) {
    ml_store_release(lock, 0);
}
/* Cold: sleeps between tries. Its holder runs nanoseconds unless it was preempted, so this ends. */
void ml_lock_wait(ml_u64 *lock);

static inline bool ml_is_forked(const ml_ledger *ledger) {
    const volatile uint64_t *word = ml_ptr_load_acquire(&ledger->cookie);
    return ML_UNLIKELY(*word != ledger->cookie_value);
}

/* ---- units ---- */

static inline uint64_t ml_units_ceil(uint64_t bytes, unsigned shift) {
    uint64_t units = (bytes >> shift) + ((bytes & ((UINT64_C(1) << shift) - 1)) != 0);
    return units > ML_UNITS_MAX ? ML_UNITS_MAX : units;
}
static inline uint64_t ml_committed_units(const ml_local_pool *pool) {
    return ml_units_ceil(ml_add_sat(pool->held, pool->claims), pool->shift);
}

/* Bits of a bitmap of slots, lowest first. */
#define ML_FOR_EACH_SLOT(i, word_expression, view_slot_count)                                       \
    for (unsigned ml_w_ = 0, i = 0; ml_w_ < ML_SLOT_WORDS; ml_w_++)                                 \
        for (uint64_t ml_b_ = (word_expression);                                                    \
             ml_b_ != 0 && (i = ml_w_ * 64 + (unsigned)__builtin_ctzll(ml_b_)) < (view_slot_count); \
             ml_b_ &= ml_b_ - 1)
#define ML_SLOT_BITS(bitmap) ml_load_seq_cst(&(bitmap)[ml_w_])

static inline void ml_bit_set(ml_u64 *bitmap, unsigned slot) {
    uint64_t bit = UINT64_C(1) << (slot % 64);
    if (!(ml_load_relaxed(&bitmap[slot / 64]) & bit)) ml_fetch_or_seq_cst(&bitmap[slot / 64], bit);
}
static inline void ml_bit_clear(ml_u64 *bitmap, unsigned slot) {
    ml_fetch_and_seq_cst(&bitmap[slot / 64], ~(UINT64_C(1) << (slot % 64)));
}
static inline bool ml_bit_in(const uint64_t *bitmap, unsigned slot) {
    return bitmap[slot / 64] >> (slot % 64) & 1;
}

/* ---- view.c ---- */

uint64_t ml_view_size(void);
void ml_view_init(unsigned char *base, uint64_t size_bytes, void *slot_count);
/* Fill `view` from the header of view->segment. ML_OK, ML_ERR_LAYOUT (view->layout_* say which), ML_ERR_FOREIGN. */
int ml_view_load(ml_view *view);
/* Open or create the segment at `path`; on failure NULL, with the status and *error, and layout of a foreign one. */
ml_view *ml_view_open(const char *path, unsigned slots, int *status, os_error *error, unsigned layout[2]);
ml_view *ml_view_private(void);
/* Unmaps it; NULL: nothing. */
void ml_view_free(ml_view *view);
void ml_words_store(ml_u64 *words, unsigned count, const char *text);
/* Has it no control character? Then it reads back as it was stored. */
bool ml_text_is_plain(const char *text);
/* Copies and terminates; control characters become '?'. May be no valid UTF-8. */
void ml_words_load(const ml_u64 *words, unsigned count, char *text);

/* ---- slots.c ---- */

/* Take a free slot of `view`. ML_OK (fills *seat), ML_FULL, ML_ERR_SYSTEM. */
int ml_slot_join(const ml_ledger *ledger, ml_view *view, ml_seat *seat, os_error *error);
/* Zero everything that `slot` publishes, in every pool. The caller holds the slot's lock, shared or exclusively. */
void ml_slot_clear(ml_view *view, unsigned slot);
void ml_slot_clear_pool(ml_view *view, unsigned index, unsigned slot);
void ml_slot_leave(ml_view *view, unsigned slot, uint64_t slot_word);
bool ml_slot_in_use(const ml_view *view, unsigned slot);
/* ML_MEMBER_*; 0 for a free slot. `probe` may be NULL: then nothing is proven. */
int ml_slot_liveness(const ml_view *view, unsigned slot, os_probe *probe);
void ml_slot_describe(const ml_view *view, unsigned slot, ml_member *out);

/* ---- pools.c ---- */

/* Find or make the entry for `pool` (its key, aliases, kind are filled) in `view`, and say that `me` has it open.
 * ML_OK with *index, ML_FULL, ML_BUSY (table lock). Under cold. */
int ml_pool_open(ml_ledger *ledger, const ml_local_pool *pool, ml_view *view, unsigned me, unsigned *index);
/* Under M: headroom, limit and floor of `pool` into the own record. */
void ml_pool_publish_params(ml_local_pool *pool);
/* Under M: from now on `pool` is that entry. */
void ml_pool_attach(ml_local_pool *pool, ml_view *view, unsigned index, unsigned me);
/* Publish all that this process has in `pool` as growth. Under M. */
void ml_pool_republish(ml_ledger *ledger, ml_local_pool *pool);

/* ---- record.c ---- */

typedef struct ml_figure {
    uint64_t generation, held, releasable, pinned, claims;
} ml_figure;
/* Under M. Publishes pool's sums: fills the next copy, raises the version. */
void ml_record_publish(ml_local_pool *pool, uint64_t generation);
/* For whoever holds the slot's lock: zeros as version + 1, unless another sweeper was faster. `version` was loaded
 * before anything else of the record was looked at. */
void ml_record_publish_zero(ml_record *record, uint64_t version, uint64_t generation);
/* A copy from one publish, never a mix. False after 16 tries; then *out is what was last copied. */
bool ml_record_read(const ml_record *record, ml_figure *out, uint64_t *version);

/* ---- figures.c ---- */

/* Under M, except for images. Brings pool->totals up to date. */
const ml_totals *ml_totals_get(ml_local_pool *pool);
void ml_totals_make(const ml_view *view, unsigned index, const ml_pool *entry, unsigned shift, ml_totals *out);
uint64_t ml_committed_by_others(const ml_local_pool *pool);
/* Figures of one pool, as seen by its member `me` (ML_NO_SLOT: a stranger). */
void ml_figures_of(const ml_view *view, const ml_pool *entry, unsigned index, unsigned shift, unsigned me,
                   uint64_t own_held, uint64_t own_claims, const ml_totals *totals, ml_figures *out);

/* ---- readings.c ---- */

bool ml_sample_newest(const ml_view *view, unsigned index, const ml_pool *entry, ml_sample *out);
/* Publish the newest reading again without the bytes of `dead`: they move to unaccounted. `writer` is a slot whose
 * lock the caller owns, and in which nobody else writes a reading meanwhile. Nothing to do where the dead hold
 * nothing or there is no reading. */
void ml_reading_carry(ml_view *view, unsigned index, unsigned writer, const uint64_t *dead);
/* Can the figures of this answer be true? */
bool ml_reading_plausible(const ml_reading *reading);
/* When readings are due; under cold. */
void ml_reading_due(ml_ledger *ledger, ml_local_pool *pool, unsigned number, uint64_t now_ns, ml_tick *tick);

/* ---- ask.c ---- */

/* Housekeeping: answers that nobody fetches. */
void ml_ask_tick(ml_ledger *ledger, uint64_t now_ns);
/* Words of asks that `slot` has open in that pool go back to idle. The caller holds the slot's lock. */
void ml_ask_forget(ml_view *view, unsigned index, unsigned slot);

/* ---- people.c ---- */

/* Held bytes of named accounts into the segment. */
void ml_people_refresh(ml_ledger *ledger);

/* ---- sweep.c ---- */

/* ml_sweep_begin in a view that need not be the ledger's; `me` is left alone. */
int ml_sweep_begin_in(ml_ledger *ledger, ml_view *view, unsigned me, bool full, ml_sweep *out);

/* ---- move.c ---- */

/* Under M, before the seat changes: raise the word that housekeeping may be asleep on; the caller wakes it after M. */
uint32_t *ml_wake_raise(ml_ledger *ledger);
/* ml_enter, with slow answers resolved. ML_OK: M is held. */
int ml_enter_wait(ml_ledger *ledger);
/* The cold lock: sleeps while another thread of this process is inside. */
void ml_cold_lock(ml_ledger *ledger);
void ml_cold_unlock(ml_ledger *ledger);
/* Join the shared segment, or degrade. Under cold (or before anybody else has the handle). */
void ml_ledger_attach(ml_ledger *ledger);
/* Open `pool` in the ledger's view, else privately. Under cold. */
void ml_ledger_open_pool(ml_ledger *ledger, ml_local_pool *pool);
os_status ml_fork_watch(ml_ledger *ledger);
void ml_fork_unwatch(ml_ledger *ledger);

/* ---- claim.c and publish.c ---- */

/* Under M: drop expired claims. */
void ml_claims_expire(ml_ledger *ledger, uint64_t now_ns);
/* Under M, shrinking or unchanged: records, then words, innermost first; growing: words, then records, outermost
 * first. `before` are each level's committed bytes before the sums changed. */
void ml_device_store(ml_device *device, bool growing);

#endif
