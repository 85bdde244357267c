/* The shape of the segment. docs/layout.md lists the offsets; tests/contract/test_layout.py compares the two.
 *
 * Every field is one 64-bit atomic, so that a reader in another process can never see half a value and a build for
 * another CPU agrees on the shape. The comment behind a field names its writers. "Under the slot's lock": the owner,
 * who holds it exclusively for life, or sweepers, who hold it shared after the owner's death.
 *
 * A reader takes strides and offsets from the header, once, clamped (view.c), so that a newer minor layout with
 * longer structures stays readable. A change of meaning bumps ML_LAYOUT_MAJOR, which is part of the name. */
#ifndef ML_CORE_LAYOUT_H
#define ML_CORE_LAYOUT_H

#include "base/atomic.h"
#include "include/memledger.h"

#define ML_MAGIC 0x3172676c6d656dull /* "memlgr1", little-endian */
#define ML_RING_COPIES 4             /* two are correct; four remove practically all retries */
#define ML_READING_COPIES 2          /* one published, one being written */
#define ML_KEY_WORDS (ML_KEY_BYTES / 8)
#define ML_LABEL_WORDS (ML_LABEL_BYTES / 8)
#define ML_SLOT_WORDS (ML_SLOTS_MAX / 64)
#define ML_ATTENTION_ASK 1u /* somebody asks this member to release bytes */

/* Written by the creator before the segment has a name, never again, except where another writer is named. */
typedef struct ml_header {
    ml_u64 magic;
    ml_u64 layout; /* major << 32 | minor */
    ml_u64 size_bytes;
    ml_u64 fingerprint; /* of the structures' sizes in the creator's build */
    ml_u64 lock_kind;   /* os_lock_kind; everybody must use the creator's */
    ml_u64 slot_count, pool_count;
    ml_u64 slot_offset, slot_stride;
    ml_u64 pool_offset, pool_stride;
    ml_u64 record_offset, record_stride, record_pool_stride;
    ml_u64 reading_offset, reading_stride, reading_pool_stride;
    ml_u64 boot_id[2]; /* for people only */
    ml_u64 creator_pid;
    ml_u64 overflow_count; /* any, fetch-add: joins that found the table full */
    ml_u64 sweep_count;    /* any, fetch-add: slots taken back */
    ml_u64 free_all;       /* any, by CAS: free request to every member, see ml_slot.free_request */
    ml_u64 free_ticket;    /* any, fetch-add: orders free requests of all groups */
    ml_u64 ask_ticket;     /* any, fetch-add: orders members that are asking */
    ml_u64 spare[39];
} ml_header;
_Static_assert(sizeof(ml_header) == 512, "header");

/* Slot state word: generation << 8 | state. Changed by CAS: join (under the slot's lock), leave, sweep. */
#define ML_SLOT_FREE 0
#define ML_SLOT_JOINING 1
#define ML_SLOT_LIVE 2
#define ML_SLOT_DYING 3
#define ML_SLOT_WORD(generation, state) ((uint64_t)(generation) << 8 | (uint64_t)(state))
#define ML_SLOT_STATE(word) ((unsigned)((word) & 0xff))
#define ML_SLOT_GENERATION(word) ((word) >> 8)

typedef struct ml_slot {
    ml_u64 state;     /* under the slot's lock, by CAS */
    ml_u64 wake;      /* any: low half is the futex word, raised by who wants the member's attention */
    ml_u64 asked;     /* owner: a figure was read since housekeeping last cleared it */
    ml_u64 attention; /* any, fetch-or of ML_ATTENTION_*; owner clears bits */
    /* Words of a leader, read by its group. */
    ml_u64 interrupt;    /* any of the group, by CAS: job key << 24 | sequence << 12 | generation */
    ml_u64 free_request; /* any of the group, by CAS: unload ticket << 38 | cache ticket << 12 | generation */
    ml_u64 prompt;       /* owner: sequence << 1 | active */
    ml_u64 prompt_key;   /* owner: job key of the prompt that runs; 0: none */
    /* From here the owner writes while joining, before `state` says live; nobody changes it later. */
    ml_u64 token; /* random: with generation, the member's identity; pids repeat across namespaces */
    ml_u64 pid, parent_pid, pid_namespace, start_ticks;
    ml_u64 boot_id[2];
    ml_u64 role;
    ml_u64 joined_ns;
    ml_u64 user_id;
    ml_u64 leader; /* owner, at any time: generation << 16 | slot + 1 of the leader it follows; 0: none */
    ml_u64 asking; /* owner, at any time: ticket while it is inside an ask, else 0 */
    ml_u64 group;  /* owner: hash of the group's name; 0: none */
    ml_u64 spare1[3];
    ml_u64 label[ML_LABEL_WORDS];
    ml_u64 program[ML_LABEL_WORDS];
    ml_u64 version[4];
    ml_u64 counter[ML_COUNTERS];         /* owner, fetch-add: ML_COUNT_* */
    ml_u64 account[ML_ACCOUNTS_MAX][2];  /* owner: names of its accounts */
    ml_u64 prompt_id[2][ML_LABEL_WORDS]; /* owner: of the prompts with an even and an odd sequence */
    ml_u64 spare2[44];
} ml_slot;
_Static_assert(sizeof(ml_slot) == 1024, "slot");

/* Pool state word: generation << 8 | state. Under the table's lock. */
#define ML_POOL_FREE 0
#define ML_POOL_USED 1
#define ML_POOL_MERGED 2 /* found to be another entry's device; its openers move there */

typedef struct ml_pool {
    /* Line 0: raised by every publish; alone, so that the rest of the entry stays in readers' caches. */
    ml_u64 change; /* any, fetch-add seq_cst, from a random start, never reset */
    ml_u64 spare0[7];
    /* Line 1: all that a scan needs beside the words. */
    ml_u64 state;                     /* table lock */
    ml_u64 shift;                     /* table lock, before `state` says used: unit = 1 << shift bytes */
    ml_u64 newest;                    /* any, by CAS: sequence << 16 | slot + 1 of the newest reading; 0: none */
    ml_u64 param_version;             /* any, fetch-add after headroom, limit or floor of a record changed */
    ml_u64 publishers[ML_SLOT_WORDS]; /* owner sets before its first scan or publish; cleared under the slot's lock */
    /* Line 2 */
    ml_u64 openers[ML_SLOT_WORDS]; /* owner sets; cleared under the slot's lock */
    ml_u64 ticket;                 /* any, fetch-add: waiting tickets */
    ml_u64 window_ticket;          /* any, fetch-add: windows */
    ml_u64 kind;                   /* table lock */
    ml_u64 spare1[1];
    ml_u64 key[ML_KEY_WORDS];                   /* table lock, before `state` says used */
    ml_u64 alias[ML_ALIASES_MAX][ML_KEY_WORDS]; /* table lock; first word last */
    ml_u64 spare2[44];
} ml_pool;
_Static_assert(sizeof(ml_pool) == 1024, "pool");

/* The claim word: pending units (bits 0..29), committed units (30..59), age (60..63). See claim.c. */
#define ML_UNITS_MAX ((UINT64_C(1) << 30) - 1)
#define ML_WORD(committed, pending, age) ((uint64_t)(age) << 60 | (uint64_t)(committed) << 30 | (uint64_t)(pending))
#define ML_WORD_PENDING(word) ((word) & ML_UNITS_MAX)
#define ML_WORD_COMMITTED(word) (((word) >> 30) & ML_UNITS_MAX)
#define ML_WORD_AGE(word) ((word) >> 60)
/* The waiting word: ticket (bits 30..63), units (0..29). */
#define ML_TICKET_MASK ((UINT64_C(1) << 34) - 1)

typedef struct ml_copy {
    ml_u64 generation;                       /* of the slot that published it */
    ml_u64 held, releasable, pinned, claims; /* bytes */
    ml_u64 spare[3];
} ml_copy;
_Static_assert(sizeof(ml_copy) == ML_CACHE_LINE_BYTES, "one copy, one line");

/* What one member publishes for one pool. */
typedef struct ml_record {
    ml_u64 version;                /* under the slot's lock: number of publishes, never goes back */
    ml_u64 word;                   /* owner; anybody, by CAS that only clears pending; sweepers under the slot's lock */
    ml_u64 waiting;                /* owner; anybody, by CAS to 0 */
    ml_u64 headroom, limit, floor; /* owner, then pool.param_version; limit 0: none, else bytes + 1 */
    ml_u64 spare0[2];
    ml_u64 first_held;     /* owner: held of its first publish here; a joining member is no sign of a frozen source */
    ml_u64 first_sequence; /* owner: sequence of the newest reading at that publish */
    ml_u64 ask;            /* any, by CAS: see ask.c */
    ml_u64 answer;         /* owner: sequence, asker and outcome of the last answer */
    ml_u64 answer_bytes;   /* owner, before `answer` */
    ml_u64 window;         /* owner; sweepers: ticket << 30 | inside << 29 | milliseconds; 0: none is open */
    ml_u64 spare1[2];
    ml_u64 account_held[ML_ACCOUNTS_MAX]; /* owner's housekeeping: held of its accounts, for people */
    ml_copy copy[ML_RING_COPIES];
} ml_record;
_Static_assert(sizeof(ml_record) == 448, "record");

/* One reading of a pool's source, in the ring of the member that took it. The writer stores tag 0, the fields, then
 * the tag, all under its handle's lock; readers copy and check the tag on both sides. */
typedef struct ml_reading_cell {
    ml_u64 tag;     /* owner: sequence; 0 while being written */
    ml_u64 time_ns; /* owner: os_boottime_ns */
    ml_u64 total, free, reserved, immediate, soft_limit;
    ml_u64 source;
    ml_u64 meta;            /* scope | reason << 8 | flags << 16 | identical readings << 24 */
    ml_u64 unaccounted;     /* U, made from the pairs below */
    ml_u64 excess[2];       /* max(0, D - S) of this reading and of the one before it */
    ml_u64 held[2];         /* S that belongs to each */
    ml_u64 pair_time_ns;    /* when the older pair was read */
    ml_u64 run_sequence;    /* sequence of the first of the run of bit-identical readings that this one ends */
    ml_u64 run_held;        /* its S */
    ml_u64 run_unaccounted; /* its U, which a frozen source keeps */
    ml_u64 run_claims;      /* claims in all at its first reading */
    ml_u64 spare[5];
} ml_reading_cell;
_Static_assert(sizeof(ml_reading_cell) == 192, "reading");

#endif
