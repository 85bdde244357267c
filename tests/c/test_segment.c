/* Segments, slots and the pool table: full, lost, vanished, foreign, corrupt, of another layout, locked; and that
 * check() finds what is broken, by its number, and nothing else. */
#define _GNU_SOURCE
#include "core_help.h"

static uint64_t sum_committed(ml_ledger *ledger, unsigned pool) {
    uint64_t sum = 0;
    for (unsigned s = 0; s < ledger->view->slot_count; s++)
        sum += ML_WORD_COMMITTED(ml_load_acquire(&ml_view_record(ledger->view, pool, s)->word));
    return sum;
}

/* ---- joining --------------------------------------------------------------------------------------------- */

static void join_hold_and_die(void) {
    ml_ledger *ledger = join();
    hold(open_card(ledger, 0), 3 * UNIT);
    die(check_failures ? SIGTERM : SIGKILL);
}

static void test_full_table_leaves_the_fifth_unregistered(void) {
    new_segment();
    ml_ledger *m[5];
    ml_device *cards[5];
    for (int i = 0; i < 5; i++) {
        m[i] = join_with(4);
        cards[i] = open_card(m[i], i < 4 ? 100 * UNIT : 0);
        hold(cards[i], 10 * UNIT);
    }
    CHECK_EQ(info_of(m[3]).mode, ML_MODE_SHARED);
    CHECK_EQ(info_of(m[4]).mode, ML_MODE_UNREGISTERED);
    CHECK_EQ(info_of(m[4]).slot, ML_SLOTS_MAX);
    CHECK_EQ(ml_load_relaxed(&ml_view_header(m[0]->view)->overflow_count), 1);
    CHECK_EQ(free_of(cards[0]), 60 * UNIT);
    CHECK_EQ(free_of(cards[4]), 50 * UNIT); /* less the own 10, which nobody else can see */
    ml_claim claim;
    CHECK_EQ(try_claim(cards[4], 5 * UNIT, &claim), ML_OK);
    CHECK_EQ(claim.checked, 0);
    ml_ledger_leave(m[2]);
    for (int i = 0; i < 3; i++) {
        forward_ns += 2 * SECOND;
        CHECK_EQ(tick(m[4]), ML_OK);
    }
    CHECK_EQ(info_of(m[4]).mode, ML_MODE_SHARED);
    CHECK_EQ(info_of(m[4]).slot, 2);
    CHECK_EQ(sum_committed(m[0], 0), 45);
    CHECK_EQ(ml_claim_cancel(&claim), ML_OK);
    CHECK_EQ(sum_committed(m[0], 0), 40);
    CHECK_EQ(findings_of(m[0]), 0);
    /* A slot of the dead is found without waiting for housekeeping. */
    ml_ledger_leave(m[4]);
    CHECK_EQ(run_child(join_hold_and_die), -SIGKILL);
    ml_ledger *last = join();
    CHECK_EQ(info_of(last).mode, ML_MODE_SHARED);
    CHECK_EQ(sum_committed(m[0], 0), 30);
    ml_ledger_leave(last);
    for (int i = 0; i < 4; i++) ml_ledger_leave(m[i]);
}

static void test_bad_options_are_refused(void) {
    new_segment();
    char endless[ML_PATH_BYTES + 8];
    ml_ledger *ledger;
    ml_join_options options = {.path = path, .slots = ML_SLOTS_MAX + 1};
    CHECK_EQ(ml_ledger_join(&options, &ledger), ML_ERR_ARGUMENT);
    options = (ml_join_options){.path = path, .role = 7};
    CHECK_EQ(ml_ledger_join(&options, &ledger), ML_ERR_ARGUMENT);
    memset(endless, 'x', sizeof endless);
    endless[sizeof endless - 1] = '\0';
    options = (ml_join_options){.path = endless};
    CHECK_EQ(ml_ledger_join(&options, &ledger), ML_ERR_ARGUMENT);
    CHECK(ledger == NULL);
    options = (ml_join_options){.path = path, .slots = 4, .label = endless, .program = endless, .version = endless};
    CHECK_EQ(ml_ledger_join(&options, &ledger), ML_OK);
    ml_member members[4];
    CHECK_EQ(ml_ledger_members(ledger, members, 4), 1);
    CHECK_EQ(strlen(members[0].label), ML_LABEL_BYTES - 1);
    CHECK_EQ(strlen(members[0].version), 31);
    CHECK_EQ(members[0].state, ML_MEMBER_LIVE);
    CHECK_EQ(members[0].pid, getpid());
    CHECK_EQ(ml_ledger_leave(ledger), ML_OK);
    CHECK_EQ(ml_ledger_leave(ledger), ML_OK);
    CHECK_EQ(tick(ledger), ML_ERR_CLOSED);
}

/* The last owner was killed on its way out: its slot looks free, and is not empty. */
static void test_newcomer_clears_its_slot_whatever_the_state_says(void) {
    new_segment();
    ml_ledger *a = join();
    ml_device *card = open_card(a, 10 * UNIT);
    CHECK_EQ(run_child(join_hold_and_die), -SIGKILL);
    ml_store_release(&ml_view_slot(a->view, 1)->state, ML_SLOT_WORD(1, ML_SLOT_FREE));
    CHECK_EQ(sum_committed(a, 0), 3);
    ml_ledger *b = join();
    CHECK_EQ(info_of(b).slot, 1);
    CHECK_EQ(sum_committed(a, 0), 0);
    CHECK_EQ(free_of(card), 10 * UNIT);
    CHECK_EQ(findings_of(a), 0);
    ml_ledger_leave(b);
    ml_ledger_leave(a);
}

/* ---- a slot that is lost --------------------------------------------------------------------------------- */

static void test_lost_slot_is_rejoined_with_bytes_counted_once(void) {
    for (int forged_free = 0; forged_free < 2; forged_free++) {
        new_segment();
        ml_ledger *a = join(), *b = join();
        ml_device *own = open_card(a, 100 * UNIT), *other = open_card(b, 100 * UNIT);
        ml_claim claim, more;
        hold(own, 10 * UNIT);
        hold(other, 5 * UNIT);
        CHECK_EQ(try_claim(own, 20 * UNIT, &claim), ML_OK);
        uint64_t forged = forged_free ? ML_SLOT_WORD(1, ML_SLOT_FREE) : ML_SLOT_WORD(2, ML_SLOT_LIVE);
        ml_store_release(&ml_view_slot(a->view, 0)->state, forged);
        CHECK_EQ(hold(own, 11 * UNIT), ML_SLOW_LOST);
        CHECK_EQ(try_claim(own, UNIT, &more), ML_SLOW_LOST);
        CHECK_EQ(ml_claim_cancel(&claim), ML_SLOW_LOST);
        CHECK_EQ(ml_ledger_recover(a, ML_SLOW_LOST), ML_OK);
        CHECK_EQ(info_of(a).slot, 2);
        CHECK_EQ(info_of(a).rejoin_count, 2);
        CHECK_EQ(sum_committed(b, 0), 35);
        CHECK_EQ(free_of(other), 65 * UNIT);
        CHECK_EQ(free_of(own), 85 * UNIT);
        CHECK_EQ(hold(own, 11 * UNIT), ML_OK);
        CHECK_EQ(sum_committed(b, 0), 36);
        CHECK_EQ(ml_claim_cancel(&claim), ML_OK);
        CHECK_EQ(sum_committed(b, 0), 16);
        CHECK_EQ(findings_of(b), 0);
        (void)sweep(b);
        ml_ledger *c = join(); /* the old slot can be used again */
        CHECK_EQ(info_of(c).slot, 0);
        CHECK_EQ(sum_committed(b, 0), 16);
        ml_ledger_leave(c);
        ml_ledger_leave(b);
        ml_ledger_leave(a);
    }
}

static void test_lost_slot_is_noticed_by_the_tick(void) {
    new_segment();
    ml_ledger *a = join();
    hold(open_card(a, 0), 10 * UNIT);
    ml_store_release(&ml_view_slot(a->view, 0)->state, ML_SLOT_WORD(9, ML_SLOT_LIVE));
    ml_tick out;
    CHECK_EQ(ml_ledger_tick(a, &out), ML_OK);
    CHECK_EQ(out.changed, 1);
    CHECK_EQ(sum_committed(a, 0), 10);
    CHECK_EQ(findings_of(a), 0);
    ml_ledger_leave(a);
}

/* An entry was recycled under a member, which must not go on publishing in what is now another device's. */
static void test_recycled_pool_is_noticed_by_the_tick(void) {
    new_segment();
    ml_ledger *a = join();
    ml_device *card = open_card(a, 100 * UNIT);
    hold(card, 10 * UNIT);
    ml_pool *entry = card->level[0]->entry;
    ml_store_release(&entry->state, ML_SLOT_WORD(ML_SLOT_GENERATION(ml_load_relaxed(&entry->state)) + 1, ML_POOL_USED));
    ml_words_store(entry->key, ML_KEY_WORDS, "sim:other");
    CHECK_EQ(tick(a), ML_OK);
    char name[ML_KEY_BYTES];
    ml_words_load(card->level[0]->entry->key, ML_KEY_WORDS, name);
    CHECK_STR(name, CARD);
    CHECK_EQ(sum_committed(a, entry == card->level[0]->entry ? 0 : 1), 10);
    CHECK_EQ(free_of(card), 90 * UNIT);
    CHECK_EQ(findings_of(a), 0);
    ml_ledger_leave(a);
}

/* ---- a segment that vanishes or is replaced -------------------------------------------------------------- */

#ifndef _WIN32 /* a mapped file keeps its name and its size there */

static void test_vanished_segment_heals(void) {
    new_segment();
    ml_ledger *a = join(), *b = join();
    ml_device *own = open_card(a, 100 * UNIT), *other = open_card(b, 0);
    ml_claim claim;
    hold(own, 10 * UNIT);
    hold(other, 20 * UNIT);
    CHECK_EQ(try_claim(other, 30 * UNIT, &claim), ML_OK);
    uint64_t file = info_of(a).file_id;
    unlink(path);
    CHECK_EQ(tick(a), ML_OK); /* not due: looked a moment ago */
    forward_ns += 2 * SECOND;
    CHECK_EQ(tick(b), ML_OK);
    CHECK_EQ(tick(a), ML_OK);
    CHECK(info_of(a).file_id != file && info_of(a).file_id == info_of(b).file_id);
    CHECK_EQ(info_of(a).mode, ML_MODE_SHARED);
    CHECK_EQ(sum_committed(a, 0), 60);
    CHECK_EQ(free_of(own), 40 * UNIT);
    ml_amounts landed = {50 * UNIT, 0, 0};
    CHECK_EQ(ml_claim_settle(&claim, &landed), ML_OK);
    CHECK_EQ(sum_committed(a, 0), 60);
    CHECK_EQ(findings_of(a), 0);
    ml_ledger_leave(a);
    ml_ledger_leave(b);
}

static void test_replaced_segment_converges(void) {
    new_segment();
    char first_path[OS_PATH_BYTES];
    memcpy(first_path, path, sizeof path);
    ml_ledger *a = join();
    ml_device *own = open_card(a, 100 * UNIT);
    hold(own, 10 * UNIT);
    new_segment(); /* unlinks the first */
    ml_ledger *b = join();
    hold(open_card(b, 0), 20 * UNIT);
    CHECK_EQ(rename(path, first_path), 0);
    forward_ns += 2 * SECOND;
    CHECK_EQ(tick(a), ML_OK);
    CHECK_EQ(info_of(a).file_id, info_of(b).file_id);
    CHECK_EQ(sum_committed(b, 0), 30);
    CHECK_EQ(free_of(own), 70 * UNIT);
    CHECK_EQ(findings_of(b), 0);
    ml_ledger_leave(a);
    ml_ledger_leave(b);
    unlink(first_path);
}

static void live_through_a_cut(void) {
    ml_ledger *a = join();
    ml_device *card = open_card(a, 100 * UNIT);
    hold(card, 10 * UNIT);
    CHECK_EQ(truncate(path, 100), 0);
    forward_ns += 2 * SECOND;
    CHECK_EQ(tick(a), ML_OK);
    CHECK_EQ(info_of(a).mode, ML_MODE_PRIVATE);
    CHECK_EQ(info_of(a).degraded_status, ML_ERR_FOREIGN);
    CHECK_EQ(free_of(card), 90 * UNIT);
    CHECK_EQ(hold(card, 20 * UNIT), ML_OK);
    CHECK_EQ(free_of(card), 80 * UNIT);
    ml_ledger_leave(a);
}

/* Once it is noticed, nothing touches the pages behind the end any more. */
static void test_cut_segment_raises_no_sigbus(void) {
    new_segment();
    CHECK_EQ(run_child(live_through_a_cut), 0);
}

#endif

/* ---- foreign, corrupt ------------------------------------------------------------------------------------ */

#ifndef O_BINARY
#define O_BINARY 0 /* Windows would else write two bytes for some */
#endif

/* Under a new name, since Windows removes no file that is mapped. */
static void put_file(const void *bytes, size_t length) {
    new_segment();
    int fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_BINARY, 0600);
    CHECK(fd >= 0 && (length == 0 || write(fd, bytes, (unsigned)length) == (int)length));
    close(fd);
}

static size_t get_file(unsigned char *bytes, size_t capacity) {
    int fd = open(path, O_RDONLY | O_BINARY);
    int length = fd < 0 ? 0 : (int)read(fd, bytes, (unsigned)capacity);
    if (fd >= 0) close(fd);
    return length < 0 ? 0 : (size_t)length;
}

static unsigned char original[1 << 20], changed[1 << 20], after[1 << 20];

/* Whatever stands under the name stays as it is, and the member works alone and says why. */
static void check_refused(int status, const char *call) {
    size_t length = get_file(changed, sizeof changed);
    ml_ledger *a = join_with(2);
    ml_device *card = open_card(a, 100 * UNIT);
    ml_claim claim;
    ml_ledger_info info = info_of(a);
    CHECK_EQ(info.mode, ML_MODE_PRIVATE);
    CHECK_EQ(info.degraded_status, status);
    CHECK_STR(info.system_call, call);
    CHECK_EQ(hold(card, 10 * UNIT), ML_OK);
    CHECK_EQ(free_of(card), 90 * UNIT);
    CHECK(!(figures_of(card).flags & ML_FIGURES_COMPLETE));
    CHECK_EQ(try_claim(card, 90 * UNIT, &claim), ML_OK);
    CHECK_EQ(claim.checked, 0);
    CHECK_EQ(try_claim(card, UNIT, &claim), ML_REFUSED);
    CHECK_EQ(tick(a), ML_OK);
    CHECK_EQ(sweep(a), 0);
    CHECK_EQ(get_file(after, sizeof after), length);
    CHECK(memcmp(changed, after, length) == 0);
    ml_ledger_leave(a);
}

static void test_foreign_file_is_left_alone(void) {
    new_segment();
    ml_ledger *a = join_with(2);
    ml_ledger_leave(a);
    size_t length = get_file(original, sizeof original);
    CHECK(length > 4096 && length < sizeof original);
    put_file("", 0);
    check_refused(ML_ERR_FOREIGN, "size");
    put_file("short", 5);
    check_refused(ML_ERR_FOREIGN, "size");
    memset(changed, 0x5a, sizeof changed);
    put_file(changed, 65536);
    check_refused(ML_ERR_FOREIGN, "header");
    put_file(original, length - 16384); /* the header promises more */
    check_refused(ML_ERR_FOREIGN, "header");
#ifndef _WIN32
    put_file(original, length);
    CHECK_EQ(chmod(path, 0640), 0);
    check_refused(ML_ERR_FOREIGN, "mode");
    unlink(path);
    CHECK_EQ(symlink("/dev/null", path), 0);
    a = join_with(2);
    CHECK_EQ(info_of(a).mode, ML_MODE_PRIVATE);
    ml_ledger_leave(a);
    unlink(path);
    CHECK_EQ(mkdir(path, 0700), 0);
    a = join_with(2);
    CHECK_EQ(info_of(a).mode, ML_MODE_PRIVATE);
    ml_ledger_leave(a);
    rmdir(path);
#endif
    /* It goes away: what was held alone is carried over. */
    put_file("short", 5);
    a = join_with(2);
    ml_device *card = open_card(a, 100 * UNIT);
    ml_claim claim;
    hold(card, 10 * UNIT);
    CHECK_EQ(try_claim(card, 5 * UNIT, &claim), ML_OK);
    unlink(path);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(tick(a), ML_OK);
        forward_ns += 2 * SECOND;
    }
    CHECK_EQ(info_of(a).mode, ML_MODE_SHARED);
    CHECK_EQ(sum_committed(a, 0), 15);
    CHECK_EQ(free_of(card), 90 * UNIT);
    CHECK_EQ(findings_of(a), 0);
    ml_ledger_leave(a);
}

static void put_changed(size_t length, size_t field, uint64_t value) {
    unsigned char *copy = malloc(length);
    memcpy(copy, original, length);
    memcpy(copy + field, &value, sizeof value);
    put_file(copy, length);
    free(copy);
}

static void test_corrupt_header_is_refused(void) {
    new_segment();
    ml_ledger_leave(join_with(2));
    size_t length = get_file(original, sizeof original);
#define FIELD(name) offsetof(ml_header, name)
    static const struct {
        size_t field;
        uint64_t value;
    } bad[] = {{FIELD(magic), 1},
               {FIELD(fingerprint), 1},
               {FIELD(lock_kind), 77},
               {FIELD(slot_count), 0},
               {FIELD(slot_count), 257},
               {FIELD(slot_count), 200},
               {FIELD(pool_count), 0},
               {FIELD(pool_count), 33},
               {FIELD(slot_offset), UINT64_MAX - 63},
               {FIELD(slot_offset), 4104},
               {FIELD(slot_stride), 64},
               {FIELD(slot_stride), UINT64_C(1) << 63},
               {FIELD(pool_offset), UINT64_C(1) << 40},
               {FIELD(pool_stride), 0},
               {FIELD(record_offset), UINT64_MAX - 4095},
               {FIELD(record_stride), 4096},
               {FIELD(record_pool_stride), UINT64_C(1) << 62},
               {FIELD(reading_offset), 1 << 20},
               {FIELD(slot_offset), 0}, /* what is one member's would be another's, too, or the header's */
               {FIELD(pool_offset), 4096},
               {FIELD(record_offset), 8192},
               {FIELD(reading_offset), 4096},
               {FIELD(reading_offset), 448},
               {FIELD(reading_stride), 128},
               {FIELD(reading_pool_stride), 64}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        unsigned before = check_failures;
        put_changed(length, bad[i].field, bad[i].value);
        check_refused(ML_ERR_FOREIGN, "header");
        if (check_failures != before) printf("  in row %zu\n", i);
    }
    put_changed(length, FIELD(size_bytes), length + 4096);
    check_refused(ML_ERR_FOREIGN, "size");
    put_changed(length, FIELD(lock_kind), OS_LOCKS_NONE);
    check_refused(ML_ERR_FOREIGN, "lock kind");
    put_changed(length, FIELD(layout), UINT64_C(7) << 32 | 3);
    ml_ledger *a = join_with(2);
    CHECK_EQ(info_of(a).degraded_status, ML_ERR_LAYOUT);
    CHECK_EQ(info_of(a).layout_major, 7);
    CHECK_EQ(info_of(a).layout_minor, 3);
    ml_ledger_leave(a);
}

/* Random bytes everywhere but in the header: nothing crashes, hangs or reads past the end. */
static void test_random_bytes_are_harmless(void) {
    uint64_t seed = os_random_u64() | 1;
    new_segment();
    ml_ledger_leave(join_with(2));
    size_t length = get_file(original, sizeof original);
    for (int round = 0; round < 20; round++) {
        uint64_t state = seed + (uint64_t)round;
        for (size_t i = 4096; i + 8 <= length; i += 8) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            uint64_t value = round % 2 ? state : state % 7 ? 0 : state >> state % 64;
            memcpy(changed + i, &value, 8);
        }
        memcpy(changed, original, 4096);
        put_file(changed, length);
        ml_ledger *a = join_with(2);
        ml_device *card = open_card(a, 100 * UNIT);
        ml_claim claim;
        uint64_t bytes = 0;
        (void)hold(card, 10 * UNIT);
        ml_figures f = figures_of(card);
        CHECK(f.free <= f.total && f.available <= f.total && f.budget <= f.total);
        (void)ml_device_free(card, &bytes);
        (void)wait_claim(card, UNIT, 0, &claim);
        (void)ml_claim_cancel(&claim);
        (void)read_source(a, 0, 100 * UNIT, 50 * UNIT);
        (void)tick(a);
        (void)sweep(a);
        ml_finding found[4];
        (void)ml_ledger_check(a, found, 4);
        ml_member members[4];
        CHECK(ml_ledger_members(a, members, 4) <= 4);
        ml_image *image;
        ml_ledger_info info;
        if (ml_image_open(path, &image, &info) == ML_OK) {
            static ml_snapshot snapshot;
            for (unsigned p = 0; p < ML_POOLS_MAX; p++) {
                (void)ml_image_snapshot(image, p, &snapshot);
                CHECK(snapshot.figures.free <= snapshot.figures.total);
            }
            (void)ml_image_check(image, found, 4);
            (void)ml_image_members(image, members, 4);
            ml_image_close(image);
        }
        ml_ledger_leave(a);
    }
    if (check_failures) printf("  seed %llu\n", (unsigned long long)seed);
}

/* ---- other layouts --------------------------------------------------------------------------------------- */

typedef struct strides {
    uint64_t slots, pools;
} strides;

/* As a build with longer structures and fewer of them would make it: a newer minor. */
static void make_newer(unsigned char *base, uint64_t size, void *context) {
    const strides *s = context;
    ml_header *h = (ml_header *)(void *)base;
    uint64_t at = 8192;
    ml_store_relaxed(&h->layout, (uint64_t)ML_LAYOUT_MAJOR << 32 | (ML_LAYOUT_MINOR + 5));
    ml_store_relaxed(&h->size_bytes, size);
    ml_store_relaxed(&h->fingerprint, 12345);
    ml_store_relaxed(&h->lock_kind, os_lock_kind_of(path, NULL));
    ml_store_relaxed(&h->slot_count, s->slots);
    ml_store_relaxed(&h->pool_count, s->pools);
    ml_store_relaxed(&h->slot_stride, sizeof(ml_slot) + 192);
    ml_store_relaxed(&h->slot_offset, at);
    at += s->slots * (sizeof(ml_slot) + 192) + 64;
    ml_store_relaxed(&h->pool_stride, sizeof(ml_pool) + 64);
    ml_store_relaxed(&h->pool_offset, at);
    at += s->pools * (sizeof(ml_pool) + 64) + 128;
    ml_store_relaxed(&h->record_stride, sizeof(ml_record) + 128);
    ml_store_relaxed(&h->record_pool_stride, s->slots * (sizeof(ml_record) + 128) + 256);
    ml_store_relaxed(&h->record_offset, at);
    at += s->pools * (s->slots * (sizeof(ml_record) + 128) + 256);
    uint64_t cells = ML_READING_COPIES * sizeof(ml_reading_cell) + 64;
    ml_store_relaxed(&h->reading_stride, cells);
    ml_store_relaxed(&h->reading_pool_stride, s->slots * cells + 64);
    ml_store_relaxed(&h->reading_offset, at);
    at += s->pools * (s->slots * cells + 64);
    CHECK(at <= size);
    ml_store_release(&h->magic, ML_MAGIC);
}

/* What this build does not know of the longer structures: nobody may have written there. */
static unsigned bytes_between_structures(const unsigned char *base, const strides *s) {
    const ml_header *h = (const ml_header *)(const void *)base;
    unsigned count = 0;
    for (uint64_t i = 0; i < s->slots; i++)
        for (unsigned b = 0; b < 192; b++)
            count += base[h->slot_offset.raw + i * h->slot_stride.raw + sizeof(ml_slot) + b] != 0;
    for (uint64_t p = 0; p < s->pools; p++) {
        for (unsigned b = 0; b < 64; b++)
            count += base[h->pool_offset.raw + p * h->pool_stride.raw + sizeof(ml_pool) + b] != 0;
        for (uint64_t i = 0; i < s->slots; i++) {
            uint64_t record = h->record_offset.raw + p * h->record_pool_stride.raw + i * h->record_stride.raw;
            uint64_t cells = h->reading_offset.raw + p * h->reading_pool_stride.raw + i * h->reading_stride.raw;
            for (unsigned b = 0; b < 128; b++) count += base[record + sizeof(ml_record) + b] != 0;
            for (unsigned b = 0; b < 64; b++)
                count += base[cells + ML_READING_COPIES * sizeof(ml_reading_cell) + b] != 0;
        }
    }
    return count;
}

static void test_newer_minor_with_longer_structures_is_used(void) {
    new_segment();
    strides s = {5, 3};
    os_segment segment;
    os_error error = {0, ""};
    bool created;
    CHECK_EQ(os_segment_open_or_create(path, 65536, 4096, 1 << 20, make_newer, &s, &segment, &created, &error), OS_OK);
    ml_ledger *a = join(), *b = join();
    CHECK_EQ(info_of(a).mode, ML_MODE_SHARED);
    CHECK_EQ(info_of(a).layout_minor, ML_LAYOUT_MINOR + 5);
    static const char *const keys[] = {"sim:in", "sim:mid", "sim:out"};
    ml_device *chain = open_chain(a, keys, 3), *other = open_chain(b, keys, 3);
    ml_claim claim;
    for (unsigned l = 0; l < 3; l++) CHECK_EQ(read_source(a, l, 100 * UNIT, 90 * UNIT), ML_OK);
    hold(chain, 10 * UNIT);
    hold(other, 20 * UNIT);
    CHECK_EQ(free_of(other), 60 * UNIT);
    CHECK_EQ(try_claim(chain, 61 * UNIT, &claim), ML_REFUSED);
    CHECK_EQ(try_claim(chain, 60 * UNIT, &claim), ML_OK);
    ml_device *fourth = open_pool_of(a, "sim:fourth"); /* the table has three */
    CHECK(!fourth->level[0]->view->shared);
    CHECK_EQ(findings_of(b), 0);
    ml_image *image;
    ml_ledger_info info;
    CHECK_EQ(ml_image_open(path, &image, &info), ML_OK);
    static ml_snapshot snapshot;
    CHECK_EQ(ml_image_snapshot(image, 2, &snapshot), ML_OK);
    CHECK_EQ(snapshot.row_count, 2);
    CHECK_EQ(snapshot.figures.held, 30 * UNIT);
    CHECK_EQ(snapshot.figures.claimed, 60 * UNIT);
    ml_image_close(image);
    ml_ledger_leave(a);
    CHECK_EQ(free_of(other), 70 * UNIT);
    ml_ledger_leave(b);
    CHECK_EQ(bytes_between_structures(segment.base, &s), 0);
}

/* ---- the pool table -------------------------------------------------------------------------------------- */

static ml_device *open_named(ml_ledger *ledger, const char *key, const char *alias, const char *second) {
    ml_device *device = NULL;
    ml_pool_spec spec = {.key = key, .aliases = {alias, second}};
    CHECK_EQ(ml_device_open(ledger, &spec, 1, &device), ML_OK);
    return device;
}

static void test_one_name_in_common_is_the_same_pool(void) {
    new_segment();
    ml_ledger *a = join(), *b = join(), *c = join();
    ml_device *one = open_named(a, "GPU-1", "pci:1", NULL), *two = open_named(b, "pci:1", "MIG-1", NULL);
    ml_device *three = open_named(c, "MIG-1", NULL, NULL), *apart = open_named(c, "GPU-2", NULL, NULL);
    CHECK_EQ(ml_device_set_limit(one, 100 * UNIT), ML_OK);
    hold(one, 10 * UNIT);
    hold(two, 20 * UNIT);
    hold(three, 30 * UNIT);
    CHECK_EQ(free_of(one), 40 * UNIT);
    CHECK(apart->level[0]->index != three->level[0]->index);
    CHECK_EQ(findings_of(a), 0);
    ml_ledger_leave(a);
    ml_ledger_leave(b);
    ml_ledger_leave(c);
}

/* One process opens a card by two names before it knows that they are one: one record, one sum. */
static void test_two_names_of_one_pool_share_one_record(void) {
    new_segment();
    ml_ledger *a = join(), *b = join();
    ml_device *by_uuid = open_named(a, "GPU-1", NULL, NULL);
    ml_device *known = open_named(b, "GPU-1", "pci:1", NULL);
    ml_device *by_bus = open_named(a, "pci:1", NULL, NULL);
    CHECK_EQ(ml_device_set_limit(known, 100 * UNIT), ML_OK);
    ml_account *account;
    CHECK_EQ(ml_account_open(by_bus, "part", &account), ML_OK);
    ml_amounts five = {5 * UNIT, 0, 0};
    hold(by_uuid, 10 * UNIT);
    CHECK_EQ(ml_account_publish(account, &five), ML_OK);
    CHECK_EQ(free_of(known), 85 * UNIT);
    hold(by_uuid, 11 * UNIT);
    CHECK_EQ(free_of(known), 84 * UNIT);
    CHECK_EQ(findings_of(b), 0);
    ml_ledger_leave(a);
    ml_ledger_leave(b);
}

static void open_all(ml_ledger *ledger, const char *prefix, unsigned count) {
    char key[32];
    for (unsigned i = 0; i < count; i++) {
        snprintf(key, sizeof key, "sim:%s%u", prefix, i);
        (void)open_pool_of(ledger, key);
    }
}

static void test_pool_that_nobody_has_open_is_recycled(void) {
    new_segment();
    ml_ledger *a = join(), *b = join();
    open_all(a, "a", ML_POOLS_MAX - 1);
    ml_device *mine = open_pool_of(b, "sim:mine");
    hold(mine, 3 * UNIT);
    ml_device *none = open_pool_of(b, "sim:none"); /* all 32 are open */
    CHECK(!none->level[0]->view->shared);
    ml_ledger_leave(a);
    ml_device *next = open_pool_of(b, "sim:next");
    CHECK(next->level[0]->view->shared);
    CHECK_EQ(next->level[0]->index, 0);
    CHECK(ML_SLOT_GENERATION(next->level[0]->entry_state) > 1);
    CHECK_EQ(ml_device_set_limit(next, 10 * UNIT), ML_OK);
    CHECK_EQ(free_of(next), 10 * UNIT);
    CHECK_EQ(published(mine, 0).held, 3 * UNIT);
    CHECK_EQ(findings_of(b), 0);
    ml_ledger_leave(b);
}

static void test_full_pool_table_opens_privately_then_moves_over(void) {
    new_segment();
    ml_ledger *a = join(), *b = join();
    open_all(a, "a", ML_POOLS_MAX);
    ml_device *card = open_card(b, 100 * UNIT);
    ml_claim claim;
    CHECK(!card->level[0]->view->shared);
    hold(card, 10 * UNIT);
    CHECK_EQ(free_of(card), 90 * UNIT);
    CHECK(!(figures_of(card).flags & ML_FIGURES_COMPLETE));
    CHECK_EQ(try_claim(card, 20 * UNIT, &claim), ML_OK);
    CHECK_EQ(claim.checked, 0); /* against nobody */
    CHECK_EQ(tick(b), ML_OK);
    CHECK(!card->level[0]->view->shared);
    ml_ledger_leave(a);
    CHECK_EQ(tick(b), ML_OK);
    CHECK(card->level[0]->view->shared);
    CHECK_EQ(sum_committed(b, card->level[0]->index), 30);
    CHECK_EQ(free_of(card), 90 * UNIT);
    CHECK_EQ(ml_claim_cancel(&claim), ML_OK);
    CHECK_EQ(committed(card, 0), 10);
    CHECK_EQ(findings_of(b), 0);
    ml_ledger_leave(b);
}

#ifndef _WIN32 /* nothing is stopped there from outside, and nothing forks */

static void stop_with_the_table_locked(void) {
    ml_ledger *ledger = join();
    kill_points_arm("pool.kind", 1, SIGSTOP);
    (void)open_pool_of(ledger, "sim:stopped");
}

static void test_table_locked_by_a_stopped_process(void) {
    new_segment();
    ml_ledger *a = join();
    ml_device *known = open_pool_of(a, "sim:known");
    pid_t stopped = child(stop_with_the_table_locked);
    CHECK_EQ(outcome(stopped), -SIGSTOP);
    ml_device *card = open_card(a, 100 * UNIT);
    CHECK(!card->level[0]->view->shared);
    hold(card, 10 * UNIT);
    hold(known, 5 * UNIT);
    CHECK_EQ(free_of(card), 90 * UNIT);
    CHECK_EQ(tick(a), ML_OK);
    ml_ledger *b = join();
    ml_device *same = open_pool_of(b, "sim:known"); /* needs no lock */
    CHECK(same->level[0]->view->shared);
    end(stopped);
    CHECK_EQ(tick(a), ML_OK);
    CHECK(card->level[0]->view->shared);
    CHECK_EQ(sum_committed(a, card->level[0]->index), 10);
    (void)sweep(a);
    CHECK_EQ(findings_of(a), 0);
    ml_ledger_leave(a);
    ml_ledger_leave(b);
}

/* ---- fork ------------------------------------------------------------------------------------------------ */

static ml_ledger *parents;
static ml_device *parents_card;
static ml_claim parents_claim;

static void use_in_child(void) {
    uint64_t bytes;
    ml_claim claim;
    CHECK_EQ(ml_device_free(parents_card, &bytes), ML_SLOW_FORK);
    CHECK_EQ(hold(parents_card, UNIT), ML_SLOW_FORK);
    CHECK_EQ(ml_claim_cancel(&parents_claim), ML_SLOW_FORK);
    CHECK_EQ(ml_ledger_recover(parents, ML_SLOW_FORK), ML_OK);
    CHECK_EQ(info_of(parents).slot, 1);
    CHECK_EQ(ml_claim_cancel(&parents_claim), ML_OK); /* not ours: no change */
    CHECK_EQ(sum_committed(parents, 0), 30);
    CHECK_EQ(hold(parents_card, 5 * UNIT), ML_OK);
    CHECK_EQ(sum_committed(parents, 0), 35);
    CHECK_EQ(try_claim(parents_card, 65 * UNIT, &claim), ML_OK);
    CHECK_EQ(ml_claim_cancel(&claim), ML_OK);
    CHECK_EQ(findings_of(parents), 0);
    CHECK_EQ(ml_ledger_leave(parents), ML_OK);
}
static void leave_in_child(void) {
    CHECK_EQ(ml_ledger_leave(parents), ML_OK);
}

static void test_forked_child_has_a_slot_of_its_own(void) {
    new_segment();
    parents = join();
    parents_card = open_card(parents, 100 * UNIT);
    hold(parents_card, 10 * UNIT);
    CHECK_EQ(try_claim(parents_card, 20 * UNIT, &parents_claim), ML_OK);
    CHECK_EQ(run_child(use_in_child), 0);
    CHECK_EQ(run_child(leave_in_child), 0);
    CHECK_EQ(sum_committed(parents, 0), 30);
    CHECK_EQ(sweep(parents), 0);
    CHECK_EQ(ml_claim_cancel(&parents_claim), ML_OK);
    CHECK_EQ(sum_committed(parents, 0), 10);
    CHECK_EQ(findings_of(parents), 0);
    ml_ledger_leave(parents);
}

static volatile pid_t *orphan; /* shared with children */

static void leave_an_orphan(void) {
    ml_ledger *ledger = join();
    hold(open_card(ledger, 0), 3 * UNIT);
    CHECK_EQ(read_source(ledger, 0, 100 * UNIT, 90 * UNIT), ML_OK);
    pid_t pid = fork();
    if (pid == 0) {
        CHECK_WATCHDOG(CHECK_TEST_SECONDS);
        for (;;) pause();
    }
    *orphan = pid;
    die(check_failures ? SIGTERM : SIGKILL);
}

/* It never uses the ledger. What it inherited must not make its parent look alive: not where a token is a descriptor
 * (macOS), nor where the advice to keep a mapping from children is not followed (qemu's user mode). */
static void test_child_that_outlives_its_parent_keeps_none_of_its_bytes(void) {
    new_segment();
    ml_ledger *a = join();
    ml_device *card = open_card(a, 100 * UNIT);
    orphan = mmap(NULL, sizeof *orphan, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!CHECK(orphan != MAP_FAILED)) return;
    CHECK_EQ(run_child(leave_an_orphan), -SIGKILL);
    CHECK_EQ(kill(*orphan, 0), 0);
    CHECK_EQ(sweep(a), 3 * UNIT);
    CHECK_EQ(committed(card, 0), 0);
    CHECK_EQ(sum_committed(a, 0), 0);
    CHECK(kill(*orphan, SIGKILL) == 0);
    CHECK_EQ(findings_of(a), 0);
    ml_ledger_leave(a);
}

#endif

/* ---- check ----------------------------------------------------------------------------------------------- */

static unsigned found_mask(ml_ledger *ledger) {
    static ml_finding found[64];
    unsigned mask = 0, count = ml_ledger_check(ledger, found, 64);
    for (unsigned i = 0; i < count && i < 64; i++) mask |= 1u << found[i].invariant;
    return mask;
}

static void test_check_finds_an_unreadable_record(void) {
    new_segment();
    ml_ledger *a = join();
    hold(open_card(a, 0), UNIT);
    CHECK_EQ(found_mask(a), 0);
    records_unreadable = true;
    CHECK_EQ(found_mask(a), 1u << 1);
    records_unreadable = false;
    ml_ledger_leave(a);
}

/* Breaks one field, expects the numbers, mends it again. */
static void expect(ml_ledger *ledger, ml_u64 *field, uint64_t value, unsigned numbers, int line) {
    uint64_t old = ml_load_relaxed(field);
    ml_store_relaxed(field, value);
    unsigned found = found_mask(ledger);
    if (!CHECK_EQ(found, numbers)) printf("  of line %d\n", line);
    ml_store_relaxed(field, old);
    CHECK_EQ(found_mask(ledger), 0);
}
#define EXPECT(field, value, numbers) expect(a, field, value, numbers, __LINE__)
#define N(number) (1u << (number))

static void test_check_finds_each_broken_invariant(void) {
    new_segment();
    ml_ledger *a = join(), *b = join();
    ml_device *card = open_card(a, 100 * UNIT), *other = open_pool_of(a, "sim:other");
    (void)open_card(b, 0);
    ml_amounts amounts = {10 * UNIT, 5 * UNIT, UNIT};
    ml_claim claim;
    CHECK_EQ(ml_account_publish(ml_device_account(card), &amounts), ML_OK);
    CHECK_EQ(try_claim(card, 7 * UNIT, &claim), ML_OK);
    CHECK_EQ(read_source(a, 0, 100 * UNIT, 50 * UNIT), ML_OK);
    CHECK_EQ(found_mask(a), 0);
    ml_record *record = record_of(card, 0);
    ml_copy *copy = &record->copy[ml_load_relaxed(&record->version) % ML_RING_COPIES];
    ml_pool *entry = card->level[0]->entry, *second = other->level[0]->entry;
    ml_slot *slot = ml_view_slot(a->view, 0);
    EXPECT(&copy->releasable, 11 * UNIT, N(2));
    EXPECT(&copy->held, 9 * UNIT, N(3));
    EXPECT(&record->word, ML_WORD(18, 0, 0), N(3));
    EXPECT(&record->word, ML_WORD(17, 1, 0), N(4));
    EXPECT(&entry->publishers[0], ml_load_relaxed(&entry->publishers[0]) & ~UINT64_C(1), N(5));
    EXPECT(&slot->state, ML_SLOT_WORD(1, ML_SLOT_FREE), N(6) | N(14));
    EXPECT(&copy->generation, 7, N(7));
    EXPECT(&slot->state, ML_SLOT_WORD(2, ML_SLOT_LIVE), N(7));
    EXPECT(&ml_view_record(a->view, 0, 9)->waiting, UINT64_C(1) << 30 | 1, N(8));
    EXPECT(&entry->newest, ml_load_relaxed(&entry->newest) + (UINT64_C(3) << 16), N(9));
    EXPECT(&entry->newest, UINT64_C(1) << 16 | 0xffff, N(9));
    EXPECT(&ml_view_pool(a->view, 5)->state, ML_SLOT_WORD(1, 9), N(10));
    EXPECT(&second->shift, 11, N(11));
    EXPECT(&second->shift, UINT64_MAX, N(11));
    EXPECT(&second->key[0], 0, N(12));
    uint64_t key[ML_KEY_WORDS];
    for (unsigned i = 0; i < ML_KEY_WORDS; i++) key[i] = ml_load_relaxed(&second->key[i]);
    ml_words_store(second->key, ML_KEY_WORDS, CARD);
    CHECK_EQ(found_mask(a), N(13));
    for (unsigned i = 0; i < ML_KEY_WORDS; i++) ml_store_relaxed(&second->key[i], key[i]);
    EXPECT(&entry->openers[0], UINT64_C(0x103), N(14));
    EXPECT(&ml_view_slot(a->view, 7)->state, ML_SLOT_WORD(1, 200), N(15));
    ml_ledger_leave(a);
    CHECK_EQ(found_mask(b), 0);
    ml_ledger_leave(b);
}

static void test_image_says_what_is_there(void) {
    new_segment();
    ml_image *image;
    ml_ledger_info info;
    CHECK_EQ(ml_image_open(path, &image, &info), ML_ERR_ABSENT);
    CHECK(image == NULL);
    put_file("short", 5);
    CHECK_EQ(ml_image_open(path, &image, &info), ML_ERR_FOREIGN);
    unlink(path);
    ml_ledger *a = join();
    hold(open_card(a, 100 * UNIT), 3 * UNIT);
    CHECK_EQ(ml_image_open(path, &image, &info), ML_OK);
    CHECK_EQ(ml_image_pools(image), 1);
    static ml_snapshot snapshot;
    CHECK_EQ(ml_image_snapshot(image, 0, &snapshot), ML_OK);
    CHECK_EQ(snapshot.coherent, 1);
    CHECK_EQ(snapshot.figures.free, 97 * UNIT);
    CHECK_EQ(ml_image_snapshot(image, 99, &snapshot), ML_ERR_ARGUMENT);
    ml_finding found[4];
    CHECK_EQ(ml_image_check(image, found, 4), 0);
    ml_member members[2];
    CHECK_EQ(ml_image_members(image, members, 2), 1);
    CHECK_EQ(members[0].state, ML_MEMBER_LIVE);
    ml_image_close(image);
    ml_ledger_leave(a);
}

int main(int argc, char **argv) {
    static const check_test bodies[] = {TEST(join_hold_and_die)};
    int result;
    if (was_child(bodies, sizeof bodies / sizeof *bodies, argc, argv, &result)) return result;
    static const check_test tests[] = {
        TEST(test_full_table_leaves_the_fifth_unregistered),
        TEST(test_bad_options_are_refused),
        TEST(test_newcomer_clears_its_slot_whatever_the_state_says),
        TEST(test_lost_slot_is_rejoined_with_bytes_counted_once),
        TEST(test_lost_slot_is_noticed_by_the_tick),
        TEST(test_recycled_pool_is_noticed_by_the_tick),
        TEST(test_foreign_file_is_left_alone),
        TEST(test_corrupt_header_is_refused),
        TEST(test_random_bytes_are_harmless),
        TEST(test_newer_minor_with_longer_structures_is_used),
        TEST(test_one_name_in_common_is_the_same_pool),
        TEST(test_two_names_of_one_pool_share_one_record),
        TEST(test_pool_that_nobody_has_open_is_recycled),
        TEST(test_full_pool_table_opens_privately_then_moves_over),
        TEST(test_check_finds_an_unreadable_record),
        TEST(test_check_finds_each_broken_invariant),
        TEST(test_image_says_what_is_there),
#ifndef _WIN32
        TEST(test_vanished_segment_heals),
        TEST(test_replaced_segment_converges),
        TEST(test_cut_segment_raises_no_sigbus),
        TEST(test_table_locked_by_a_stopped_process),
        TEST(test_forked_child_has_a_slot_of_its_own),
        TEST(test_child_that_outlives_its_parent_keeps_none_of_its_bytes),
#endif
    };
    if (!begin()) return 2;
    result = CHECK_MAIN(tests, argc, argv);
    finish();
    return result;
}
