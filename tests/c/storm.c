/* Claims of real processes under SIGKILL and SIGSTOP, watched by an auditor that believes nothing of what the segment
 * says: every process writes {sequence, amount} into a page of the auditor's own, after a grant and before it gives
 * back; slots that are equal in two passes held their amounts all along, so their sum is a true lower bound of what
 * was granted at one moment. What a killed process had is cleared after waitpid, by the thread that audits.
 *
 *     storm [SECONDS [SEED [PHASE]]]    a phase: duel, kill, stop, stuck; prints its seed */
#define _GNU_SOURCE
#include "check.h"

#include "core/core.h"
#include "include/memledger.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNIT UINT64_C(4096)
#define WORKERS 8
#define WINDOW_NS UINT64_C(500000000)

typedef struct ghost {
    ml_u64 held; /* owner: sequence << 32 | units; auditor: cleared after waitpid */
    ml_u64 grants, phantoms, failures;
    ml_u64 spare[4];
} ghost;

static struct shared {
    ghost of[WORKERS];
    ml_u64 exact, most; /* sum of what is granted, exact where nobody is killed; its maximum */
    ml_u64 quit;
    ml_u64 last_free, last_status;
} *shared;

static char path[64];
static uint64_t seed, random_state;
static uint64_t room;    /* units that fit */
static unsigned largest; /* units of one claim */
static bool with_delays; /* in this process, between the steps of the protocol */
static bool exact_sum;

static uint64_t random_bits(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* Between any two stores: the worse the timing the better. */
void ml_kill_point(const char *name);
void ml_kill_point(const char *name) {
    (void)name;
    if (!with_delays) return;
    uint64_t bits = random_bits();
    if (bits % 1024 == 0)
        usleep((unsigned)(bits >> 10) % 200);
    else if (bits % 16 == 0)
        for (unsigned i = (unsigned)(bits >> 10) % 2000; i > 0; i--) ml_pause();
}

/* ---- a worker --------------------------------------------------------------------------------------------- */

static ghost *mine;

static void set_ghost(int64_t units) {
    if (exact_sum) {
        uint64_t now = ml_fetch_add_seq_cst(&shared->exact, (uint64_t)units) + (uint64_t)units, most;
        do most = ml_load_relaxed(&shared->most);
        while ((int64_t)now > (int64_t)most && !ml_cas_seq_cst(&shared->most, most, now));
    }
    uint64_t old = ml_load_relaxed(&mine->held);
    uint64_t amount = (old & 0xffffffff) + (uint64_t)units;
    ml_exchange_seq_cst(&mine->held, ((old >> 32) + 1) << 32 | (amount & 0xffffffff));
}

static void must(bool good) {
    if (!good) ml_fetch_add_seq_cst(&mine->failures, 1);
}

static int claim(ml_device *card, uint64_t units, ml_claim *out) {
    uint64_t free_bytes;
    if (random_bits() % 64 == 0)
        return ml_claim_wait(ml_device_account(card), units * UNIT, 0, 0, random_bits() % 3000000, out, &free_bytes);
    int status = ml_claim_try(ml_device_account(card), units * UNIT, 0, 0, out);
    if (status == ML_WAITING) /* the hot form gives way to whoever stands in line, stopped or not */
        status = ml_claim_wait(ml_device_account(card), units * UNIT, 0, 0, 0, out, &free_bytes);
    return status;
}

/* One claim, perhaps a second on top; lands in part, is settled or cancelled. The ghost goes before the bytes do. */
static void claim_and_release(ml_device *card) {
    ml_claim first, second;
    unsigned one = 1 + (unsigned)(random_bits() % largest), two = 1 + (unsigned)(random_bits() % largest);
    int status = claim(card, one, &first);
    must(status >= ML_OK && status < ML_SLOW_LOCK);
    if (status != ML_OK) return;
    ml_fetch_add_seq_cst(&mine->grants, 1);
    set_ghost(one);
    bool both = random_bits() % 4 == 0 && claim(card, two, &second) == ML_OK;
    if (both) set_ghost(two);
    if (with_delays && random_bits() % 4 == 0) usleep((unsigned)(random_bits() % 100));
    ml_amounts landed = {one * UNIT - random_bits() % UNIT, 0, 0}, none = {0, 0, 0};
    if (random_bits() % 2) must(ml_claim_publish(&first, &landed) == ML_OK);
    if (both) {
        set_ghost(-(int64_t)two);
        must(ml_claim_cancel(&second) == ML_OK);
    }
    set_ghost(-(int64_t)one);
    must(ml_claim_settle(&first, &none) == ML_OK);
    /* Nothing is claimed or held any more: what the word says now is nobody's. */
    if (ML_WORD_COMMITTED(ml_load_seq_cst(&card->level[0]->own->word)) != 0) ml_fetch_add_seq_cst(&mine->phantoms, 1);
}

static ml_ledger *join_card(ml_device **card) {
    ml_ledger *ledger;
    ml_join_options options = {.path = path, .label = "storm", .slots = 64};
    ml_pool_spec spec = {.key = "sim:card", .kind = ML_KIND_SIM};
    if (ml_ledger_join(&options, &ledger) != ML_OK || ml_device_open(ledger, &spec, 1, card) != ML_OK) return NULL;
    return ml_device_set_limit(*card, room * UNIT) == ML_OK ? ledger : NULL;
}

static void work(unsigned index) {
    ml_device *card;
    mine = &shared->of[index];
    random_state ^= (uint64_t)getpid() * UINT64_C(0x9e3779b97f4a7c15);
    ml_ledger *ledger = join_card(&card);
    must(ledger && card->level[0]->view->shared);
    while (ledger && !ml_load_relaxed(&shared->quit)) claim_and_release(card);
    if (ledger) must(ml_ledger_leave(ledger) == ML_OK);
}

/* The same bytes again and again, without a wait. */
static void fight(unsigned index) {
    ml_device *card;
    ml_claim all;
    mine = &shared->of[index];
    ml_ledger *ledger = join_card(&card);
    while (ledger && !ml_load_relaxed(&shared->quit)) {
        if (ml_claim_try(ml_device_account(card), room * UNIT, 0, 0, &all) != ML_OK) continue;
        set_ghost((int64_t)room);
        ml_store_relaxed(&mine->grants, ml_load_relaxed(&mine->grants) + 1);
        set_ghost(-(int64_t)room);
        must(ml_claim_cancel(&all) == ML_OK);
    }
    must(ledger && ml_ledger_leave(ledger) == ML_OK);
}

/* Everybody else is stopped or dead: what fits is granted. */
static void be_the_last(unsigned index) {
    ml_device *card;
    ml_claim all;
    uint64_t bytes = 0, unused;
    (void)index;
    ml_ledger *ledger = join_card(&card);
    int status = ledger ? ml_device_free(card, &bytes) : ML_ERR_CLOSED;
    if (status == ML_OK)
        status = ml_claim_wait(ml_device_account(card), bytes, 0, 0, UINT64_C(5000000000), &all, &unused);
    ml_store_relaxed(&shared->last_free, bytes / UNIT);
    ml_store_relaxed(&shared->last_status, (uint64_t)(int64_t)status);
    if (ledger) ml_ledger_leave(ledger);
}

/* ---- the auditor ------------------------------------------------------------------------------------------- */

static pid_t workers[WORKERS];
static bool stopped[WORKERS];
static uint64_t audits, over_grants, largest_sum, kills, stops;

static pid_t start(void (*body)(unsigned), unsigned index) {
    uint64_t state = random_bits();
    pid_t pid = fork();
    if (pid != 0) return pid;
    random_state = state | 1;
    CHECK_WATCHDOG(3600);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid();
    body(index);
    _exit(0);
}

static void audit(void) {
    uint64_t seen[WORKERS], sum = 0;
    for (unsigned i = 0; i < WORKERS; i++) seen[i] = ml_load_seq_cst(&shared->of[i].held);
    for (unsigned i = 0; i < WORKERS; i++)
        if (ml_load_seq_cst(&shared->of[i].held) == seen[i]) sum += seen[i] & 0xffffffff;
    audits++;
    over_grants += sum > room;
    largest_sum = sum > largest_sum ? sum : largest_sum;
}

static void bury(unsigned i) {
    int status;
    kill(workers[i], SIGKILL);
    CHECK_EQ(waitpid(workers[i], &status, 0), workers[i]);
    uint64_t old = ml_load_relaxed(&shared->of[i].held);
    ml_exchange_seq_cst(&shared->of[i].held, ((old >> 32) + 1) << 32);
    stopped[i] = false;
    kills++;
}

static uint64_t total_of(size_t offset) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < WORKERS; i++) sum += ml_load_relaxed((ml_u64 *)(void *)((char *)&shared->of[i] + offset));
    return sum;
}
#define TOTAL(field) total_of(offsetof(ghost, field))

typedef void disturb(unsigned count);

static void kill_one(unsigned count) {
    unsigned i = (unsigned)(random_bits() % count);
    if (stopped[i]) return;
    bury(i);
    workers[i] = start(work, i);
}

static void stop_or_go_on(unsigned count) {
    unsigned i = (unsigned)(random_bits() % count), now = 0;
    for (unsigned j = 0; j < count; j++) now += stopped[j];
    if (!stopped[i] && now >= 3) return;
    kill(workers[i], stopped[i] ? SIGCONT : SIGSTOP);
    stopped[i] = !stopped[i];
    stops += stopped[i];
}

/* Audits for that long, disturbing every 0.3 to 2 ms; in every window somebody is granted something. */
static void watch(double seconds, disturb *how, unsigned count) {
    uint64_t start_ns = os_now_ns(), end_ns = start_ns + (uint64_t)(seconds * 1e9), next_ns = start_ns;
    uint64_t window_ns = start_ns + WINDOW_NS, grants = TOTAL(grants);
    for (uint64_t now_ns = start_ns; now_ns < end_ns; now_ns = os_now_ns()) {
        for (int i = 0; i < 50; i++) audit();
        usleep(30); /* the workers need the processors */
        if (how && now_ns >= next_ns) {
            how(count);
            next_ns = now_ns + 300000 + random_bits() % 1700000;
        }
        if (now_ns >= window_ns) {
            uint64_t more = TOTAL(grants);
            CHECK(more > grants);
            grants = more;
            window_ns = now_ns + WINDOW_NS;
        }
    }
}

static void begin_phase(uint64_t units, unsigned most, bool delays, bool exact, void (*body)(unsigned),
                        unsigned count) {
    unlink(path);
    memset((void *)shared, 0, sizeof *shared);
    room = units;
    largest = most;
    with_delays = delays;
    exact_sum = exact;
    audits = over_grants = largest_sum = kills = stops = 0;
    for (unsigned i = 0; i < count; i++) {
        workers[i] = start(body, i);
        stopped[i] = false;
    }
}

/* Nothing is left: of those that quit by themselves at once, of the dead after a sweep. */
static void check_leaks(void) {
    ml_device *card;
    ml_finding found[4];
    with_delays = false;
    ml_ledger *ledger = join_card(&card);
    ml_sweep sweep;
    uint64_t freed, bytes = 0;
    CHECK_EQ(ml_sweep_begin(ledger, &sweep), ML_OK);
    CHECK_EQ(ml_sweep_commit(ledger, &sweep, &freed), ML_OK);
    for (unsigned s = 0; s < ledger->view->slot_count; s++)
        CHECK_EQ(ml_load_relaxed(&ml_view_record(ledger->view, 0, s)->word), 0);
    unsigned count = ml_ledger_check(ledger, found, 4);
    for (unsigned i = 0; i < count && i < 4; i++)
        printf("  invariant %u, slot %u: %s\n", found[i].invariant, found[i].slot, found[i].text);
    CHECK_EQ(count, 0);
    CHECK_EQ(ml_device_free(card, &bytes), ML_OK);
    CHECK_EQ(bytes, room * UNIT);
    ml_ledger_leave(ledger);
}

static void end_phase(const char *name, unsigned count) {
    ml_store_relaxed(&shared->quit, 1);
    for (unsigned i = 0; i < count; i++) {
        int status = 1;
        if (stopped[i]) kill(workers[i], SIGCONT);
        stopped[i] = false;
        CHECK_EQ(waitpid(workers[i], &status, 0), workers[i]);
        CHECK_EQ(status, 0);
    }
    check_leaks();
    CHECK_EQ(over_grants, 0);
    CHECK(largest_sum <= room);
    CHECK_EQ(TOTAL(phantoms), 0);
    CHECK_EQ(TOTAL(failures), 0);
    if (exact_sum) {
        CHECK(ml_load_relaxed(&shared->most) <= room);
        CHECK_EQ(ml_load_relaxed(&shared->exact), 0);
    }
    printf("%-6s %9llu grants %9llu audits %6llu kills %5llu stops  most %llu of %llu  over-grants %llu\n", name,
           (unsigned long long)TOTAL(grants), (unsigned long long)audits, (unsigned long long)kills,
           (unsigned long long)stops, (unsigned long long)largest_sum, (unsigned long long)room,
           (unsigned long long)over_grants);
    fflush(stdout);
}

/* ---- phases ------------------------------------------------------------------------------------------------ */

/* Two that want the same bytes, as fast as they can: delays would hide a store that comes too late. */
static void duel(double seconds) {
    begin_phase(1, 1, false, true, fight, 2);
    usleep((unsigned)(seconds * 1e6));
    end_phase("duel", 2);
    CHECK(TOTAL(grants) > 1000);
}

static void storm_of_kills(double seconds) {
    begin_phase(9, 4, true, false, work, WORKERS);
    watch(seconds, kill_one, WORKERS);
    for (unsigned i = 0; i < WORKERS; i++) /* the last ones, all at once */
        if (i % 2) {
            bury(i);
            workers[i] = start(work, i);
        }
    end_phase("kill", WORKERS);
}

static void storm_of_stops(double seconds) {
    begin_phase(9, 4, true, true, work, WORKERS);
    watch(seconds, stop_or_go_on, WORKERS);
    end_phase("stop", WORKERS);
}

/* What they hold was granted to them; what they only wanted hinders nobody. */
static void last_one_gets_what_fits(void) {
    pid_t last = start(be_the_last, 0);
    int status = 1;
    CHECK_EQ(waitpid(last, &status, 0), last);
    CHECK_EQ((int64_t)ml_load_relaxed(&shared->last_status), ML_OK);
    uint64_t granted = 0;
    for (unsigned i = 0; i < WORKERS; i++) granted += ml_load_relaxed(&shared->of[i].held) & 0xffffffff;
    CHECK(ml_load_relaxed(&shared->last_free) + granted <= room);
}

/* Three stopped in the middle for ever while the rest is killed; then the rest is stopped as well. Workers hold at
 * most two claims of 2, so with room for nine claims somebody always can be granted one. */
static void stuck(double seconds) {
    unsigned rounds = seconds < 1 ? 2 : (unsigned)(seconds * 2);
    begin_phase(18, 2, true, false, work, WORKERS);
    for (unsigned round = 0; round < rounds; round++) {
        watch(seconds / rounds / 2, kill_one, WORKERS);
        for (unsigned i = 0; i < 3; i++) {
            kill(workers[i], SIGSTOP);
            stopped[i] = true;
            stops++;
        }
        uint64_t grants = TOTAL(grants);
        watch(seconds / rounds / 2, kill_one, WORKERS);
        CHECK(TOTAL(grants) > grants);
        for (unsigned i = 3; i < WORKERS; i++) {
            kill(workers[i], SIGSTOP);
            stopped[i] = true;
        }
        for (unsigned i = 0; i < WORKERS; i++) { /* until each has really stopped */
            siginfo_t info;
            CHECK_EQ(waitid(P_PID, (id_t)workers[i], &info, WSTOPPED | WNOWAIT), 0);
        }
        last_one_gets_what_fits();
        for (unsigned i = 0; i < WORKERS; i++) {
            bury(i);
            workers[i] = start(work, i);
        }
    }
    end_phase("stuck", WORKERS);
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 8;
    seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 0;
    const char *only = argc > 3 ? argv[3] : NULL;
    static const struct {
        const char *name;
        void (*run)(double);
        double share;
    } phases[] = {
        {"duel", duel, 0.15}, {"kill", storm_of_kills, 0.4}, {"stop", storm_of_stops, 0.2}, {"stuck", stuck, 0.25}};
    char folder[] = "/dev/shm/ml-storm-XXXXXX";
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || !mkdtemp(folder)) return 2;
    snprintf(path, sizeof path, "%s/segment", folder);
    if (!seed) seed = os_random_u64() >> 16 | 1;
    random_state = seed;
    printf("seed %llu\n", (unsigned long long)seed);
    CHECK_WATCHDOG((unsigned)(seconds * 3) + 60);
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++)
        if (!only || strcmp(only, phases[i].name) == 0) phases[i].run(only ? seconds : seconds * phases[i].share);
    unlink(path);
    rmdir(folder);
    printf("%s\n", check_failures ? "FAILED" : "ok: 0 over-grants, nothing left");
    return check_failures != 0;
}
