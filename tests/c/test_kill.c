/* A process is killed, and another time stopped for ever, at each named point of csrc/core. Afterwards others go on:
 * they join, publish, read, sweep, and are granted what fits; and when it is dead and swept, nothing of it is left.
 *
 *  *     test_kill [all | list | NAME]    all: every time that the point is passed, not only the first ones and the
 * last; list: how often the actor passes each point, and nothing else */
#define _GNU_SOURCE
#include "core_help.h"

#include <dirent.h>

#define ROOM UINT64_C(100) /* units */
#define POINTS_MAX 256

static const char *const chain_keys[] = {"sim:inner", "sim:outer"};

static ml_device *open_levels(ml_ledger *ledger) {
    return open_chain(ledger, chain_keys, 2);
}

static void read_both(ml_ledger *ledger, uint64_t used_units) {
    for (unsigned p = 0; p < 2; p++) (void)read_source(ledger, p, ROOM * UNIT, (ROOM - used_units) * UNIT);
}

/* ---- the scene: what the actor meets ---------------------------------------------------------------------- */

/* Leaves a table full of pools that nobody has open. */
static void fill_the_table(void) {
    char key[32];
    ml_ledger *ledger = join();
    (void)open_levels(ledger);
    for (unsigned i = 2; i < ML_POOLS_MAX; i++) {
        snprintf(key, sizeof key, "sim:unused%u", i);
        (void)open_pool_of(ledger, key);
    }
    ml_ledger_leave(ledger);
}

static void be_the_dead(void) {
    ml_ledger *ledger = join();
    ml_device *chain = open_levels(ledger);
    ml_claim claim;
    hold(chain, 7 * UNIT);
    read_both(ledger, 7);
    CHECK_EQ(wait_claim(chain, 5 * UNIT, 0, &claim), ML_OK);
    CHECK_EQ(ml_device_set_headroom(chain, UNIT), ML_OK);
    CHECK_EQ(ml_device_set_limit(chain, 2 * ROOM * UNIT), ML_OK);
    kill(getpid(), check_failures ? SIGTERM : SIGKILL);
}

static void be_the_hinderer(void) {
    ml_ledger *ledger = join();
    ml_device *chain = open_levels(ledger);
    ml_claim claim;
    hold(chain, 10 * UNIT);
    kill_points_arm("claim.commit", 1, SIGSTOP);
    (void)wait_claim(chain, 60 * UNIT, 0, &claim);
}

/* ---- the actor -------------------------------------------------------------------------------------------- */

static ml_device *acting;
static unsigned commits_left;

/* A rival aborts the actor's attempt after it won the outer level. */
static void abort_own_attempt(const char *name) {
    if (commits_left == 0 || strcmp(name, "claim.commit") != 0 || --commits_left != 0) return;
    ml_u64 *word = &record_of(acting, 0)->word;
    uint64_t seen = ml_load_seq_cst(word);
    (void)ml_cas_acq_rel(word, seen, ML_WORD(ML_WORD_COMMITTED(seen), 0, ML_WORD_AGE(seen)));
}

static ml_ledger *actor_ledger;

/* Somebody opens the pool while the actor takes it for one that nobody has open. */
static void open_meanwhile(const char *name) {
    static bool done;
    if (!done && strcmp(name, "pool.recycle") == 0) {
        ml_bit_set(ml_view_pool(actor_ledger->view, 2)->openers, 1);
        done = true;
    }
}

/* Somebody closes the pool while the actor opens it. */
static void close_meanwhile(const char *name) {
    static bool done;
    if (done || strcmp(name, "pool.openers") != 0) return;
    for (unsigned p = 0; p < actor_ledger->view->pool_count; p++) {
        ml_pool *entry = ml_view_pool(actor_ledger->view, p);
        char key[ML_KEY_BYTES];
        ml_words_load(entry->key, ML_KEY_WORDS, key);
        if (strcmp(key, "sim:closing") != 0) continue;
        uint64_t word = ml_load_acquire(&entry->state);
        ml_store_release(&entry->state, ML_SLOT_WORD(ML_SLOT_GENERATION(word) + 1, ML_POOL_MERGED));
        done = true;
    }
}

static void open_others(ml_ledger *ledger) {
    ml_device *device;
    ml_pool_spec twins = {.key = "sim:unused30", .aliases = {"sim:unused31"}};
    actor_ledger = ledger;
    kill_points_hook(open_meanwhile);
    device = open_pool_of(ledger, "sim:new");
    CHECK(device->level[0]->view->shared);
    kill_points_hook(close_meanwhile);
    device = open_pool_of(ledger, "sim:closing");
    CHECK(device->level[0]->view->shared);
    kill_points_hook(NULL);
    CHECK_EQ(ml_device_open(ledger, &twins, 1, &device), ML_OK); /* two entries turn out to be one pool */
    CHECK(device->level[0]->view->shared);
}

static void act_on_pools(ml_ledger *ledger) {
    ml_pool_spec named[2] = {{.key = "sim:inner", .aliases = {"sim:alias"}}, {.key = "sim:outer"}};
    CHECK_EQ(ml_device_open(ledger, named, 2, &acting), ML_OK);
    open_others(ledger);
    CHECK_EQ(ml_device_set_headroom(acting, 2 * UNIT), ML_OK);
    CHECK_EQ(ml_device_set_limit(acting, 3 * ROOM * UNIT), ML_OK);
}

static void act_on_claims(ml_ledger *ledger) {
    ml_claim claim, other, brief;
    ml_amounts amounts = {20 * UNIT, 20 * UNIT, UNIT};
    kill_points_hook(abort_own_attempt);
    CHECK_EQ(wait_claim(acting, 60 * UNIT, SECOND, &claim), ML_OK); /* past the hinderer */
    commits_left = 2;
    CHECK_EQ(wait_claim(acting, 5 * UNIT, SECOND, &other), ML_OK); /* undone once */
    kill_points_hook(NULL);
    CHECK_EQ(ml_claim_publish(&claim, &amounts), ML_OK);
    amounts.held = 30 * UNIT;
    CHECK_EQ(ml_claim_settle(&claim, &amounts), ML_OK);
    CHECK_EQ(ml_claim_resize_wait(&other, 8 * UNIT, 0, (ml_stop){NULL, NULL}), ML_OK);
    CHECK_EQ(ml_claim_resize(&other, 3 * UNIT), ML_OK);
    CHECK_EQ(ml_claim_cancel(&other), ML_OK);
    CHECK_EQ(ml_claim_wait(ml_device_account(acting), 4 * UNIT, 0, SECOND, 0, &brief, &amounts.pinned), ML_OK);
    forward_ns += 2 * SECOND;
    CHECK_EQ(tick(ledger), ML_OK);
    CHECK_EQ(brief.expired, 1);
    ml_record *of_the_dead = ml_view_record(ledger->view, acting->level[1]->index, 0);
    ml_store_release(&of_the_dead->waiting, UINT64_C(1) << 30 | 1);
    ml_store_release(&of_the_dead->ask, 1);
    ml_store_release(&of_the_dead->window, UINT64_C(1) << 40);
    uint64_t patience_ns =
        getenv("TEST_EMULATOR") ? SECOND / 20 : SECOND / 200; /* to sweep first, then stand in line */
    CHECK_EQ(wait_claim(acting, 55 * UNIT, patience_ns, &other), ML_REFUSED);
}

static void act_on_the_line(ml_ledger *ledger) {
    ml_claim claim;
    ml_u64 *waiting = &ml_view_record(ledger->view, acting->level[1]->index, 1)->waiting;
    ml_store_release(waiting, UINT64_C(7) << 30 | 90); /* the hinderer's, which is stopped */
    CHECK_EQ(wait_claim(acting, 20 * UNIT, 0, &claim), ML_WAITING);
    forward_ns += SECOND;
    CHECK_EQ(wait_claim(acting, 20 * UNIT, 0, &claim), ML_OK);
    CHECK_EQ(ml_load_acquire(waiting), 0);
    CHECK_EQ(hold(acting, 45 * UNIT), ML_OK);
    CHECK_EQ(ml_claim_cancel(&claim), ML_OK);
}

/* A group of one, and an ask of a second member of this process. */
static void act_with_others(ml_ledger *ledger) {
    ml_ledger *asker = join();
    ml_ask ask;
    ml_request request;
    uint64_t bytes, waited_ns;
    unsigned pool = ml_device_pool(acting, 0), asker_pool = ml_device_pool(open_levels(asker), 0), flags;
    int answer;
    CHECK_EQ(ml_group_follow(ledger, ledger->seat.me, ledger->seat.generation), ML_OK);
    CHECK_EQ(ml_prompt_begin(ledger, "one"), ML_OK);
    CHECK_EQ(ml_group_interrupt(ledger, 0), ML_OK);
    CHECK_EQ(ml_prompt_end(ledger), ML_OK);
    CHECK_EQ(ml_free_request(ledger, ML_FREE_CACHE, true), ML_OK);
    CHECK_EQ(ml_free_request(ledger, ML_FREE_CACHE, false), ML_OK);
    CHECK(ml_free_epoch(ledger, &flags) > 0);
    CHECK_EQ(ml_window_open(acting, SECOND, &waited_ns), ML_OK);
    ml_window_close(acting);
    CHECK(ml_asking_begin(asker) > 0);
    CHECK_EQ(ml_ask_send(asker, asker_pool, 1, UNIT, &ask), ML_OK); /* the hinderer never answers */
    CHECK_EQ(ml_ask_withdraw(asker, &ask), ML_OK);
    CHECK_EQ(ml_ask_send(asker, asker_pool, ledger->seat.me, UNIT, &ask), ML_OK);
    CHECK_EQ(ml_request_next(ledger, &request), ML_OK);
    CHECK_EQ(ml_ask_withdraw(asker, &ask), ML_OK); /* while the victim is at it */
    CHECK_EQ(ml_request_answer(ledger, &request, ML_ANSWER_DONE, UNIT), ML_EXPIRED);
    CHECK_EQ(ml_ask_send(asker, asker_pool, ledger->seat.me, 5 * UNIT, &ask), ML_OK);
    CHECK_EQ(ml_request_next(ledger, &request), ML_OK);
    CHECK_EQ(request.pool, pool);
    CHECK_EQ(ml_request_answer(ledger, &request, ML_ANSWER_DONE, 5 * UNIT), ML_OK);
    CHECK_EQ(ml_ask_poll(asker, &ask, &answer, &bytes), ML_OK);
    CHECK_EQ(bytes, 5 * UNIT);
    CHECK_EQ(ml_ask_send(asker, asker_pool, ledger->seat.me, UNIT, &ask), ML_OK);
    CHECK_EQ(ml_request_next(ledger, &request), ML_OK);
    CHECK_EQ(ml_request_answer(ledger, &request, ML_ANSWER_DONE, UNIT), ML_OK); /* which the asker never reads */
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(tick(ledger), ML_OK);
        forward_ns += 5 * SECOND / 4;
    }
    CHECK_EQ(tick(ledger), ML_OK);
    CHECK_EQ(ml_ask_send(asker, asker_pool, 1, UNIT, &ask), ML_OK); /* open when it leaves */
    ml_asking_end(asker);
    ml_account *part;
    CHECK_EQ(ml_account_open(acting, "part", &part), ML_OK);
    ml_amounts two = {2 * UNIT, 0, 0}, none = {0, 0, 0};
    CHECK_EQ(ml_account_publish(part, &two), ML_OK);
    CHECK_EQ(tick(ledger), ML_OK);
    CHECK_EQ(ml_account_publish(part, &none), ML_OK);
    CHECK_EQ(tick(ledger), ML_OK);
    CHECK_EQ(ml_ledger_leave(asker), ML_OK);
}

/* Foreign bytes that turn out to have been the actor's own: the reading is settled. */
static void act_on_readings(ml_ledger *ledger) {
    read_both(ledger, 45);
    forward_ns += SECOND;
    (void)read_source(ledger, 0, ROOM * UNIT, (ROOM - 60) * UNIT);
    forward_ns += SECOND;
    CHECK_EQ(hold(acting, 50 * UNIT), ML_OK);
    ml_reading_op op;
    ml_reading reading = {.total = ROOM * UNIT, .free = (ROOM - 60) * UNIT, .scope = ML_SCOPE_DEVICE};
    CHECK_EQ(ml_reading_begin(ledger, 0, NULL, &op), ML_OK);
    CHECK_EQ(ml_reading_end(ledger, &op, &reading), ML_OK);
    CHECK_EQ(figures_of(acting).unaccounted, 5 * UNIT);
    CHECK_EQ(ml_reading_settle(ledger, &op), ML_OK);
    CHECK_EQ(figures_of(acting).unaccounted, 0);
    ml_reading local = {.total = ROOM * UNIT, .free = ROOM * UNIT, .scope = ML_SCOPE_PROCESS};
    CHECK_EQ(ml_reading_local(ledger, ml_device_pool(open_pool_of(ledger, "sim:new"), 0), &local), ML_OK);
}

/* A device that turns out to draw from the chain, and a floor for pins. */
static void act_on_devices(ml_ledger *ledger) {
    ml_device *alone = open_pool_of(ledger, "sim:alone");
    ml_claim claim;
    CHECK_EQ(hold(alone, 4 * UNIT), ML_OK);
    CHECK_EQ(wait_claim(alone, 2 * UNIT, 0, &claim), ML_OK);
    CHECK_EQ(ml_device_move(alone, acting), ML_OK);
    CHECK_EQ(ml_claim_cancel(&claim), ML_OK);
    CHECK_EQ(ml_device_set_floor(acting, UNIT), ML_OK);
    uint64_t room;
    (void)ml_device_pin_room(acting, &room);
}

static char small[OS_PATH_BYTES + 8]; /* a segment with one slot, which the actor makes */

static ml_ledger *join_small(int *mode) {
    ml_ledger *ledger = NULL;
    ml_join_options options = {.path = small, .label = "small", .slots = 1};
    CHECK_EQ(ml_ledger_join(&options, &ledger), ML_OK);
    *mode = info_of(ledger).mode;
    return ledger;
}

static void act_on_a_full_table(void) {
    int mode;
    ml_ledger *first = join_small(&mode);
    CHECK_EQ(mode, ML_MODE_SHARED);
    ml_ledger *second = join_small(&mode);
    CHECK_EQ(mode, ML_MODE_UNREGISTERED);
    CHECK_EQ(ml_ledger_leave(second), ML_OK);
    CHECK_EQ(ml_ledger_leave(first), ML_OK);
}

static void act(void) {
    act_on_a_full_table();
    ml_ledger *ledger = join();
    act_on_pools(ledger);
    act_on_claims(ledger);
    act_on_the_line(ledger);
    act_with_others(ledger);
    act_on_readings(ledger);
    act_on_devices(ledger);
    CHECK_EQ(hold(acting, 40 * UNIT), ML_OK);
    ml_store_release(&ledger->seat.slot->state, ledger->seat.slot_word + 256); /* the slot is lost */
    CHECK_EQ(hold(acting, 39 * UNIT), ML_SLOW_LOST);
    CHECK_EQ(ml_ledger_recover(ledger, ML_SLOW_LOST), ML_OK);
    CHECK_EQ(hold(acting, 39 * UNIT), ML_OK);
    ml_account *part;
    ml_amounts two = {2 * UNIT, 0, 0};
    CHECK_EQ(ml_account_open(acting, "part", &part), ML_OK);
    CHECK_EQ(ml_account_publish(part, &two), ML_OK);
    CHECK_EQ(tick(ledger), ML_OK);
    forward_ns += 61 * SECOND; /* nobody has looked at a figure for a minute */
    CHECK_EQ(tick(ledger), ML_OK);
    CHECK_EQ(ml_ledger_leave(ledger), ML_OK);
}

/* ---- the others ------------------------------------------------------------------------------------------- */

static const char *armed_name;
static unsigned armed_pass;
static int armed_signal;

static void act_armed(void) {
    kill_points_arm(armed_name, armed_pass, armed_signal);
    act();
}

/* Where the actor came to say that readings are too old, anybody may look again. */
static void read_if_stale(ml_ledger *ledger) {
    ml_reading reading;
    for (unsigned p = 0; p < 2; p++)
        if (ml_reading_get(ledger, p, &reading) != ML_OK && reading.reason == ML_REASON_STALE)
            (void)read_source(ledger, p, ROOM * UNIT, ROOM * UNIT);
}

/* Whoever is stopped where: what fits is granted, on the chain. */
static void others_go_on(ml_ledger *ledger, ml_device *chain) {
    ml_claim claim;
    ml_figures f;
    CHECK_EQ(hold(chain, UNIT), ML_OK);
    read_if_stale(ledger);
    CHECK_EQ(ml_device_figures(chain, &f), ML_OK);
    CHECK(f.free <= f.total && f.total == ROOM * UNIT);
    uint64_t free_bytes = free_of(chain);
    CHECK_EQ(free_bytes, f.free);
    CHECK_EQ(wait_claim(chain, free_bytes, 3 * SECOND, &claim), ML_OK);
    CHECK_EQ(claim.checked, 1);
    CHECK_EQ(ml_claim_cancel(&claim), ML_OK);
    (void)sweep(ledger);
    /* Nor does a sweeper that is stopped keep what the dead one had. */
    CHECK(ml_load_acquire(&ml_view_slot(ledger->view, 0)->state) != ML_SLOT_WORD(2, ML_SLOT_LIVE));
    CHECK_EQ(tick(ledger), ML_OK);
    read_if_stale(ledger);
    free_bytes = free_of(chain);
    CHECK_EQ(wait_claim(chain, free_bytes, 3 * SECOND, &claim), ML_OK);
    CHECK_EQ(ml_claim_cancel(&claim), ML_OK);
}

/* Who is stopped may have left its own records half written; nothing else. */
static void only_the_stopped_are_unfinished(ml_ledger *ledger) {
    ml_finding found[64];
    unsigned count = ml_ledger_check(ledger, found, 64);
    CHECK(count <= 64);
    for (unsigned i = 0; i < count && i < 64; i++)
        if (!CHECK(found[i].slot != ledger->seat.me && found[i].slot != ML_SLOTS_MAX))
            printf("  invariant %u, pool %u, slot %u: %s\n", found[i].invariant, found[i].pool, found[i].slot,
                   found[i].text);
}

/* The one slot of the small segment: taken by who is stopped, given to others when its owner is dead. */
static void small_segment_goes_on(bool owner_may_live) {
    int mode;
    ml_ledger *ledger = join_small(&mode);
    CHECK(mode == ML_MODE_SHARED || (owner_may_live && mode == ML_MODE_UNREGISTERED));
    CHECK_EQ(findings_of(ledger) && !owner_may_live, 0);
    CHECK_EQ(ml_ledger_leave(ledger), ML_OK);
}

/* Everybody else is dead: after the sweep only the own unit is there. */
static void nothing_is_left(ml_ledger *ledger, ml_device *chain) {
    ml_claim claim;
    (void)sweep(ledger);
    for (unsigned i = 0; i < 4; i++) { /* what the driver had for the dead is out of the window */
        forward_ns += SECOND;
        read_both(ledger, 1);
    }
    CHECK_EQ(findings_of(ledger), 0);
    for (unsigned p = 0; p < ledger->view->pool_count; p++)
        for (unsigned s = 0; s < ledger->view->slot_count; s++) {
            const ml_record *record = ml_view_record(ledger->view, p, s);
            bool own = s == ledger->seat.me && (p == chain->level[0]->index || p == chain->level[1]->index);
            CHECK_EQ(ml_load_relaxed(&record->word), own ? ML_WORD(1, 0, 0) : 0);
            CHECK_EQ(ml_load_relaxed(&record->waiting) | ml_load_relaxed(&record->headroom), 0);
        }
    ml_figures f = figures_of(chain);
    CHECK_EQ(f.held, UNIT);
    CHECK_EQ(f.claimed + f.unaccounted, 0);
    CHECK_EQ(f.free, (ROOM - 1) * UNIT);
    CHECK_EQ(wait_claim(chain, (ROOM - 1) * UNIT, 0, &claim), ML_OK);
    CHECK_EQ(ml_claim_cancel(&claim), ML_OK);
    ml_device *fresh = open_pool_of(ledger, "sim:new");
    CHECK(fresh->level[0]->view->shared);
    CHECK_EQ(hold(fresh, 3 * UNIT), ML_OK);
    CHECK_EQ(committed(fresh, 0), 3);
    ml_member members[16];
    CHECK_EQ(ml_ledger_members(ledger, members, 16), 1);
    CHECK_EQ(findings_of(ledger), 0);
}

static pid_t set_the_scene(void) {
    new_segment();
    snprintf(small, sizeof small, "%s-small", path);
    unlink(path);
    unlink(small);
    CHECK_EQ(run_child(fill_the_table), 0);
    CHECK_EQ(run_child(be_the_dead), -SIGKILL);
    pid_t hinderer = child(be_the_hinderer);
    CHECK_EQ(outcome(hinderer), -SIGSTOP);
    return hinderer;
}

/* In a process of its own: handles keep their mappings, and every fork would copy those of all runs before. */
static void run_armed(void) {
    pid_t hinderer = set_the_scene(), actor = child(act_armed);
    CHECK_EQ(outcome(actor), -armed_signal);
    ml_ledger *ledger = join();
    ml_device *chain = open_levels(ledger);
    if (armed_pass % 2 == 0 && armed_signal == SIGKILL) /* sweep first, or claim first */
        (void)sweep(ledger);
    others_go_on(ledger, chain);
    only_the_stopped_are_unfinished(ledger);
    small_segment_goes_on(armed_signal == SIGSTOP);
    if (armed_signal == SIGSTOP) end(actor);
    small_segment_goes_on(false);
    end(hinderer);
    nothing_is_left(ledger, chain);
    ml_ledger_leave(ledger);
    unlink(path);
    unlink(small);
}

/* ---- the points ------------------------------------------------------------------------------------------- */

static char points[POINTS_MAX][40];
static unsigned point_count;

static void add_points_of(const char *file) {
    static const char mark[] = "ML_KILL_POINT(\"";
    char line[512];
    FILE *source = fopen(file, "r");
    while (source && fgets(line, sizeof line, source))
        for (char *at = line; (at = strstr(at, mark)) != NULL && point_count < POINTS_MAX;) {
            at += sizeof mark - 1;
            snprintf(points[point_count], sizeof points[0], "%.*s", (int)strcspn(at, "\""), at);
            unsigned known = 0;
            while (strcmp(points[known], points[point_count]) != 0) known++;
            point_count += known == point_count;
        }
    if (source) fclose(source);
}

/* As grep does, from this file's place in the tree. */
static void find_points(void) {
    char folder_name[512], file[800];
    snprintf(folder_name, sizeof folder_name, "%s", __FILE__);
    char *slash = strrchr(folder_name, '/');
    snprintf(slash ? slash : folder_name, 64, "%s../../csrc/core", slash ? "/" : "");
    DIR *listing = opendir(folder_name);
    for (struct dirent *entry; listing && (entry = readdir(listing)) != NULL;)
        if (strstr(entry->d_name, ".c")) {
            snprintf(file, sizeof file, "%s/%s", folder_name, entry->d_name);
            add_points_of(file);
        }
    if (listing) closedir(listing);
    CHECK(point_count > 40);
}

static bool every_pass;
static unsigned all_runs;

static void test_point(const char *name, unsigned passes) {
    unsigned failures[2] = {0, 0}, runs = 0;
    for (unsigned pass = 1; pass <= passes; pass++) {
        if (!every_pass && pass > 2 && pass != passes && pass != passes / 2) continue;
        for (int stop = 0; stop < 2; stop++) {
            unsigned before = check_failures;
            armed_name = name;
            armed_pass = pass;
            armed_signal = stop ? SIGSTOP : SIGKILL;
            CHECK_WATCHDOG(CHECK_TEST_SECONDS);
            CHECK_EQ(run_child(run_armed), 0);
            runs++;
            all_runs++;
            failures[stop] += check_failures != before;
            if (check_failures != before)
                printf("  at %s, pass %u of %u, %s\n", name, pass, passes, stop ? "stopped" : "killed");
        }
    }
    printf("%-24s %4u passes %4u runs  killed %s  stopped %s\n", name, passes, runs, failures[0] ? "FAILED" : "ok",
           failures[1] ? "FAILED" : "ok");
}

static const char *only;

static void test_every_point(void) {
    find_points();
    pid_t hinderer = set_the_scene();
    kill_points_clear(); /* the actor's passes alone */
    CHECK_EQ(run_child(act), 0);
    unsigned passes[POINTS_MAX], missing = 0;
    for (unsigned i = 0; i < point_count; i++) {
        passes[i] = kill_points_count(points[i]);
        if (passes[i] == 0) printf("%-24s is never reached\n", points[i]);
        missing += passes[i] == 0;
    }
    CHECK_EQ(missing, 0);
    end(hinderer);
    for (unsigned i = 0; i < point_count && only && strcmp(only, "list") == 0; i++)
        printf("%-28s %u\n", points[i], passes[i]);
    for (unsigned i = 0; i < point_count; i++)
        if (passes[i] && (!only || strstr(points[i], only))) test_point(points[i], passes[i]);
    printf("%u points, %u runs\n", point_count, all_runs);
}

int main(int argc, char **argv) {
    static const check_test tests[] = {TEST(test_every_point)};
    every_pass = argc > 1 && strcmp(argv[1], "all") == 0;
    only = argc > 1 && !every_pass ? argv[1] : NULL;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (!begin()) return 2;
    int result = check_run(tests, 1, NULL);
    unlink(small);
    finish();
    return result;
}
