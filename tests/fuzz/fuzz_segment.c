/* Hostile bytes for whoever attaches to a segment, by libFuzzer: a good image is changed as the input says, then looked
 * at from outside (as `memledger dump` does), joined, read, checked, and used by a member of its own.
 *
 * Each 12 bytes of input are one change: what (1 byte), which pool, which slot, which word, and the 8 bytes to put
 * there. What must hold, beside no crash and no hang: nothing is above the total, reading changes no byte, and using
 * the own member's figures changes nothing that is another's. */
#define _GNU_SOURCE
#include "core/core.h"
#include "core/snapshot.h"
#include "include/memledger.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLOTS 4u
#define CHANGE_BYTES 12u
#define CHANGES_MAX 64u
#define UNIT UINT64_C(4096)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define MUST(condition)                                                     \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                        \
        }                                                                   \
    } while (0)

static char path[OS_PATH_BYTES];
static unsigned char *good, *before; /* the image as it was made; as it was before something ran */
static size_t size_bytes;
static int file = -1;

/* ---- the clock ------------------------------------------------------------------------------------------------ */

/* Bounded waits (half a minute for a window that says so) take no time here; what spins without a sleep still hangs.
 * Linked with --wrap. */
static uint64_t forward_ns;

uint64_t __real_os_now_ns(void);
uint64_t __wrap_os_now_ns(void);
void __wrap_os_sleep_ns(uint64_t ns);
uint64_t __wrap_os_now_ns(void) {
    return __real_os_now_ns() + forward_ns;
}
void __wrap_os_sleep_ns(uint64_t ns) {
    forward_ns += ns;
}

/* ---- making -------------------------------------------------------------------------------------------------- */

static ml_ledger *join(void) {
    ml_ledger *ledger = NULL;
    ml_join_options options = {.path = path, .label = "fuzz", .program = "fuzz", .version = "1", .slots = SLOTS};
    MUST(ml_ledger_join(&options, &ledger) == ML_OK);
    return ledger;
}

static ml_device *open_chain(ml_ledger *ledger, unsigned levels) {
    ml_pool_spec specs[2] = {{.key = "sim:card", .kind = ML_KIND_SIM}, {.key = "sim:outer", .kind = ML_KIND_SIM}};
    ml_device *device = NULL;
    MUST(ml_device_open(ledger, specs, levels, &device) == ML_OK);
    return device;
}

static void use(ml_ledger *ledger, ml_device *device, bool read_again);

/* Two members stay in it, of which the process is one twice, with bytes, claims, readings and a window. */
static void make_image(void) {
    for (unsigned i = 0; i < 2; i++) {
        ml_ledger *ledger = join();
        ml_device *device = open_chain(ledger, 2);
        ml_claim claim;
        ml_amounts amounts = {(i + 1) * 10 * UNIT, 5 * UNIT, UNIT};
        MUST(ml_device_set_limit(device, 1000 * UNIT) == ML_OK);
        MUST(ml_account_publish(ml_device_account(device), &amounts) == ML_OK);
        MUST(ml_claim_try(ml_device_account(device), 7 * UNIT, 0, 0, &claim) == ML_OK);
        use(ledger, device, true);
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *folder = getenv("FUZZ_FOLDER"); /* run.py removes it */
    (void)argc;
    (void)argv;
    MUST(folder != NULL);
    snprintf(path, sizeof path, "%s/segment-%d", folder, (int)getpid());
    make_image();
    file = open(path, O_RDWR | O_CLOEXEC);
    MUST(file >= 0);
    size_bytes = (size_t)lseek(file, 0, SEEK_END);
    good = malloc(size_bytes);
    before = malloc(size_bytes);
    MUST(good && before && pread(file, good, size_bytes, 0) == (ssize_t)size_bytes);
    /* The name of another file from now on: the two that made it go on in theirs. */
    MUST(unlink(path) == 0);
    close(file);
    file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    MUST(file >= 0);
    return 0;
}

/* ---- changing ------------------------------------------------------------------------------------------------ */

typedef struct change {
    uint8_t what, pool, slot, word;
    uint64_t value;
} change;

static uint64_t field(const unsigned char *image, size_t offset) {
    uint64_t value;
    memcpy(&value, image + offset, sizeof value);
    return value;
}
#define FIELD(name) field(good, offsetof(ml_header, name))

/* Where the change goes; the places are those of the good image. */
static size_t place_of(const change *c) {
    unsigned pool = c->pool % 4, slot = c->slot % SLOTS; /* few, so that changes meet */
    size_t record = FIELD(record_offset) + pool * FIELD(record_pool_stride) + slot * FIELD(record_stride);
    size_t cells = FIELD(reading_offset) + pool * FIELD(reading_pool_stride) + slot * FIELD(reading_stride);
    switch (c->what % 6) {
        case 0: return c->word % (sizeof(ml_header) / 8) * 8;
        case 1: return FIELD(slot_offset) + slot * sizeof(ml_slot) + c->word % (sizeof(ml_slot) / 8) * 8;
        case 2: return FIELD(pool_offset) + pool * sizeof(ml_pool) + c->word % (sizeof(ml_pool) / 8) * 8;
        case 3: return record + c->word % (sizeof(ml_record) / 8) * 8;
        case 4: return cells + c->word % (ML_READING_COPIES * sizeof(ml_reading_cell) / 8) * 8;
        default: return ((size_t)c->pool << 16 | (size_t)c->slot << 8 | c->word) % (size_bytes / 8) * 8;
    }
}

/* The changed image, in the file; its length, which one kind of change cuts. */
static size_t put(const uint8_t *data, size_t size) {
    size_t length = size_bytes;
    memcpy(before, good, size_bytes);
    for (size_t n = 0; n < CHANGES_MAX && (n + 1) * CHANGE_BYTES <= size; n++) {
        change c = {data[n * CHANGE_BYTES], data[n * CHANGE_BYTES + 1], data[n * CHANGE_BYTES + 2],
                    data[n * CHANGE_BYTES + 3], 0};
        memcpy(&c.value, data + n * CHANGE_BYTES + 4, sizeof c.value);
        if (c.pool & 1) c.value = c.value % (size_bytes / 64 + 2) * 64; /* as an offset or a stride could be */
        if (c.what == 255)
            length = c.value % (size_bytes + UNIT);
        else
            memcpy(before + place_of(&c), &c.value, sizeof c.value);
    }
    MUST(pwrite(file, before, length < size_bytes ? length : size_bytes, 0) >= 0);
    MUST(ftruncate(file, (off_t)length) == 0);
    return length;
}

/* ---- looking ------------------------------------------------------------------------------------------------- */

static void check_figures(const ml_figures *f) {
    MUST(f->free <= f->total && f->available <= f->total && f->budget <= f->total);
    MUST(f->releasable <= f->held);
}

static void look_from_outside(void) {
    static ml_snapshot snapshot;
    ml_image *image;
    ml_ledger_info info;
    ml_member members[SLOTS];
    ml_finding found[4];
    if (ml_image_open(path, &image, &info) != ML_OK) {
        MUST(image == NULL && info.degraded_status != ML_OK);
        return;
    }
    uint64_t pools = ml_image_pools(image);
    for (unsigned p = 0; p < ML_POOLS_MAX; p++)
        if ((p < 4 || pools >> p & 1) && ml_image_snapshot(image, p, &snapshot) == ML_OK) {
            check_figures(&snapshot.figures);
            MUST(snapshot.row_count <= ML_SLOTS_MAX);
        }
    (void)ml_image_members(image, members, SLOTS);
    (void)ml_image_check(image, found, 4);
    ml_image_close(image);
}

static void look_as_member(ml_ledger *ledger, ml_device *device) {
    static ml_snapshot snapshot;
    ml_member members[SLOTS];
    ml_finding found[4];
    ml_figures figures;
    ml_reading reading;
    ml_prompt prompt;
    uint64_t bytes = 0, generation;
    unsigned flags;
    if (ml_device_figures(device, &figures) == ML_OK) {
        check_figures(&figures);
        if (ml_device_free(device, &bytes) == ML_OK) MUST(bytes <= figures.total);
    }
    (void)ml_device_pin_room(device, &bytes);
    for (unsigned l = 0; l < ml_device_level_count(device); l++) {
        unsigned pool = ml_device_pool(device, l);
        if (ml_pool_snapshot(ledger, pool, &snapshot) == ML_OK) check_figures(&snapshot.figures);
        (void)ml_reading_get(ledger, pool, &reading);
    }
    (void)ml_ledger_members(ledger, members, SLOTS);
    (void)ml_ledger_hosts(ledger, members, SLOTS);
    (void)ml_ledger_check(ledger, found, 4);
    (void)ml_group_leader(ledger, &generation);
    (void)ml_prompt_get(ledger, &prompt);
    (void)ml_free_epoch(ledger, &flags);
}

/* ---- using --------------------------------------------------------------------------------------------------- */

static void take_reading(ml_ledger *ledger, unsigned pool) {
    ml_reading_op op;
    ml_reading reading = {.total = 1000 * UNIT, .free = 900 * UNIT, .scope = ML_SCOPE_DEVICE};
    if (ml_reading_begin(ledger, pool, NULL, &op) == ML_OK) (void)ml_reading_end(ledger, &op, &reading);
}

/* What a member does with others: here the contract lets it write into their slots and records. */
static void use(ml_ledger *ledger, ml_device *device, bool read_again) {
    ml_tick tick;
    ml_sweep dead;
    ml_victim victims[SLOTS];
    ml_request request;
    uint64_t freed, waited;
    for (unsigned l = 0; l < ml_device_level_count(device); l++) {
        unsigned pool = ml_device_pool(device, l);
        if (read_again) take_reading(ledger, pool);
        unsigned count = ml_ask_victims(ledger, pool, victims, SLOTS);
        MUST(count <= SLOTS);
        for (unsigned i = 0; i < count; i++) {
            ml_ask ask;
            if (ml_ask_send(ledger, pool, victims[i].slot, UNIT, &ask) == ML_OK) (void)ml_ask_withdraw(ledger, &ask);
        }
    }
    if (ml_request_next(ledger, &request) == ML_OK) (void)ml_request_answer(ledger, &request, 0, UNIT);
    (void)ml_group_follow(ledger, 0, 1);
    (void)ml_group_interrupt(ledger, ml_job_key("job"));
    (void)ml_prompt_begin(ledger, "job");
    (void)ml_prompt_end(ledger);
    (void)ml_window_open(device, 1000, &waited);
    ml_window_close(device);
    (void)ml_ledger_tick(ledger, &tick);
    if (ml_sweep_begin(ledger, &dead) == ML_OK) (void)ml_sweep_commit(ledger, &dead, &freed);
}

static void publish_and_claim(ml_device *device) {
    ml_amounts amounts = {3 * UNIT, UNIT, UNIT}, none = {0, 0, 0};
    ml_claim claim;
    (void)ml_account_publish(ml_device_account(device), &amounts);
    if (ml_claim_try(ml_device_account(device), 2 * UNIT, 0, 0, &claim) == ML_OK)
        (void)ml_claim_settle(&claim, &amounts);
    (void)ml_account_publish(ml_device_account(device), &none);
}

/* Of a slot that is not ours only `pending` of a claim word may have been cleared, and a waiting word. */
static void check_others(const ml_view *view, unsigned me, const unsigned char *now) {
    for (unsigned s = 0; s < view->slot_count; s++) {
        size_t slot = view->slot_offset + s * view->slot_stride;
        if (s == me) continue;
        MUST(memcmp(before + slot, now + slot, sizeof(ml_slot)) == 0);
        for (unsigned p = 0; p < view->pool_count; p++) {
            size_t at = view->record_offset + p * view->record_pool_stride + s * view->record_stride;
            uint64_t old_word = field(before, at + offsetof(ml_record, word));
            uint64_t new_word = field(now, at + offsetof(ml_record, word));
            MUST(new_word == old_word || new_word == (old_word & ~ML_UNITS_MAX) ||
                 (new_word & ~ML_UNITS_MAX) == (old_word & ~ML_UNITS_MAX));
            MUST(field(before, at) == field(now, at));
            MUST(memcmp(before + at + offsetof(ml_record, headroom), now + at + offsetof(ml_record, headroom),
                        sizeof(ml_record) - offsetof(ml_record, headroom)) == 0);
        }
    }
}

/* ---- one input ----------------------------------------------------------------------------------------------- */

static void read_file(unsigned char *to) {
    MUST(pread(file, to, size_bytes, 0) == (ssize_t)size_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static unsigned char *now;
    if (!now) now = malloc(size_bytes);
    size_t length = put(data, size);
    look_from_outside();
    ml_ledger *ledger = join();
    ml_device *device = open_chain(ledger, size % 2 + 1);
    bool shared = length == size_bytes && ledger->view->shared;
    if (shared) read_file(before);
    look_as_member(ledger, device);
    if (shared) {
        read_file(now);
        MUST(memcmp(before, now, size_bytes) == 0);
    }
    unsigned me = ledger->seat.me;
    publish_and_claim(device);
    if (shared && ledger->seat.me == me) {
        read_file(now);
        check_others(ledger->view, me, now);
    }
    use(ledger, device, true);
    look_as_member(ledger, device);
    (void)ml_ledger_recover(ledger, ML_SLOW_LOST);
    publish_and_claim(device);
    (void)ml_ledger_leave(ledger);
    ml_ledger_free(ledger);
    return 0;
}
