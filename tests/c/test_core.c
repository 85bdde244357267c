/* The core without Python: figures, publishing, chains, and claims whose steps are interleaved by hand at the kill
 * points. Readings and sweeps are in test_readings.c, segments and slots in test_segment.c. */
#define _GNU_SOURCE
#include "core_help.h"

/* ---- figures --------------------------------------------------------------------------------------------- */

typedef struct figures_row {
    uint64_t total, own_held, other_held, own_k, other_k, own_claim, other_claim;
    uint64_t free, available, budget, overcommit;
} figures_row;

/* In GiB. */
static const figures_row figures_rows[] = {
    {24, 10, 20, 0, 0, 0, 0, 0, 0, 4, 6},
    {24, 10, 20, 4, 6, 0, 0, 0, 4, 4, 6},
    {24, 10, 4, 0, 0, 0, 0, 10, 10, 20, 0},
    {24, 10, 4, 10, 4, 0, 0, 10, 24, 20, 0},
    {24, 0, 0, 0, 0, 0, 0, 24, 24, 24, 0},
    {24, 0, 24, 0, 0, 0, 0, 0, 0, 0, 0},
    {24, 0, 4, 0, 0, 0, 6, 14, 14, 14, 0},
    {24, 4, 0, 0, 0, 6, 0, 20, 20, 24, 0}, /* own open claims are not taken off free */
    {24, 4, 4, 4, 4, 6, 10, 6, 14, 10, 0},
    {8, 5, 6, 0, 0, 0, 0, 0, 0, 2, 3},
    {8, 8, 6, 8, 6, 0, 0, 0, 8, 2, 6},
};

static void check_figures(ml_device *device, const figures_row *row) {
    ml_figures f = figures_of(device);
    CHECK_EQ(f.free, row->free * GIB);
    CHECK_EQ(f.available, row->available * GIB);
    CHECK_EQ(f.budget, row->budget * GIB);
    CHECK_EQ(f.overcommit, row->overcommit * GIB);
    CHECK_EQ(f.total, row->total * GIB);
    CHECK_EQ(f.held, (row->own_held + row->other_held) * GIB);
    CHECK_EQ(f.claimed_by_others, row->other_claim * GIB);
    CHECK_EQ(free_of(device), row->free * GIB);
}

static void run_row(const figures_row *row, bool with_reading) {
    new_segment();
    ml_ledger *a = join(), *b = join();
    ml_device *own = open_card(a, row->total * GIB), *other = open_card(b, 0);
    ml_claim own_claim, other_claim;
    if (row->own_claim) CHECK_EQ(try_claim(own, row->own_claim * GIB, &own_claim), ML_OK);
    if (row->other_claim) CHECK_EQ(try_claim(other, row->other_claim * GIB, &other_claim), ML_OK);
    ml_amounts mine = {row->own_held * GIB, row->own_k * GIB, 0};
    ml_amounts theirs = {row->other_held * GIB, row->other_k * GIB, 0};
    CHECK_EQ(ml_account_publish(ml_device_account(own), &mine), ML_OK);
    CHECK_EQ(ml_account_publish(ml_device_account(other), &theirs), ML_OK);
    if (with_reading)
        CHECK_EQ(read_source(a, 0, row->total * GIB, ml_sub_sat(row->total, row->own_held + row->other_held) * GIB),
                 ML_OK);
    check_figures(own, row);
    ml_figures f = figures_of(own);
    CHECK_EQ(!!(f.flags & ML_FIGURES_COMPLETE), with_reading);
    CHECK_EQ(!!(f.flags & ML_FIGURES_LEDGER), !with_reading);
    CHECK_EQ(findings_of(a), 0);
    ml_ledger_leave(a);
    ml_ledger_leave(b);
}

static void test_figures_follow_the_table(void) {
    for (size_t i = 0; i < sizeof figures_rows / sizeof *figures_rows; i++) {
        unsigned before = check_failures;
        run_row(&figures_rows[i], false);
        run_row(&figures_rows[i], true);
        if (check_failures != before) printf("  in row %zu\n", i);
    }
}

static uint64_t seed;

static uint64_t random_bits(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

/* All sizes are equally likely, so that small and huge ones meet. */
static uint64_t random_size(void) {
    return random_bits() >> (random_bits() % 64);
}

static void scribble(ml_u64 *words, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (random_bits() % 3 == 0) ml_store_relaxed(&words[i], random_size());
}

/* Whatever bytes stand in records, words, readings and parameters, no figure is above the total. */
static void test_random_bytes_give_no_figure_above_the_total(void) {
    new_segment();
    ml_ledger *a = join(), *b = join();
    ml_device *own = open_card(a, 24 * GIB), *other = open_card(b, 0);
    hold(own, GIB);
    hold(other, GIB);
    ml_local_pool *pool = own->level[0];
    ml_view *view = pool->view;
    for (int i = 0; i < 20000 && check_failures == 0; i++) {
        if (i % 3 == 0) (void)read_source(a, 0, random_size() & ML_BYTES_MAX, random_size() & ML_BYTES_MAX);
        for (unsigned s = 0; s < 2; s++) {
            scribble((ml_u64 *)ml_view_record(view, pool->index, s), sizeof(ml_record) / 8);
            if (i % 2) scribble((ml_u64 *)ml_view_cell(view, pool->index, s, i % 4 / 2), sizeof(ml_reading_cell) / 8);
        }
        if (i % 5 == 0) ml_store_relaxed(&pool->entry->newest, random_size());
        ml_fetch_add_seq_cst(&pool->entry->param_version, 1);
        ml_fetch_add_seq_cst(&pool->entry->change, 1);
        (void)hold(own, random_size() & ML_BYTES_MAX);
        ml_figures f = figures_of(own);
        uint64_t bytes = 0;
        if (ml_device_free(own, &bytes) == ML_OK) CHECK(bytes <= f.total);
        CHECK(f.free <= f.total && f.available <= f.total && f.budget <= f.total);
        CHECK(f.unaccounted <= f.total || !(f.flags & ML_FIGURES_KNOWN));
    }
    if (check_failures) printf("  seed %llu\n", (unsigned long long)seed);
    ml_ledger_leave(a);
    ml_ledger_leave(b);
}

static void test_no_total_is_unknown_not_a_number(void) {
    new_segment();
    ml_ledger *a = join();
    ml_device *card = open_card(a, 0);
    ml_figures f;
    uint64_t bytes;
    CHECK_EQ(ml_device_free(card, &bytes), ML_NOT_READY);
    CHECK_EQ(ml_device_free(card, &bytes), ML_NOT_READY); /* from the cache */
    CHECK_EQ(ml_device_figures(card, &f), ML_NOT_READY);
    CHECK_EQ(f.reason, ML_REASON_NO_PROBE);
    CHECK_EQ(f.flags & (ML_FIGURES_KNOWN | ML_FIGURES_COMPLETE), 0);
    ml_ledger_leave(a);
    CHECK_EQ(ml_device_free(card, &bytes), ML_ERR_CLOSED);
}

static void test_largest_headroom_and_smallest_limit_count(void) {
    new_segment();
    ml_ledger *a = join(), *b = join();
    ml_device *own = open_card(a, 24 * GIB), *other = open_card(b, 20 * GIB);
    CHECK_EQ(free_of(own), 20 * GIB);
    CHECK_EQ(ml_device_set_headroom(own, GIB), ML_OK);
    CHECK_EQ(ml_device_set_headroom(other, 2 * GIB), ML_OK);
    CHECK_EQ(free_of(own), 18 * GIB);
    CHECK_EQ(figures_of(own).headroom, 2 * GIB);
    CHECK_EQ(figures_of(own).total, 20 * GIB);
    ml_claim claim;
    CHECK_EQ(try_claim(own, 18 * GIB + 1, &claim), ML_REFUSED);
    CHECK_EQ(try_claim(own, 18 * GIB, &claim), ML_OK);
    CHECK_EQ(ml_claim_cancel(&claim), ML_OK);
    CHECK_EQ(ml_device_set_limit(other, UINT64_MAX), ML_OK);
    CHECK_EQ(ml_device_set_headroom(other, 0), ML_OK);
    CHECK_EQ(free_of(own), 23 * GIB);
    CHECK_EQ(ml_device_set_headroom(own, (uint64_t)ML_BYTES_MAX + 1), ML_ERR_FIGURE);
    ml_ledger_leave(b);
    CHECK_EQ(ml_device_set_headroom(other, 5 * GIB), ML_ERR_CLOSED);
    CHECK_EQ(free_of(own), 23 * GIB);
    ml_ledger_leave(a);
}

/* A figure from the cache is the same as a fresh one after every kind of change by another member. */
static void test_cached_free_follows_every_change(void) {
    new_segment();
    ml_ledger *a = join(), *b = join();
    ml_device *own = open_card(a, 100 * UNIT), *other = open_card(b, 0);
    ml_claim claim;
    CHECK_EQ(free_of(own), 100 * UNIT);
    hold(other, 10 * UNIT);
    CHECK_EQ(free_of(own), 90 * UNIT);
    CHECK_EQ(try_claim(other, 20 * UNIT, &claim), ML_OK);
    CHECK_EQ(free_of(own), 70 * UNIT);
    ml_amounts landed = {30 * UNIT, 0, 0};
    CHECK_EQ(ml_claim_settle(&claim, &landed), ML_OK);
    CHECK_EQ(free_of(own), 70 * UNIT);
    hold(own, 5 * UNIT);
    CHECK_EQ(free_of(own), 65 * UNIT);
    CHECK_EQ(read_source(b, 0, 200 * UNIT, 100 * UNIT), ML_OK);
    CHECK_EQ(free_of(own), 100 * UNIT); /* 200 - U 65 - held 35 */
    ml_ledger_leave(b);
    CHECK_EQ(free_of(own), 130 * UNIT);
    ml_ledger_leave(a);
}

/* ---- publishing ------------------------------------------------------------------------------------------ */

static void test_publish_errors_change_nothing(void) {
    new_segment();
    ml_ledger *a = join();
    ml_device *card = open_card(a, 24 * GIB);
    ml_account *account = ml_device_account(card), *second;
    ml_amounts good = {3 * GIB, 2 * GIB, GIB}, now;
    CHECK_EQ(ml_account_publish(account, &good), ML_OK);
    CHECK_EQ(ml_account_open(card, "lora-cache", &second), ML_OK);
    ml_amounts half = {(uint64_t)ML_BYTES_MAX - 2 * GIB, 0, 0};
    CHECK_EQ(ml_account_publish(second, &half), ML_ERR_FIGURE); /* the sum of both leaves the range */
    static const ml_amounts bad[] = {
        {GIB, GIB + 1, 0}, {(uint64_t)ML_BYTES_MAX + 1, 0, 0}, {0, 0, UINT64_MAX}, {UINT64_MAX, UINT64_MAX, 0}};
    uint64_t version = ml_load_relaxed(&record_of(card, 0)->version);
    uint64_t change = ml_load_relaxed(&card->level[0]->entry->change);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) CHECK_EQ(ml_account_publish(account, &bad[i]), ML_ERR_FIGURE);
    CHECK_EQ(ml_account_add(account, -(int64_t)(3 * GIB) - 1, 0, 0), ML_ERR_FIGURE);
    CHECK_EQ(ml_account_add(account, INT64_MAX, 0, 0), ML_ERR_FIGURE);
    CHECK_EQ(ml_account_add(account, INT64_MIN, 0, 0), ML_ERR_FIGURE);
    CHECK_EQ(ml_account_add(account, -(int64_t)(2 * GIB), 0, 0), ML_ERR_FIGURE); /* releasable above held */
    CHECK_EQ(ml_account_add(account, 0, 0, -(int64_t)(2 * GIB)), ML_ERR_FIGURE);
    CHECK_EQ(ml_load_relaxed(&record_of(card, 0)->version), version);
    CHECK_EQ(ml_load_relaxed(&card->level[0]->entry->change), change);
    ml_account_get(account, &now);
    CHECK(now.held == good.held && now.releasable == good.releasable && now.pinned == good.pinned);
    ml_account_get(second, &now);
    CHECK_EQ(now.held, 0);
    CHECK_EQ(ml_account_add(account, -(int64_t)GIB, -(int64_t)GIB, 0), ML_OK);
    CHECK_EQ(published(card, 0).held, 2 * GIB);
    CHECK_EQ(findings_of(a), 0);
    ml_ledger_leave(a);
}

static void test_accounts_and_devices_sum_into_one_record(void) {
    static const char *const unified[] = {"sim:igpu", "sim:ram"};
    new_segment();
    ml_ledger *a = join();
    ml_device *gpu = open_chain(a, unified, 2), *ram = open_pool_of(a, "sim:ram"), *again;
    ml_account *extra;
    CHECK_EQ(ml_account_open(ram, "extra", &extra), ML_OK);
    hold(gpu, 100 * UNIT);
    hold(ram, 20 * UNIT);
    CHECK_EQ(published(ram, 0).held, 120 * UNIT);
    ml_amounts five = {5 * UNIT, 5 * UNIT, UNIT};
    CHECK_EQ(ml_account_publish(extra, &five), ML_OK);
    CHECK_EQ(published(ram, 0).held, 125 * UNIT);
    CHECK_EQ(published(gpu, 0).held, 100 * UNIT);
    CHECK_EQ(committed(ram, 0), 125);
    hold(gpu, 0);
    CHECK_EQ(published(ram, 0).held, 25 * UNIT);
    CHECK_EQ(published(ram, 0).releasable, 5 * UNIT);
    CHECK(open_chain(a, unified, 2) == gpu);
    CHECK(open_pool_of(a, "sim:igpu") != gpu); /* another chain */
    ml_pool_spec twice[2] = {{.key = "sim:x"}, {.key = "sim:x"}};
    CHECK_EQ(ml_device_open(a, twice, 2, &again), ML_ERR_ARGUMENT);
    ml_pool_spec many[ML_LEVELS_MAX + 1] = {{.key = "a"}, {.key = "b"}, {.key = "c"}, {.key = "d"}, {.key = "e"}};
    CHECK_EQ(ml_device_open(a, many, ML_LEVELS_MAX + 1, &again), ML_ERR_ARGUMENT);
    CHECK_EQ(ml_device_open(a, many, 0, &again), ML_ERR_ARGUMENT);
    CHECK_EQ(findings_of(a), 0);
    ml_ledger_leave(a);
}

/* ---- what holds at every store --------------------------------------------------------------------------- */

static ml_device *watched;
static unsigned watched_steps;
static uint64_t last_seen_sum;

/* The word covers the record at every instant, outer levels cover inner ones, and the record is never a mix: the
 * tests below publish releasable = pinned = held. */
static void watch_publish(const char *name) {
    (void)name;
    watched_steps++;
    for (unsigned l = 0; l < watched->level_count; l++) {
        const ml_local_pool *pool = watched->level[l];
        ml_figure f = published(watched, l);
        uint64_t units = ml_units_ceil(f.held + f.claims, pool->shift);
        CHECK(committed(watched, l) >= units);
        CHECK_EQ(f.releasable, f.held);
        CHECK_EQ(f.pinned, f.held);
        if (l > 0) CHECK(committed(watched, l) >= committed(watched, l - 1));
        last_seen_sum += f.held;
    }
}

static void publish_in_step(ml_device *device, uint64_t held) {
    ml_amounts amounts = {held, held, held};
    CHECK_EQ(ml_account_publish(ml_device_account(device), &amounts), ML_OK);
}

static const char *const chain_keys[] = {"sim:inner", "sim:second", "sim:third", "sim:outer"};

static void test_word_covers_record_at_every_store(void) {
    for (unsigned levels = 1; levels <= ML_LEVELS_MAX; levels++) {
        new_segment();
        ml_ledger *a = join();
        watched = open_chain(a, chain_keys, levels);
        ml_device *watched_device = watched;
        CHECK_EQ(watched_device->level_count, levels);
        watched_steps = 0;
        kill_points_hook(watch_publish);
        publish_in_step(watched, 10 * UNIT);
        publish_in_step(watched, 30 * UNIT + 1);
        publish_in_step(watched, 30 * UNIT + 2);
        publish_in_step(watched, 2 * UNIT);
        publish_in_step(watched, 0);
        for (unsigned i = 1; i < 9; i++) publish_in_step(watched, i * 7919 % 50 * UNIT); /* the ring goes round */
        kill_points_hook(NULL);
        CHECK(watched_steps > 13 * levels * 5);
        CHECK_EQ(findings_of(a), 0);
        ml_ledger_leave(a);
    }
}

/* In the middle of a publish another member reads the record from before, whole. */
static uint64_t allowed_before, allowed_after;
static void read_during_publish(const char *name) {
    ml_figure f = published(watched, 0);
    CHECK(f.held == f.releasable && f.held == f.pinned);
    CHECK(f.held == allowed_before || f.held == allowed_after);
    if (strncmp(name, "record.", 7) == 0) CHECK_EQ(f.held, allowed_before);
}

static void test_record_is_never_a_mix(void) {
    new_segment();
    ml_ledger *a = join();
    watched = open_card(a, 0);
    publish_in_step(watched, allowed_before = 100 * UNIT);
    kill_points_hook(read_during_publish);
    for (unsigned i = 0; i < 12; i++) {
        allowed_after = (i * 37 % 100 + 1) * UNIT;
        publish_in_step(watched, allowed_after);
        allowed_before = allowed_after;
    }
    kill_points_hook(NULL);
    ml_ledger_leave(a);
}

/* ---- claims ---------------------------------------------------------------------------------------------- */

static void test_claim_is_granted_while_it_fits(void) {
    new_segment();
    ml_ledger *a = join(), *b = join();
    ml_device *own = open_card(a, 10 * UNIT), *other = open_card(b, 0);
    ml_claim first, second, third;
    hold(other, 3 * UNIT);
    CHECK_EQ(try_claim(own, 7 * UNIT + 1, &first), ML_REFUSED);
    CHECK(!first.account);
    CHECK_EQ(try_claim(own, 4 * UNIT, &first), ML_OK);
    CHECK_EQ(first.checked, 1);
    CHECK_EQ(try_claim(other, 3 * UNIT, &second), ML_OK);
    CHECK_EQ(try_claim(own, 1, &third), ML_REFUSED);
    CHECK_EQ(figures_of(own).claimed_by_others, 3 * UNIT);
    CHECK_EQ(figures_of(own).own_claimed, 4 * UNIT);
    CHECK_EQ(ml_claim_cancel(&first), ML_OK);
    CHECK_EQ(ml_claim_cancel(&first), ML_OK); /* twice does nothing */
    CHECK_EQ(committed(own, 0), 0);
    CHECK_EQ(try_claim(own, 4 * UNIT, &third), ML_OK);
    CHECK_EQ(ml_claim_cancel(&third), ML_OK);
    CHECK_EQ(ml_claim_cancel(&second), ML_OK);
    CHECK_EQ(committed(other, 0), 3);
    CHECK_EQ(findings_of(a), 0);
    ml_ledger_leave(a);
    ml_ledger_leave(b);
}

static void test_claim_drains_as_bytes_land(void) {
    new_segment();
    ml_ledger *a = join();
    ml_device *card = open_card(a, 100 * UNIT);
    ml_claim claim;
    hold(card, 10 * UNIT);
    CHECK_EQ(try_claim(card, 20 * UNIT, &claim), ML_OK);
    static const struct {
        uint64_t held, open;
    } steps[] = {{15, 15}, {30, 0}, {35, 0}, {25, 10}, {5, 20}, {10, 15}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        ml_amounts now = {steps[i].held * UNIT, 0, 0};
        CHECK_EQ(ml_claim_publish(&claim, &now), ML_OK);
        CHECK_EQ(claim.open_bytes, steps[i].open * UNIT);
        CHECK_EQ(committed(card, 0), steps[i].held + steps[i].open);
        CHECK_EQ(published(card, 0).claims, steps[i].open * UNIT);
    }
    ml_amounts bad = {UNIT, 2 * UNIT, 0}, last = {12 * UNIT, 0, 0};
    CHECK_EQ(ml_claim_settle(&claim, &bad), ML_ERR_FIGURE);
    CHECK_EQ(claim.open_bytes, 15 * UNIT);
    hold(card, 11 * UNIT); /* a plain publish leaves claims alone */
    CHECK_EQ(committed(card, 0), 26);
    CHECK_EQ(ml_claim_settle(&claim, &last), ML_OK);
    CHECK_EQ(committed(card, 0), 12);
    last.held = 13 * UNIT;
    CHECK_EQ(ml_claim_settle(&claim, &last), ML_OK); /* ended: growth without a claim, never an error */
    CHECK_EQ(committed(card, 0), 13);
    CHECK_EQ(ml_claim_resize(&claim, UNIT), ML_EXPIRED);
    CHECK_EQ(ml_claim_renew(&claim, SECOND), ML_EXPIRED);
    CHECK_EQ(findings_of(a), 0);
    ml_ledger_leave(a);
}

static void test_settle_above_the_claim_is_published(void) {
    new_segment();
    ml_ledger *a = join();
    ml_device *card = open_card(a, 10 * UNIT);
    ml_claim claim;
    CHECK_EQ(try_claim(card, 8 * UNIT, &claim), ML_OK);
    ml_amounts more = {14 * UNIT, 0, 0};
    CHECK_EQ(ml_claim_settle(&claim, &more), ML_OK);
    CHECK_EQ(figures_of(card).overcommit, 4 * UNIT);
    CHECK_EQ(free_of(card), 0);
    CHECK_EQ(try_claim(card, 1, &claim), ML_REFUSED);
    ml_ledger_leave(a);
}

static void test_claim_resize_and_replacing(void) {
    new_segment();
    ml_ledger *a = join(), *b = join();
    ml_device *card = open_card(a, 100 * UNIT);
    hold(open_card(b, 0), 30 * UNIT);
    ml_claim claim;
    CHECK_EQ(try_claim(card, 50 * UNIT, &claim), ML_OK);
    CHECK_EQ(ml_claim_resize(&claim, 70 * UNIT), ML_OK);
    CHECK_EQ(committed(card, 0), 70);
    CHECK_EQ(ml_claim_resize(&claim, 71 * UNIT), ML_REFUSED);
    CHECK_EQ(claim.size_bytes, 70 * UNIT);
    ml_amounts landed = {40 * UNIT, 0, 0};
    CHECK_EQ(ml_claim_publish(&claim, &landed), ML_OK);
    CHECK_EQ(ml_claim_resize(&claim, 60 * UNIT), ML_OK);
    CHECK_EQ(claim.open_bytes, 20 * UNIT);
    CHECK_EQ(ml_claim_resize(&claim, 10 * UNIT), ML_OK); /* below what landed: only the open part goes */
    CHECK_EQ(claim.open_bytes, 0);
    CHECK_EQ(committed(card, 0), 40);
    CHECK_EQ(ml_claim_cancel(&claim), ML_OK);
    /* 40 held, 30 free: 60 fits when 35 of the own go first. */
    CHECK_EQ(ml_claim_try(ml_device_account(card), 60 * UNIT, 29 * UNIT, 0, &claim), ML_REFUSED);
    CHECK_EQ(ml_claim_try(ml_device_account(card), 60 * UNIT, 35 * UNIT, 0, &claim), ML_OK);
    CHECK_EQ(claim.open_bytes, 25 * UNIT);
    landed.held = 5 * UNIT;
    CHECK_EQ(ml_claim_publish(&claim, &landed), ML_OK); /* the 35 go: the claim is refilled */
    CHECK_EQ(claim.open_bytes, 60 * UNIT);
    landed.held = 65 * UNIT;
    CHECK_EQ(ml_claim_settle(&claim, &landed), ML_OK);
    CHECK_EQ(ml_claim_try(ml_device_account(card), 10 * UNIT, 20 * UNIT, 0, &claim), ML_OK);
    CHECK_EQ(claim.open_bytes, 0);
    CHECK_EQ(ml_claim_cancel(&claim), ML_OK);
    CHECK_EQ(findings_of(a), 0);
    ml_ledger_leave(a);
    ml_ledger_leave(b);
}

static void test_claim_with_ttl_ends_at_the_tick(void) {
    new_segment();
    ml_ledger *a = join();
    ml_device *card = open_card(a, 100 * UNIT);
    ml_claim claim, kept, endless;
    CHECK_EQ(ml_claim_try(ml_device_account(card), 10 * UNIT, 0, SECOND, &claim), ML_OK);
    CHECK_EQ(ml_claim_try(ml_device_account(card), 20 * UNIT, 0, SECOND, &kept), ML_OK);
    CHECK_EQ(try_claim(card, 5 * UNIT, &endless), ML_OK);
    CHECK_EQ(ml_claim_renew(&kept, 5 * SECOND), ML_OK);
    CHECK_EQ(tick(a), ML_OK);
    CHECK_EQ(committed(card, 0), 35);
    forward_ns += 2 * SECOND;
    CHECK_EQ(ml_claim_renew(&claim, SECOND), ML_EXPIRED); /* late, though not yet swept away */
    CHECK_EQ(committed(card, 0), 35);
    CHECK_EQ(tick(a), ML_OK);
    CHECK_EQ(committed(card, 0), 25);
    CHECK_EQ(claim.expired, 1);
    CHECK_EQ(ml_claim_resize(&claim, 20 * UNIT), ML_EXPIRED);
    CHECK_EQ(ml_claim_renew(&claim, SECOND), ML_EXPIRED);
    ml_amounts landed = {10 * UNIT, 0, 0};
    CHECK_EQ(ml_claim_settle(&claim, &landed), ML_OK);
    CHECK_EQ(committed(card, 0), 35);
    CHECK_EQ(ml_claim_cancel(&kept), ML_OK);
    CHECK_EQ(ml_claim_cancel(&endless), ML_OK);
    CHECK_EQ(findings_of(a), 0);
    ml_ledger_leave(a);
}

static void test_claim_of_nothing_and_of_too_much(void) {
    new_segment();
    ml_ledger *a = join();
    ml_device *card = open_card(a, 24 * GIB);
    ml_claim claim;
    CHECK_EQ(try_claim(card, 0, &claim), ML_OK);
    CHECK_EQ(claim.checked, 1);
    CHECK_EQ(ml_claim_cancel(&claim), ML_OK);
    CHECK_EQ(try_claim(card, 24 * GIB + 1, &claim), ML_REFUSED);
    CHECK_EQ(try_claim(card, ML_BYTES_MAX, &claim), ML_REFUSED);
    CHECK_EQ(try_claim(card, (uint64_t)ML_BYTES_MAX + 1, &claim), ML_ERR_FIGURE);
    hold(card, ML_BYTES_MAX);
    CHECK_EQ(committed(card, 0), ML_UNITS_MAX);
    CHECK_EQ(free_of(card), 0);
    CHECK_EQ(figures_of(card).budget, 24 * GIB);
    CHECK_EQ(try_claim(card, 1, &claim), ML_REFUSED);
    CHECK_EQ(findings_of(a), 0);
    hold(card, 0);
    CHECK_EQ(try_claim(card, 24 * GIB, &claim), ML_OK);
    ml_ledger_leave(a);
}

/* The unit is fixed for totals below 4 TiB; a larger one counts as the largest that a word can say, and what does
 * not fit a word is refused, saturated or not. */
static void test_claim_beyond_the_word_is_refused(void) {
    const uint64_t tib = UINT64_C(1) << 40, most = ML_UNITS_MAX * UNIT;
    new_segment();
    ml_ledger *a = join();
    ml_device *card = open_card(a, 5 * tib);
    ml_claim claim, second;
    CHECK_EQ(free_of(card), most);
    CHECK_EQ(try_claim(card, 6 * tib, &claim), ML_REFUSED);
    CHECK_EQ(try_claim(card, most + 1, &claim), ML_REFUSED);
    CHECK_EQ(try_claim(card, most, &claim), ML_OK);
    CHECK_EQ(try_claim(card, 1, &second), ML_REFUSED);
    CHECK_EQ(ml_claim_cancel(&claim), ML_OK);
    hold(card, 6 * tib);
    CHECK_EQ(try_claim(card, UNIT, &claim), ML_REFUSED);
    ml_device *large;
    ml_pool_spec spec = {.key = "sim:large", .largest_bytes = 5 * tib};
    CHECK_EQ(ml_device_open(a, &spec, 1, &large), ML_OK);
    CHECK_EQ(large->level[0]->shift, 13);
    CHECK_EQ(ml_device_set_limit(large, 5 * tib), ML_OK);
    CHECK_EQ(free_of(large), 5 * tib);
    CHECK_EQ(try_claim(large, 5 * tib, &claim), ML_OK);
    ml_ledger_leave(a);
}

static void test_claim_without_anything_to_check_says_so(void) {
    new_segment();
    ml_ledger *a = join_with(1), *b = join();
    ml_device *card = open_card(a, 0), *outside = open_card(b, 0);
    ml_claim claim;
    CHECK_EQ(try_claim(card, 5 * GIB, &claim), ML_OK);
    CHECK_EQ(claim.checked, 0); /* no total */
    CHECK_EQ(ml_claim_cancel(&claim), ML_OK);
    CHECK_EQ(ml_device_set_limit(card, 10 * GIB), ML_OK);
    CHECK_EQ(try_claim(card, 5 * GIB, &claim), ML_OK);
    CHECK_EQ(claim.checked, 1);
    CHECK_EQ(info_of(b).mode, ML_MODE_UNREGISTERED);
    CHECK_EQ(info_of(b).degraded_status, ML_FULL);
    CHECK_EQ(free_of(outside), 5 * GIB);
    ml_claim other;
    CHECK_EQ(try_claim(outside, 100 * GIB, &other), ML_OK);
    CHECK_EQ(other.checked, 0); /* no slot */
    CHECK_EQ(free_of(card), 10 * GIB);
    ml_amounts landed = {GIB, 0, 0};
    CHECK_EQ(ml_claim_settle(&other, &landed), ML_OK);
    CHECK_EQ(findings_of(a), 0);
    ml_ledger_leave(b);
    ml_ledger_leave(a);
}

/* `free` is made from the words that the grant check reads: a claim of it, less the own open claims, always fits. */
static void test_claim_of_free_always_fits(void) {
    new_segment();
    ml_ledger *a = join(), *b = join(), *c = join();
    ml_device *own = open_card(a, 50 * UNIT + 17), *others[2] = {open_card(b, 0), open_card(c, 0)};
    for (int i = 0; i < 3000 && check_failures == 0; i++) {
        for (int j = 0; j < 2; j++) hold(others[j], random_bits() % (20 * UNIT));
        hold(own, random_bits() % (15 * UNIT));
        ml_claim open, claim;
        bool has_open = random_bits() % 2 && try_claim(own, random_bits() % (5 * UNIT), &open) == ML_OK;
        uint64_t fits = ml_sub_sat(free_of(own), has_open ? open.open_bytes : 0);
        CHECK_EQ(try_claim(own, fits, &claim), ML_OK);
        ml_claim_cancel(&claim);
        if (!has_open) {
            CHECK_EQ(try_claim(own, free_of(own) + 2 * UNIT, &claim), ML_REFUSED);
            ml_figures f = figures_of(own);
            uint64_t exact = ml_sub_sat(50 * UNIT + 17, f.held + f.claimed);
            CHECK(f.free <= exact && exact - f.free < 4 * UNIT);
        }
        if (has_open) ml_claim_cancel(&open);
    }
    if (check_failures) printf("  seed %llu\n", (unsigned long long)seed);
    CHECK_EQ(findings_of(a), 0);
    ml_ledger_leave(a);
    ml_ledger_leave(b);
    ml_ledger_leave(c);
}

/* ---- claims, interleaved --------------------------------------------------------------------------------- */

static ml_device *rival;
static uint64_t rival_bytes;
static int rival_status;
static ml_claim rival_claim;
static const char *rival_at;
static unsigned rival_pass;

/* Once, when the member under test comes to `rival_at`: another member claims. */
static void rival_claims(const char *name) {
    if (!rival_at || strcmp(name, rival_at) != 0 || --rival_pass != 0) return;
    rival_at = NULL;
    rival_status = wait_claim(rival, rival_bytes, 0, &rival_claim);
}

static void let_rival_claim(ml_device *device, uint64_t bytes, const char *at, unsigned pass) {
    rival = device;
    rival_bytes = bytes;
    rival_at = at;
    rival_pass = pass;
    rival_status = -99;
    kill_points_hook(rival_claims);
}

/* Two members want the same bytes; the second comes at any step of the first: one is granted, never both. */
static void test_only_one_of_two_claims_is_granted(void) {
    static const char *const steps[] = {"claim.pending", "claim.commit", "record.generation", "record.version",
                                        "claim.change"};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        for (int first_is_lower = 0; first_is_lower < 2; first_is_lower++) {
            new_segment();
            ml_ledger *low = join(), *high = join();
            ml_device *cards[2] = {open_card(high, 10 * UNIT), open_card(low, 10 * UNIT)};
            ml_claim claim;
            let_rival_claim(cards[!first_is_lower], 6 * UNIT, steps[i], 1);
            int status = wait_claim(cards[first_is_lower], 6 * UNIT, 0, &claim);
            kill_points_hook(NULL);
            CHECK(rival_status != -99);
            CHECK_EQ((status == ML_OK) + (rival_status == ML_OK), 1);
            CHECK_EQ(committed(cards[0], 0) + committed(cards[1], 0), 6);
            CHECK_EQ(findings_of(low), 0);
            ml_ledger_leave(low);
            ml_ledger_leave(high);
        }
}

/* A rival aborts the pending at one level after outer levels were won: these are undone, and say so. */
static void test_lost_chain_claim_is_undone_at_all_levels(void) {
    for (unsigned levels = 2; levels <= ML_LEVELS_MAX; levels++)
        for (unsigned pass = 1; pass <= levels; pass++) {
            new_segment();
            ml_ledger *a = join(), *b = join();
            ml_device *chain = open_chain(a, chain_keys, levels), *other;
            /* commit() goes from the outermost in; at the pass-th one the level that is next is lost */
            unsigned lost = levels - pass;
            other = open_pool_of(b, chain_keys[lost]);
            for (unsigned l = 0; l < levels; l++)
                CHECK_EQ(ml_device_set_limit(open_pool_of(b, chain_keys[l]), 10 * UNIT), ML_OK);
            hold(chain, UNIT);
            uint64_t versions[ML_LEVELS_MAX];
            for (unsigned l = 0; l < levels; l++) versions[l] = ml_load_relaxed(&record_of(chain, l)->version);
            ml_claim claim;
            let_rival_claim(other, 6 * UNIT, "claim.commit", pass);
            CHECK_EQ(wait_claim(chain, 6 * UNIT, 0, &claim), ML_REFUSED);
            kill_points_hook(NULL);
            CHECK_EQ(rival_status, ML_OK);
            for (unsigned l = 0; l < levels; l++) {
                CHECK_EQ(ml_load_relaxed(&record_of(chain, l)->word), ML_WORD(1, 0, 0));
                if (l > lost) /* it was seen as committed: the pair (committed, version) must not come back */
                    CHECK(ml_load_relaxed(&record_of(chain, l)->version) > versions[l]);
            }
            CHECK_EQ(ml_claim_cancel(&rival_claim), ML_OK);
            CHECK_EQ(wait_claim(chain, 6 * UNIT, 0, &claim), ML_OK);
            for (unsigned l = 0; l < levels; l++) CHECK_EQ(committed(chain, l), 7);
            CHECK_EQ(ml_claim_cancel(&claim), ML_OK);
            CHECK_EQ(findings_of(a), 0);
            ml_ledger_leave(a);
            ml_ledger_leave(b);
        }
}

static void test_claim_on_a_chain_needs_room_at_every_level(void) {
    new_segment();
    ml_ledger *a = join(), *b = join();
    ml_device *chain = open_chain(a, chain_keys, 4);
    static const uint64_t limits[] = {50, 40, 60, 30};
    for (unsigned l = 0; l < 4; l++)
        CHECK_EQ(ml_device_set_limit(open_pool_of(b, chain_keys[l]), limits[l] * UNIT), ML_OK);
    ml_claim claim;
    CHECK_EQ(free_of(chain), 30 * UNIT);
    CHECK_EQ(figures_of(chain).level, 3);
    CHECK_EQ(try_claim(chain, 31 * UNIT, &claim), ML_REFUSED);
    hold(open_pool_of(b, chain_keys[1]), 15 * UNIT);
    CHECK_EQ(free_of(chain), 25 * UNIT);
    CHECK_EQ(figures_of(chain).level, 1);
    CHECK_EQ(try_claim(chain, 26 * UNIT, &claim), ML_REFUSED);
    for (unsigned l = 0; l < 4; l++) CHECK_EQ(ml_load_relaxed(&record_of(chain, l)->word), 0);
    CHECK_EQ(try_claim(chain, 25 * UNIT, &claim), ML_OK);
    CHECK_EQ(claim.checked, 1);
    ml_amounts landed = {25 * UNIT, 0, 0};
    CHECK_EQ(ml_claim_settle(&claim, &landed), ML_OK);
    for (unsigned l = 0; l < 4; l++) CHECK_EQ(committed(chain, l), 25);
    CHECK_EQ(findings_of(a), 0);
    ml_ledger_leave(a);
    ml_ledger_leave(b);
}

/* A claimer that is stopped after its scan hinders nobody, and what it wanted is aborted by CAS from the exact word:
 * if it publishes meanwhile, nothing old may be put back. */
static ml_device *publisher;
static void publish_before_abort(const char *name) {
    if (publisher && strcmp(name, "claim.abort") == 0) {
        ml_store_release(&record_of(publisher, 0)->word, ML_WORD(2, 0, 0)); /* its attempt is over, and it grew */
        ml_device *device = publisher;
        publisher = NULL;
        hold(device, 2 * UNIT);
    }
}

static void test_late_abort_changes_nothing_but_the_pending_it_saw(void) {
    new_segment();
    ml_ledger *a = join(), *b = join();
    ml_device *slow = open_card(a, 10 * UNIT), *quick = open_card(b, 0);
    ml_claim claim;
    hold(slow, 0);
    ml_store_release(&record_of(slow, 0)->word, ML_WORD(0, 8, 0)); /* as if stopped in the middle */
    publisher = slow;
    kill_points_hook(publish_before_abort);
    CHECK_EQ(wait_claim(quick, 6 * UNIT, 0, &claim), ML_OK);
    kill_points_hook(NULL);
    CHECK(!publisher);
    CHECK_EQ(committed(slow, 0), 2);
    CHECK_EQ(findings_of(a), 0);
    ml_ledger_leave(a);
    ml_ledger_leave(b);
}

static void test_stopped_claims_hinder_nobody(void) {
    for (unsigned age = 0; age < 16; age += 15) {
        new_segment();
        ml_ledger *m[6];
        ml_device *cards[6];
        ml_claim claim;
        for (int i = 0; i < 6; i++) cards[i] = open_card(m[i] = join(), 10 * UNIT);
        for (int i = 0; i < 6; i++) {
            hold(cards[i], 0);
            if (i != 3) ml_store_release(&record_of(cards[i], 0)->word, ML_WORD(0, 9, age));
        }
        CHECK_EQ(try_claim(cards[3], 10 * UNIT, &claim), ML_OK); /* in the hot path: at most 3 attempts */
        for (int i = 0; i < 6; i++)
            if (i != 3) CHECK_EQ(ML_WORD_PENDING(ml_load_relaxed(&record_of(cards[i], 0)->word)), 0);
        for (int i = 0; i < 6; i++) ml_ledger_leave(m[i]);
    }
}

/* ---- waiting in line ------------------------------------------------------------------------------------- */

static void test_waiting_word_makes_room_for_half_a_second(void) {
    new_segment();
    ml_ledger *a = join(), *b = join();
    ml_device *own = open_card(a, 10 * UNIT), *other = open_card(b, 0);
    ml_claim claim;
    hold(other, 0);
    hold(own, 0);
    ml_store_release(&record_of(other, 0)->waiting, UINT64_C(1) << 30 | 8); /* stopped while it stood in line */
    CHECK_EQ(try_claim(own, 3 * UNIT, &claim), ML_WAITING);
    CHECK_EQ(wait_claim(own, 3 * UNIT, 0, &claim), ML_WAITING);
    CHECK_EQ(wait_claim(own, 2 * UNIT, 0, &claim), ML_OK); /* beside the 8 */
    ml_claim_cancel(&claim);
    forward_ns += SECOND / 4;
    CHECK_EQ(wait_claim(own, 3 * UNIT, 0, &claim), ML_WAITING);
    forward_ns += SECOND / 2;
    CHECK_EQ(wait_claim(own, 3 * UNIT, 0, &claim), ML_OK);
    CHECK_EQ(ml_load_relaxed(&record_of(other, 0)->waiting), 0); /* later comers do not pay again */
    ml_claim_cancel(&claim);
    /* The same member in line again and again: at most 0.5 s in 5 s. */
    ml_store_release(&record_of(other, 0)->waiting, UINT64_C(2) << 30 | 8);
    CHECK_EQ(wait_claim(own, 3 * UNIT, 0, &claim), ML_OK);
    ml_claim_cancel(&claim);
    forward_ns += 6 * SECOND;
    ml_store_release(&record_of(other, 0)->waiting, UINT64_C(3) << 30 | 8);
    CHECK_EQ(wait_claim(own, 3 * UNIT, 0, &claim), ML_WAITING);
    CHECK_EQ(wait_claim(own, 11 * UNIT, SECOND / 50, &claim), ML_REFUSED);
    CHECK_EQ(ml_load_relaxed(&record_of(own, 0)->waiting), 0);
    ml_ledger_leave(a);
    ml_ledger_leave(b);
}

/* Nothing is published, so nothing wakes the claimer: it must look again by itself when the half second is over. The
 * watchdog ends a test in which it sleeps until its own deadline. */
static void test_stopped_waiter_does_not_use_up_the_timeout(void) {
    new_segment();
    ml_ledger *a = join(), *b = join();
    ml_device *own = open_card(a, 10 * UNIT), *other = open_card(b, 0);
    ml_claim claim;
    hold(other, 0);
    ml_store_release(&record_of(other, 0)->waiting, UINT64_C(1) << 30 | 8);
    CHECK_EQ(wait_claim(own, 3 * UNIT, 1000 * SECOND, &claim), ML_OK);
    CHECK_EQ(ml_load_relaxed(&record_of(own, 0)->waiting), 0);
    ml_ledger_leave(a);
    ml_ledger_leave(b);
}

int main(int argc, char **argv) {
    static const check_test tests[] = {
        TEST(test_figures_follow_the_table),
        TEST(test_random_bytes_give_no_figure_above_the_total),
        TEST(test_no_total_is_unknown_not_a_number),
        TEST(test_largest_headroom_and_smallest_limit_count),
        TEST(test_cached_free_follows_every_change),
        TEST(test_publish_errors_change_nothing),
        TEST(test_accounts_and_devices_sum_into_one_record),
        TEST(test_word_covers_record_at_every_store),
        TEST(test_record_is_never_a_mix),
        TEST(test_claim_is_granted_while_it_fits),
        TEST(test_claim_drains_as_bytes_land),
        TEST(test_settle_above_the_claim_is_published),
        TEST(test_claim_resize_and_replacing),
        TEST(test_claim_with_ttl_ends_at_the_tick),
        TEST(test_claim_of_nothing_and_of_too_much),
        TEST(test_claim_beyond_the_word_is_refused),
        TEST(test_claim_without_anything_to_check_says_so),
        TEST(test_claim_of_free_always_fits),
        TEST(test_only_one_of_two_claims_is_granted),
        TEST(test_lost_chain_claim_is_undone_at_all_levels),
        TEST(test_claim_on_a_chain_needs_room_at_every_level),
        TEST(test_late_abort_changes_nothing_but_the_pending_it_saw),
        TEST(test_stopped_claims_hinder_nobody),
        TEST(test_waiting_word_makes_room_for_half_a_second),
        TEST(test_stopped_waiter_does_not_use_up_the_timeout),
    };
    if (!begin()) return 2;
    seed = argc > 2 ? strtoull(argv[2], NULL, 0) : os_random_u64() | 1;
    int result = CHECK_MAIN(tests, argc, argv);
    finish();
    return result;
}
