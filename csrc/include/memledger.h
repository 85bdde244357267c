/* memledger: a ledger of memory that every process on a machine shares.
 *
 * One handle (ml_ledger) per process and path. Every function may be called from any thread, except where it says so.
 * Functions marked HOT touch only memory: no system call, no allocation, no lock between processes, bounded steps, tens
 * to hundreds of nanoseconds; they may answer ML_SLOW_*, after which ml_ledger_recover() (which may block) makes the
 * next try succeed: `do status = ml_...(...); while (ml_ledger_retry(ledger, status));`. Everything else may enter the
 * kernel, and costs microseconds where nothing else is said. Nothing here prints, exits, raises a signal or changes
 * process-wide state.
 *
 * Bytes are uint64_t, at most ML_BYTES_MAX. Times are nanoseconds. Functions that return int answer ML_OK, another
 * expected outcome above 0, or an error below 0; which ones is said where it is not plain. ML_ERR_CLOSED: the handle
 * was left. What a caller passes is copied, and what it gets out is its own, except handles (ml_ledger, ml_device,
 * ml_account), which live until ml_ledger_free.
 *
 * A member also needs a thread in ml_housekeep(). Without one its claims with a ttl do not expire, asks to it find no
 * answer, it does not heal when the segment is replaced, and it neither sweeps nor reads. */
#ifndef MEMLEDGER_H
#define MEMLEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ML_LAYOUT_MAJOR 1
#define ML_LAYOUT_MINOR 0

#define ML_POOLS_MAX 32
#define ML_SLOTS_MAX 256
#define ML_LEVELS_MAX 4
#define ML_ALIASES_MAX 4
#define ML_KEY_BYTES 96
#define ML_LABEL_BYTES 64
#define ML_PATH_BYTES 512
#define ML_BYTES_MAX 0x7fffffffffffffff

/* Expected outcomes are >= 0, errors are < 0. */
#define ML_OK 0
#define ML_REFUSED 1         /* the claim does not fit among granted bytes */
#define ML_WAITING 2         /* it would fit, but earlier waiters have the room */
#define ML_BUSY 3            /* contention; try again */
#define ML_NOT_READY 4       /* no figure: the reason is in ml_figures.reason */
#define ML_FULL 5            /* no slot, or no pool entry */
#define ML_EXPIRED 6         /* the claim's ttl has passed */
#define ML_SLOW_LOCK 10      /* another thread of this process is inside; recover, then call again */
#define ML_SLOW_FORK 11      /* this process was forked from the one that joined; recover joins anew */
#define ML_SLOW_LOST 12      /* the slot is no longer ours; recover joins anew and republishes */
#define ML_SLOW_READING 13   /* a claim wants a newer reading first */
#define ML_ERR_ARGUMENT (-1) /* a caller's mistake: NULL, too long, out of range */
#define ML_ERR_FIGURE (-2)   /* releasable > held, or a figure above ML_BYTES_MAX */
#define ML_ERR_CLOSED (-3)   /* the handle was left */
#define ML_ERR_LAYOUT (-4)   /* a segment of another major version */
#define ML_ERR_FOREIGN (-5)  /* not a segment of ours */
#define ML_ERR_ABSENT (-6)   /* no segment there */
#define ML_ERR_SYSTEM (-7)   /* a system call failed: ml_ledger_info says which */
#define ML_ERR_MEMORY (-8)   /* out of memory */

#define ML_ROLE_OTHER 0
#define ML_ROLE_HOST 1
#define ML_ROLE_WORKER 2

#define ML_MODE_SHARED 0       /* a member of the shared ledger */
#define ML_MODE_UNREGISTERED 1 /* reads the shared ledger, has no slot in it: the table is full */
#define ML_MODE_PRIVATE 2      /* no shared ledger could be used; alone, same calls */

/* Events that a member counts, for people. */
#define ML_COUNT_OOM 0      /* out of memory: the program counts it */
#define ML_COUNT_REFUSED 1  /* claims refused */
#define ML_COUNT_ASKED 2    /* asks sent */
#define ML_COUNT_ANSWERED 3 /* asks answered with bytes */
#define ML_COUNT_DECLINED 4 /* asks answered with none */
#define ML_COUNT_IGNORED 5  /* interrupts for a job that does not run */
#define ML_COUNTERS 8
#define ML_ACCOUNTS_MAX 8

#define ML_KIND_DEVICE 0
#define ML_KIND_RAM 1
#define ML_KIND_CGROUP 2
#define ML_KIND_SIM 3
#define ML_KIND_PIN 4

/* Why there is no better figure. ML_REASON_NONE: there is one. */
#define ML_REASON_NONE 0
#define ML_REASON_NO_PROBE 1
#define ML_REASON_PROBE_FAILED 2
#define ML_REASON_NOT_SUPPORTED 3
#define ML_REASON_NO_PERMISSION 4
#define ML_REASON_GPU_LOST 5
#define ML_REASON_IMPLAUSIBLE 6
#define ML_REASON_SUSPENDED 7
#define ML_REASON_STALE 8
#define ML_REASON_IDLE 9
#define ML_REASON_FROZEN 10
#define ML_REASON_PRIVATE 11

#define ML_SCOPE_NONE 0    /* no reading */
#define ML_SCOPE_DEVICE 1  /* the reading is about the whole device */
#define ML_SCOPE_PROCESS 2 /* the reading is one process's view of it */

#define ML_READING_USED_INCLUDES_RESERVED 1
#define ML_READING_UNIFIED 2
#define ML_READING_SUSPECT 4

typedef struct ml_ledger ml_ledger;
typedef struct ml_device ml_device;
typedef struct ml_account ml_account;
typedef struct ml_claim ml_claim;
typedef struct ml_image ml_image;

/* ---- joining ---- */

typedef struct ml_join_options {
    const char *path;    /* NULL: MEMLEDGER_PATH, else the per-user default */
    const char *label;   /* shown to people; cut at ML_LABEL_BYTES - 1 */
    const char *program; /* likewise */
    const char *version; /* of the binding; likewise, cut at 31 */
    int role;            /* ML_ROLE_* */
    uint64_t group;      /* ml_job_key of the group's name; 0: none */
    unsigned slots;      /* when this call creates the segment: its capacity; 0: ML_SLOTS_MAX */
} ml_join_options;

typedef struct ml_ledger_info {
    int mode;                /* ML_MODE_* */
    int degraded_status;     /* ML_ERR_* or ML_FULL; ML_OK when shared */
    int system_code;         /* errno of the failing call, 0 if none */
    const char *system_call; /* its name, or the rule that refused; "" if none */
    unsigned slot;           /* index; ML_SLOTS_MAX when none */
    uint64_t generation;
    char path[ML_PATH_BYTES];
    unsigned layout_major, layout_minor;  /* of the segment in use; of the foreign one for ML_ERR_LAYOUT */
    uint64_t rejoin_count;                /* how often this handle moved to another slot or segment */
    uint64_t period_ns;                   /* of housekeeping now */
    uint64_t file_device, file_id;        /* identity of the segment's file; 0 when private */
    int lock_kind;                        /* of the segment: 0 none, 1 open file description, 2 flock, 3 Windows */
    uint64_t overflow_count, sweep_count; /* of the segment: joins that found it full, slots taken back */
} ml_ledger_info;

/* Joins. Never fails on account of the segment: then the handle is private and says why (ml_ledger_get_info).
 * ML_ERR_ARGUMENT, ML_ERR_MEMORY otherwise. A second join of the same path in one process gives a second member;
 * bindings share one. Under 5 ms. The path should be absolute: it is opened again when the segment is replaced. */
int ml_ledger_join(const ml_join_options *options, ml_ledger **out);
/* Publishes zeros, gives the slot back. Hot calls on its devices answer ML_ERR_CLOSED from then on, and so does a
 * thread in ml_housekeep, at once. ML_OK, also a second time. */
int ml_ledger_leave(ml_ledger *ledger);
/* After ml_ledger_leave, and only when no thread is in a call on this handle, its devices, accounts or claims, nor will
 * be: gives their memory and the mappings back. A handle that has not left stays (its slot is the kernel's to return).
 */
void ml_ledger_free(ml_ledger *ledger);
/* Mode, path and why the handle is degraded. May wait a few milliseconds for another thread that is joining. */
void ml_ledger_get_info(ml_ledger *ledger, ml_ledger_info *out);
/* Resolves an ML_SLOW_LOCK, _FORK or _LOST. May block for a few milliseconds. ML_OK: call again. */
int ml_ledger_recover(ml_ledger *ledger, int slow_status);
/* True: `status` was a slow answer and is resolved; call again. False: it is the result. ML_SLOW_READING is a result:
 * ml_device_refresh, then claim again. */
bool ml_ledger_retry(ml_ledger *ledger, int status);
/* How often this process had to join anew: a binding compares it to learn that it runs in a forked child. HOT */
uint64_t ml_ledger_fork_count(const ml_ledger *ledger);

/* ---- devices ---- */

typedef struct ml_pool_spec {
    const char *key;                     /* stable and global: "GPU-...", "ram:<boot id>", "sim:card"; < ML_KEY_BYTES */
    const char *aliases[ML_ALIASES_MAX]; /* other names of the same thing; unused ones NULL */
    int kind;                            /* ML_KIND_* */
    uint64_t largest_bytes; /* largest conceivable total: fixes the unit when the entry is made; 0: below 4 TiB */
} ml_pool_spec;

/* Opens a chain of pools, the device's own first, outermost last; at most ML_LEVELS_MAX, none twice. Opening the
 * same chain again gives the same device. Pools that cannot be had in the shared table open privately. ML_ERR_ARGUMENT;
 * ML_FULL: this handle has no room for more pools. Takes a lock between processes, with a deadline. */
int ml_device_open(ml_ledger *ledger, const ml_pool_spec *levels, unsigned level_count, ml_device **out);
/* `from` turned out to draw from the chain of `to` (a process was moved to another control group): accounts, open
 * claims, headroom and assumed total go over, as growth without a check. `from` holds nothing afterwards. Both are of
 * one handle, else ML_ERR_ARGUMENT. */
int ml_device_move(ml_device *from, ml_device *to);
/* Pools in its chain, 1 to ML_LEVELS_MAX. */
unsigned ml_device_level_count(const ml_device *device);
/* Index of a level's pool in this handle, 0..; what readings and ml_tick speak of. */
unsigned ml_device_pool(const ml_device *device, unsigned level);
/* The device's own account, into which one publishes where there is no need for several. */
ml_account *ml_device_account(ml_device *device);
/* A further one of that name (1 to 31 bytes), made at its first use; all are summed into one record. */
int ml_account_open(ml_device *device, const char *name, ml_account **out);

typedef struct ml_amounts {
    uint64_t held, releasable, pinned;
} ml_amounts;

/* Replaces the account's three figures at every level, in one visible step per level. ML_ERR_FIGURE changes nothing.
 * HOT */
int ml_account_publish(ml_account *account, const ml_amounts *amounts);
/* The same by signed difference, saturating nowhere: a result below 0 is ML_ERR_FIGURE and changes nothing. HOT */
int ml_account_add(ml_account *account, int64_t held, int64_t releasable, int64_t pinned);
/* What was published last. Waits for another thread of this process that is publishing. */
void ml_account_get(const ml_account *account, ml_amounts *out);
/* Leave `bytes` of this device alone; the largest of all members counts, 0 takes it back. */
int ml_device_set_headroom(ml_device *device, uint64_t bytes);
/* Total to assume where there is no reading (the smallest of all members counts), and for pin pools the ceiling.
 * UINT64_MAX: none. */
int ml_device_set_limit(ml_device *device, uint64_t bytes);

/* ---- figures ---- */

#define ML_FIGURES_KNOWN 1    /* free, available, budget, total are numbers */
#define ML_FIGURES_COMPLETE 2 /* shared, device-wide reading, no other layout in use */
#define ML_FIGURES_LEDGER 4   /* total is configured, no reading */
#define ML_FIGURES_FROZEN 8
#define ML_FIGURES_PROCESS 16 /* total and a bound of free are this process's own view */

typedef struct ml_figures {
    uint64_t free, available, budget, total;
    uint64_t overcommit, unaccounted, reserved, headroom;
    uint64_t held, releasable, pinned, claimed; /* of all members */
    uint64_t own_held, own_claimed, claimed_by_others;
    uint64_t source; /* up to 8 ASCII characters, little-endian; 0: none */
    uint32_t flags;  /* ML_FIGURES_* */
    uint32_t reason; /* ML_REASON_* */
    uint32_t scope;  /* ML_SCOPE_* */
    uint32_t level;  /* the level that binds (smallest free) */
} ml_figures;

/* May be taken by this process now. ML_NOT_READY: unknown. HOT */
int ml_device_free(ml_device *device, uint64_t *bytes);
/* Everything, in one scan of the records. HOT */
int ml_device_figures(ml_device *device, ml_figures *out);

/* ---- claims ---- */

struct ml_claim {
    ml_account *account;    /* NULL: ended */
    ml_claim *next, **link; /* the ledger's list, for expiry */
    uint64_t size_bytes;    /* what was asked; resize changes it */
    uint64_t open_bytes;    /* of those not yet landed */
    uint64_t deadline_ns;   /* os_now_ns; 0: none */
    uint32_t checked;       /* 0: granted without a check, since there was nothing to check against */
    uint32_t expired;
    uint64_t fork_count; /* claims do not survive a fork */
};

/* Grant or refuse at once. `replacing` bytes of the own held go first, so only the rest is claimed now. The caller
 * owns the memory of *claim, which must stay where it is until the claim has ended. ttl_ns 0: none. ML_OK, ML_REFUSED,
 * ML_WAITING, ML_BUSY; ML_SLOW_READING: ml_device_refresh first. claim->checked 0: there was nothing to check against.
 * HOT; with a ttl it reads the clock. */
int ml_claim_try(ml_account *account, uint64_t bytes, uint64_t replacing, uint64_t ttl_ns, ml_claim *claim);
/* The same with sweeps of the dead before a refusal, and waiting for at most `timeout_ns` (of those at most 0.5 s
 * with a ticket). Blocks, in steps of 1 ms. *free_bytes: what would have fitted, when refused. Answers as above, never
 * slow. */
int ml_claim_wait(ml_account *account, uint64_t bytes, uint64_t replacing, uint64_t ttl_ns, uint64_t timeout_ns,
                  ml_claim *claim, uint64_t *free_bytes);
/* Absolute publish that the claim pays for: by as much as held grows, the claim shrinks, and the reverse. HOT */
int ml_claim_publish(ml_claim *claim, const ml_amounts *amounts);
/* The same, and the rest of the claim is dropped. HOT */
int ml_claim_settle(ml_claim *claim, const ml_amounts *amounts);
/* Drops what has not landed. Ended or foreign claims: no change, ML_OK. HOT */
int ml_claim_cancel(ml_claim *claim);
/* Change the size; growth is decided like a claim of the difference. HOT */
int ml_claim_resize(ml_claim *claim, uint64_t bytes);
/* Live for `ttl_ns` from now, 0: without an end. ML_EXPIRED: too late, or ended. */
int ml_claim_renew(ml_claim *claim, uint64_t ttl_ns);

/* ---- readings ---- */

typedef struct ml_reading {
    uint64_t total, free, reserved;
    uint64_t immediate;   /* of free, what needs no reclaim; UINT64_MAX unknown */
    uint64_t soft_limit;  /* cgroup memory.high; UINT64_MAX none */
    uint64_t source;      /* see ml_figures.source */
    uint32_t scope;       /* ML_SCOPE_* */
    uint32_t reason;      /* ML_REASON_*: why total and free are absent */
    uint32_t flags;       /* ML_READING_* */
    uint32_t reader;      /* out only: slot of the member that took it */
    uint64_t age_ns;      /* out only, by this process's clock since it saw the reading, or since it was taken */
    uint64_t unaccounted; /* out only */
    uint64_t sequence;    /* out only; 0: there was never one */
} ml_reading;

typedef struct ml_reading_op {
    unsigned pool;
    uint64_t newest; /* as loaded before the source call */
    uint64_t begin_ns;
    uint64_t held_before[ML_SLOTS_MAX];
    uint64_t dead[ML_SLOTS_MAX / 64]; /* members proven dead: not part of S */
    void *view;
} ml_reading_op;

/* Before the source is asked: what members hold now. `dead`: members proven dead (ml_sweep.dead), or NULL. Begin, ask
 * the source, end; bindings do so, ml_source is the simple way. ML_ERR_ARGUMENT: no such pool. */
int ml_reading_begin(ml_ledger *ledger, unsigned pool, const uint64_t *dead, ml_reading_op *op);
/* Publish what it said. ML_BUSY: a later reading was published meanwhile. ML_NOT_READY: the source took longer than one
 * period. */
int ml_reading_end(ml_ledger *ledger, const ml_reading_op *op, const ml_reading *reading);
/* Some 40 ms later: had a member freed bytes just before the source was asked, it has published that by now. ML_OK:
 * nobody had, so the figure no longer has to err on the safe side. ML_NOT_READY: somebody's held has fallen; ask the
 * source again. ML_BUSY: there is a later reading. */
int ml_reading_settle(ml_ledger *ledger, const ml_reading_op *op);
/* A reading of ML_SCOPE_PROCESS: it stays in this handle, and is used where there is no device-wide one. free is then
 * at most what it says. A reading with a reason takes it back. */
int ml_reading_local(ml_ledger *ledger, unsigned pool, const ml_reading *reading);
/* The newest reading of that pool, whoever took it. ML_NOT_READY: there is none, or it is absent (out->reason). No
 * system call but a look at the clock. */
int ml_reading_get(ml_ledger *ledger, unsigned pool, ml_reading *out);

/* Another layout's segment has (or has no longer) live members: figures are then not complete. */
void ml_ledger_set_foreign_layout(ml_ledger *ledger, bool present);

/* ---- housekeeping ---- */

/* What says how full a pool is: a driver, the kernel. */
typedef struct ml_source {
    /* Fill reading->total and reading->free (bytes) of the pool of that key; the rest is filled with "unknown" and
     * ML_SCOPE_DEVICE before. Returns ML_REASON_NONE, or why there are no figures. Runs in ml_housekeep's thread or in
     * that of ml_device_refresh, one at a time per pool, with no lock held; it may call any function here but those
     * two. What takes longer than a period (250 ms) counts as failed; until it returns, this member keeps no house. */
    uint32_t (*read)(void *context, const char *key, ml_reading *reading);
    void *context;
    const char *name; /* up to 8 ASCII characters, shown to people; the string is not copied */
} ml_source;

/* Have `source` asked about that level of the device, 4 times a second while somebody holds or claims there, by one
 * member at a time. NULL: no more; a call that is under way still ends. What fails is left alone for 1 s, then 2, up to
 * 60. Every member that can read should say so: a member without a source relies on those that have one. */
int ml_device_set_source(ml_device *device, unsigned level, const ml_source *source);
/* Ask its sources now, on this thread, where the newest reading is older than that. ML_NOT_READY: some level has no
 * reading. Call it once after opening a device, and after ML_SLOW_READING. */
int ml_device_refresh(ml_device *device, uint64_t max_age_ns);

/* What gives bytes back when another member asks. */
typedef struct ml_holder {
    /* Give back about `bytes` of the pool of that key and publish the smaller held before returning: only what was
     * published counts. Less, or nothing, is fine. Runs in ml_housekeep's thread, with no lock held. NULL: leave asks
     * to this program's own calls of ml_request_next. */
    void (*release)(void *context, const char *key, uint64_t bytes);
    void *context;
} ml_holder;

/* NULL, as at the start: asks are refused at once. A call that is under way still ends with the holder it has. */
int ml_ledger_set_holder(ml_ledger *ledger, const ml_holder *holder);

/* Serves rounds until `timeout_ns` have passed, at least one: expiry, a replaced segment, the dead, readings that are
 * due, asks. Sleeps in between, and wakes by itself when it is wanted. UINT64_MAX: until ml_ledger_leave. ML_OK: time
 * is up, call again; ML_ERR_CLOSED: left; ML_BUSY: another thread of this process is in it. A round with nothing to do
 * takes some 10 us of CPU, and there is one a second, four where the member holds or claims. The same steps as the
 * thread of a Python member; what that does besides (finding the group's leader, looking for segments of other
 * layouts, following the process to another control group) is this program's own, where it wants it. */
int ml_housekeep(ml_ledger *ledger, uint64_t timeout_ns);

/* The parts, for bindings that run the loop themselves. */

/* Sleep until woken or for `timeout_ns`. */
void ml_ledger_wait(ml_ledger *ledger, uint64_t timeout_ns);
/* End the sleep of this process's own thread. */
void ml_ledger_wake(ml_ledger *ledger);
/* To wait without missing what happens between looking and sleeping: take the mark, look, then wait from the mark.
 * Returns at once where something has woken this member since. */
uint64_t ml_ledger_wake_mark(ml_ledger *ledger);
/* Until something has woken this member since `mark`, or for `timeout_ns`. */
void ml_ledger_wait_from(ml_ledger *ledger, uint64_t mark, uint64_t timeout_ns);

typedef struct ml_tick {
    uint64_t due_pools; /* bit per pool of this handle: take a reading now */
    uint64_t next_ns;   /* when to tick again, from now */
    uint32_t changed;   /* the handle moved to another segment, slot or mode */
} ml_tick;
/* One round: expiry, segment re-check and re-join when due, which readings are due from this member. */
int ml_ledger_tick(ml_ledger *ledger, ml_tick *out);
/* This member can (or cannot) read that pool's source. One that cannot never becomes the refresher. */
void ml_ledger_set_reader(ml_ledger *ledger, unsigned pool, bool can_read);

typedef struct ml_sweep {
    uint64_t dead[ML_SLOTS_MAX / 64]; /* proven, and their locks held shared until commit */
    uint64_t want_reading;            /* bit per pool of this handle in which a dead member holds bytes */
    unsigned count;
    void *state;
} ml_sweep;
/* Find the dead. count 0: nobody, and nothing to commit. */
int ml_sweep_begin(ml_ledger *ledger, ml_sweep *out);
/* The same, but where many have joined only from the own slot up to the next live one: when every member does so each
 * period, every slot is looked at, for the price of one look each. */
int ml_sweep_begin_near(ml_ledger *ledger, ml_sweep *out);
/* Clear them, where no reading without them was published since begin after moving their bytes to unaccounted.
 * *freed_bytes: held and claims given back. Always ends the sweep. */
int ml_sweep_commit(ml_ledger *ledger, ml_sweep *sweep, uint64_t *freed_bytes);

/* ---- groups: interrupt, prompt, free ---- */

/* A member follows one leader (usually the host); a leader follows itself. ML_SLOTS_MAX: nobody. What the group shares
 * stands in the leader's slot, and counts as clear once the leader is gone. */
int ml_group_follow(ml_ledger *ledger, unsigned slot, uint64_t generation);
/* Slot and generation of the leader; ML_SLOTS_MAX when there is none, or none any more. */
unsigned ml_group_leader(ml_ledger *ledger, uint64_t *generation);
/* Not 0, at most 40 bits: the same for the same id in every process and version. */
uint64_t ml_job_key(const char *id);

/* ML_OK: the job is interrupted until the leader's next prompt begins or ends. ML_REFUSED: another job runs; counted,
 * and nothing else. ML_NOT_READY: no group. */
int ml_group_interrupt(ml_ledger *ledger, uint64_t job_key);
/* Is this job, or with 0 the group's current one, interrupted? Not consumed by reading. HOT */
bool ml_group_interrupted(const ml_ledger *ledger, uint64_t job_key);

typedef struct ml_prompt {
    uint64_t sequence; /* of prompts of this leader; 0: there was none */
    bool active;
    char id[ML_LABEL_BYTES];
} ml_prompt;
/* A prompt begins, and interrupts of the one before are cleared. Leaders only; ML_REFUSED otherwise. An id of up to
 * ML_LABEL_BYTES - 1 bytes; a binding shortens longer ones. */
int ml_prompt_begin(ml_ledger *ledger, const char *id);
/* The prompt has ended. Leaders only. */
int ml_prompt_end(ml_ledger *ledger);
/* The leader's latest prompt. ML_NOT_READY: it had none, or there is no leader. */
int ml_prompt_get(ml_ledger *ledger, ml_prompt *out);

#define ML_FREE_UNLOAD 1
#define ML_FREE_CACHE 2
/* Ask the group (or with `all` every member) to free; seen by ml_free_epoch. */
int ml_free_request(ml_ledger *ledger, unsigned flags, bool all);
/* Grows with each request that concerns this member; *flags: of all that came since the last call. */
uint64_t ml_free_epoch(ml_ledger *ledger, unsigned *flags);

#define ML_PENDING_ASK 1
#define ML_PENDING_INTERRUPT 2
#define ML_PENDING_FREE 4
#define ML_PENDING_PROMPT 8
/* Does anything want this member's attention? FREE and PROMPT: since ml_free_epoch and ml_prompt_get last looked. HOT
 */
unsigned ml_pending(const ml_ledger *ledger);

/* ---- asks ---- */

typedef struct ml_ask {
    unsigned pool, victim;
    uint64_t word;
    uint64_t victim_generation;
    void *view;
} ml_ask;

#define ML_ANSWER_DONE 1
#define ML_ANSWER_PARTIAL 2
#define ML_ANSWER_REFUSED 3
#define ML_ANSWER_BUSY 4

/* Say that this member is inside an ask (from here asks of its own; 0 ends it). Returns the ticket. */
uint64_t ml_asking_begin(ml_ledger *ledger);
/* No longer inside an ask. */
void ml_asking_end(ml_ledger *ledger);
/* Ask one member to release bytes of a pool. ML_BUSY: somebody else is asking it there; ML_EXPIRED: it is gone. */
int ml_ask_send(ml_ledger *ledger, unsigned pool, unsigned victim, uint64_t bytes, ml_ask *ask);
/* ML_NOT_READY: no answer yet. ML_OK: *outcome ML_ANSWER_*, *bytes, once. ML_EXPIRED: gone, or fetched before. An
 * answer is kept for who is inside ml_asking_begin, for a second; for others until somebody else asks. */
int ml_ask_poll(ml_ledger *ledger, const ml_ask *ask, int *outcome, uint64_t *bytes);
/* Take an unanswered ask back. ML_OK, or ML_BUSY when an answer or a death was faster: poll again. */
int ml_ask_withdraw(ml_ledger *ledger, const ml_ask *ask);

typedef struct ml_request {
    unsigned pool, asker;
    uint64_t bytes, word;
    void *view;
} ml_request;
/* The next ask for this member: accepted, so it has to be answered. ML_NOT_READY: none. */
int ml_request_next(ml_ledger *ledger, ml_request *out);
/* ML_EXPIRED: it was taken back meanwhile; nobody is credited. */
int ml_request_answer(ml_ledger *ledger, const ml_request *request, int outcome, uint64_t bytes);

/* What an asker wants to know of each possible victim. */
typedef struct ml_victim {
    unsigned slot;
    uint64_t generation, held, releasable;
    uint64_t asking; /* its ticket, 0: not inside an ask */
    bool window;     /* has one open in this pool */
    bool prompt;     /* its group has a prompt running */
} ml_victim;
/* At most `capacity` members with releasable bytes, this one left out; the count. */
unsigned ml_ask_victims(ml_ledger *ledger, unsigned pool, ml_victim *out, unsigned capacity);

/* ---- windows ---- */

/* Open a window in which siblings should leave this member alone, for at most `max_ns`. Opens, then looks: an earlier
 * one is waited for, by this process's own clock. *waited_ns. ML_BUSY after all when others kept opening. */
int ml_window_open(ml_device *device, uint64_t max_ns, uint64_t *waited_ns);
/* Close it; nothing to do where its time was up. */
void ml_window_close(ml_device *device);
/* Hold back while a sibling has one open: until it closes, its time is up, or the timeout. ML_OK: clear. ML_BUSY. */
int ml_window_wait_clear(ml_device *device, uint64_t timeout_ns);

/* ---- for people, and pins ---- */

/* Add n to one of this member's counters (ML_COUNT_*), which others see in ml_member. */
int ml_ledger_count(ml_ledger *ledger, unsigned counter, uint64_t n);
/* Bytes of page-locked memory that leave the floor that some member wants free: the smallest over the chain of free
 * less the highest floor. ML_NOT_READY: unknown. */
int ml_device_pin_room(ml_device *device, uint64_t *bytes);
/* RAM that pins must leave free: the highest of all members counts. */
int ml_device_set_floor(ml_device *device, uint64_t bytes);
/* ml_device_set_limit for one level of the chain. */
int ml_device_set_level_limit(ml_device *device, unsigned level, uint64_t bytes);

/* ---- looking ---- */

#define ML_MEMBER_JOINING 1
#define ML_MEMBER_LIVE 2
#define ML_MEMBER_DEAD 3       /* proven; waits for the sweep */
#define ML_MEMBER_UNVERIFIED 4 /* could not look: counts as live */

typedef struct ml_member {
    unsigned slot;
    int state; /* ML_MEMBER_* */
    int role;
    uint64_t generation, pid, pid_namespace, start_ticks, token;
    uint64_t parent_pid;
    uint64_t joined_ns; /* os_boottime_ns of the member when it joined */
    uint64_t leader;    /* slot of the leader that it follows, ML_SLOTS_MAX: none */
    uint64_t group;     /* hash of its group's name, 0: none */
    uint64_t counter[ML_COUNTERS];
    char account[ML_ACCOUNTS_MAX][16];
    char label[ML_LABEL_BYTES], program[ML_LABEL_BYTES], version[32];
} ml_member;

typedef struct ml_row {
    unsigned slot;
    uint64_t generation;
    uint64_t held, releasable, pinned, claims, pending;
    uint64_t headroom, limit; /* limit UINT64_MAX: none */
    uint64_t account_held[ML_ACCOUNTS_MAX];
} ml_row;

typedef struct ml_snapshot {
    ml_figures figures; /* as a non-member sees them: own figures 0 */
    ml_reading reading;
    char key[ML_KEY_BYTES];
    char aliases[ML_ALIASES_MAX][ML_KEY_BYTES];
    int kind;
    unsigned shift;
    uint64_t generation;
    bool coherent;
    unsigned row_count;
    ml_row rows[ML_SLOTS_MAX];
} ml_snapshot;

/* A consistent cut of one pool. Bounded tries; then coherent = false. */
int ml_pool_snapshot(ml_ledger *ledger, unsigned pool, ml_snapshot *out);
/* Fills at most `capacity` members; the count is returned. Probes their liveness. */
unsigned ml_ledger_members(ml_ledger *ledger, ml_member *out, unsigned capacity);
/* The same, of ML_ROLE_HOST only: what a member looks through for a leader. */
unsigned ml_ledger_hosts(ml_ledger *ledger, ml_member *out, unsigned capacity);

/* A copy of a segment, taken by reading the file; joins nothing, maps nothing, changes nothing. `path` as in join.
 * ML_ERR_ABSENT, ML_ERR_FOREIGN, ML_ERR_LAYOUT, ML_ERR_SYSTEM with *info filled. */
int ml_image_open(const char *path, ml_image **out, ml_ledger_info *info);
/* Frees the copy. */
void ml_image_close(ml_image *image);
/* Indices of the pools in use, as bits. */
uint64_t ml_image_pools(ml_image *image);
/* As ml_pool_snapshot, of the copy. `pool`: index of its bit. */
int ml_image_snapshot(ml_image *image, unsigned pool, ml_snapshot *out);
/* As ml_ledger_members; liveness is probed through the file's locks. */
unsigned ml_image_members(ml_image *image, ml_member *out, unsigned capacity);

/* ---- check ---- */

typedef struct ml_finding {
    unsigned invariant;  /* number in docs/design.md */
    unsigned pool, slot; /* ML_POOLS_MAX / ML_SLOTS_MAX: not about one */
    uint64_t expected, actual;
    char text[96];
} ml_finding;
/* Walks a segment (quiescent: nobody inside a call) and reports each broken invariant; returns how many, fills at
 * most `capacity`. */
unsigned ml_image_check(ml_image *image, ml_finding *out, unsigned capacity);
/* The same of the segment that this handle is in. */
unsigned ml_ledger_check(ml_ledger *ledger, ml_finding *out, unsigned capacity);

#ifdef __cplusplus
}
#endif

#endif
