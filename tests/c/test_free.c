/* A handle that was left and freed keeps nothing, whatever was done through it. valgrind and the address sanitizer look
 * for what nothing points to any more. */
#define _GNU_SOURCE
#include "core_help.h"

/* A member that is killed with bytes. */
static void hold_and_die(void) {
    (void)hold(open_card(join(), 0), UNIT);
    die(SIGKILL);
}

static void look(void) {
    ml_image *image = NULL;
    ml_ledger_info info;
    ml_snapshot *snapshot = calloc(1, sizeof *snapshot);
    ml_member *members = calloc(ML_SLOTS_MAX, sizeof *members);
    ml_finding findings[4];
    if (CHECK_EQ(ml_image_open(path, &image, &info), ML_OK)) {
        CHECK(ml_image_pools(image) != 0);
        CHECK_EQ(ml_image_snapshot(image, 0, snapshot), ML_OK);
        CHECK(ml_image_members(image, members, ML_SLOTS_MAX) > 0);
        (void)ml_image_check(image, findings, 4);
        ml_image_close(image);
    }
    CHECK(ml_image_open("/nowhere/at/all", &image, &info) != ML_OK);
    free(snapshot);
    free(members);
}

static void claims(ml_ledger *ledger, ml_claim *left_open) {
    static const char *const keys[] = {"sim:inner", "sim:outer"};
    ml_account *account = NULL;
    ml_claim claim;
    ml_device *card = open_card(ledger, GIB), *chain = open_chain(ledger, keys, 2);
    CHECK_EQ(ml_device_set_limit(chain, GIB), ML_OK);
    CHECK_EQ(ml_account_open(card, "part", &account), ML_OK);
    CHECK_EQ(ml_account_open(card, "other part", &account), ML_OK);
    CHECK_EQ(try_claim(chain, UNIT, &claim), ML_OK);
    CHECK_EQ(ml_claim_cancel(&claim), ML_OK);
    CHECK(wait_claim(card, 2 * GIB, SECOND / 100, &claim) != ML_OK);
    CHECK_EQ(try_claim(card, UNIT, left_open), ML_OK);
}

static void test_freed_handle_keeps_nothing(void) {
    ml_claim open_claim[2];
    ml_tick tick;
    ml_ledger *a = join(), *b = join();
    claims(a, &open_claim[0]);
    /* Somebody waits in line, so that b keeps account of for how long. */
    ml_store_release(&record_of(open_card(a, 0), 0)->waiting, UINT64_C(1) << 30 | GIB / UNIT);
    CHECK_EQ(wait_claim(open_card(b, GIB), UNIT, 0, &open_claim[1]), ML_WAITING);
    ml_store_release(&record_of(open_card(a, 0), 0)->waiting, 0);
    claims(b, &open_claim[1]);
    (void)run_child(hold_and_die);
    look();
    CHECK_EQ(sweep(a), UNIT);
    CHECK_EQ(ml_ledger_tick(b, &tick), ML_OK);
    CHECK_EQ(unlink(path), 0); /* both move to a new one, and keep the old mapping until the end */
    forward_ns += 5 * SECOND;
    CHECK_EQ(ml_ledger_tick(a, &tick), ML_OK);
    CHECK_EQ(ml_ledger_tick(b, &tick), ML_OK);
    CHECK_EQ(ml_ledger_leave(a), ML_OK);
    CHECK_EQ(ml_ledger_leave(b), ML_OK);
    ml_ledger_free(a);
    ml_ledger_free(b);
}

static void test_freed_private_handle_keeps_nothing(void) {
    ml_join_options options = {.path = "/nowhere/at/all", .label = "test"};
    ml_ledger *ledger = NULL;
    ml_claim open_claim;
    CHECK_EQ(ml_ledger_join(&options, &ledger), ML_OK);
    CHECK_EQ(info_of(ledger).mode, ML_MODE_PRIVATE);
    claims(ledger, &open_claim);
    ml_ledger_free(ledger); /* not left yet: nothing happens */
    CHECK_EQ(ml_ledger_leave(ledger), ML_OK);
    ml_ledger_free(ledger);
    ml_ledger_free(NULL);
}

static void test_join_that_fails_keeps_nothing(void) {
    ml_ledger *ledger = NULL, **handles = calloc(OS_FORK_MAX + 1, sizeof(ml_ledger *));
    unsigned count = 0;
    ml_join_options options = {.path = path, .label = "test", .slots = ML_SLOTS_MAX + 1};
    CHECK_EQ(ml_ledger_join(&options, &ledger), ML_ERR_ARGUMENT);
    CHECK(ledger == NULL);
    options = (ml_join_options){.path = "/nowhere/at/all", .label = "test"};
    while (count <= OS_FORK_MAX && ml_ledger_join(&options, &handles[count]) == ML_OK) count++;
    CHECK_EQ(count, OS_FORK_MAX);
    CHECK_EQ(ml_ledger_join(&options, &ledger), ML_ERR_MEMORY);
    CHECK(ledger == NULL);
    while (count-- > 0) {
        CHECK_EQ(ml_ledger_leave(handles[count]), ML_OK);
        ml_ledger_free(handles[count]);
    }
    free(handles);
}

int main(int argc, char **argv) {
    static const check_test tests[] = {
        TEST(test_freed_handle_keeps_nothing),
        TEST(test_freed_private_handle_keeps_nothing),
        TEST(test_join_that_fails_keeps_nothing),
    };
    if (!make_folder()) return 2;
    snprintf(path, sizeof path, "%s/segment", folder);
    int result = CHECK_MAIN(tests, argc, argv);
    (void)unlink(path);
    (void)rmdir(folder);
    return result;
}
