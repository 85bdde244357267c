/* Prints the layout as the compiler sees it: "struct field offset size" per line. tests/contract/test_layout.py
 * compares it with docs/layout.md. */
#include "core/layout.h"

#include <stdio.h>

#define ROW(type, field) printf(#type " " #field " %zu %zu\n", offsetof(type, field), sizeof(((type *)0)->field))
#define SIZE(type) printf(#type " - 0 %zu\n", sizeof(type))

int main(void) {
    SIZE(ml_header);
    ROW(ml_header, magic);
    ROW(ml_header, layout);
    ROW(ml_header, size_bytes);
    ROW(ml_header, fingerprint);
    ROW(ml_header, lock_kind);
    ROW(ml_header, slot_count);
    ROW(ml_header, pool_count);
    ROW(ml_header, slot_offset);
    ROW(ml_header, slot_stride);
    ROW(ml_header, pool_offset);
    ROW(ml_header, pool_stride);
    ROW(ml_header, record_offset);
    ROW(ml_header, record_stride);
    ROW(ml_header, record_pool_stride);
    ROW(ml_header, reading_offset);
    ROW(ml_header, reading_stride);
    ROW(ml_header, reading_pool_stride);
    ROW(ml_header, boot_id);
    ROW(ml_header, creator_pid);
    ROW(ml_header, overflow_count);
    ROW(ml_header, sweep_count);
    ROW(ml_header, spare);
    SIZE(ml_slot);
    ROW(ml_slot, state);
    ROW(ml_slot, wake);
    ROW(ml_slot, asked);
    ROW(ml_slot, spare0);
    ROW(ml_slot, token);
    ROW(ml_slot, pid);
    ROW(ml_slot, parent_pid);
    ROW(ml_slot, pid_namespace);
    ROW(ml_slot, start_ticks);
    ROW(ml_slot, boot_id);
    ROW(ml_slot, role);
    ROW(ml_slot, joined_ns);
    ROW(ml_slot, user_id);
    ROW(ml_slot, spare1);
    ROW(ml_slot, label);
    ROW(ml_slot, program);
    ROW(ml_slot, version);
    ROW(ml_slot, spare2);
    SIZE(ml_pool);
    ROW(ml_pool, change);
    ROW(ml_pool, spare0);
    ROW(ml_pool, state);
    ROW(ml_pool, shift);
    ROW(ml_pool, newest);
    ROW(ml_pool, param_version);
    ROW(ml_pool, publishers);
    ROW(ml_pool, openers);
    ROW(ml_pool, ticket);
    ROW(ml_pool, kind);
    ROW(ml_pool, spare1);
    ROW(ml_pool, key);
    ROW(ml_pool, alias);
    ROW(ml_pool, spare2);
    SIZE(ml_copy);
    ROW(ml_copy, generation);
    ROW(ml_copy, held);
    ROW(ml_copy, releasable);
    ROW(ml_copy, pinned);
    ROW(ml_copy, claims);
    ROW(ml_copy, spare);
    SIZE(ml_record);
    ROW(ml_record, version);
    ROW(ml_record, word);
    ROW(ml_record, waiting);
    ROW(ml_record, headroom);
    ROW(ml_record, limit);
    ROW(ml_record, floor);
    ROW(ml_record, opened);
    ROW(ml_record, spare0);
    ROW(ml_record, first_held);
    ROW(ml_record, first_sequence);
    ROW(ml_record, spare1);
    ROW(ml_record, copy);
    SIZE(ml_reading_cell);
    ROW(ml_reading_cell, tag);
    ROW(ml_reading_cell, time_ns);
    ROW(ml_reading_cell, total);
    ROW(ml_reading_cell, free);
    ROW(ml_reading_cell, reserved);
    ROW(ml_reading_cell, immediate);
    ROW(ml_reading_cell, soft_limit);
    ROW(ml_reading_cell, source);
    ROW(ml_reading_cell, meta);
    ROW(ml_reading_cell, unaccounted);
    ROW(ml_reading_cell, excess);
    ROW(ml_reading_cell, held);
    ROW(ml_reading_cell, pair_time_ns);
    ROW(ml_reading_cell, run_sequence);
    ROW(ml_reading_cell, run_held);
    ROW(ml_reading_cell, run_unaccounted);
    ROW(ml_reading_cell, run_claims);
    ROW(ml_reading_cell, spare);
    return 0;
}
