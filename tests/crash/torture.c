/* Members that publish, claim, resize, ask, answer, open windows and pools, lead, follow, fork, sweep and leave at
 * random, while some are killed and some stopped. At quiet points everybody stands still outside of calls; an auditor,
 * a process of its own that believes only what each worker wrote down about itself, then compares every sum and walks
 * all invariants. Memory, descriptors and the folder of the segment stay bounded.
 *
 *     torture [SECONDS [SEED]]    prints its seed */
#define _GNU_SOURCE
#include "check.h"

#include "core/core.h"
#include "include/memledger.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNIT UINT64_C(4096)
#define SECOND UINT64_C(1000000000)
#define WORKERS 6
#define ROOM 60u /* units; all growth is claimed, so no more are ever taken */
#define CLAIMS 3
#define LIFE 1000u      /* steps of one member */
#define LIVES 4u        /* members that a process is, then another process comes */
#define QUIET_S 60      /* until everybody stands still, on a machine that others use too */
#define GROWTH_KIB 1024 /* of a worker after its first life, of the controller after the first quiet point */

typedef struct book { /* what a worker says of itself; it is alone in writing, but for the controller after its death */
    ml_u64 parked;    /* the quiet point at which it stands */
    ml_u64 slot, generation, held, open;
    ml_u64 child; /* of its own */
    ml_u64 sure;  /* sequence << 32 | units that it has: raised after a grant, cleared before bytes go back */
    ml_u64 steps, forks, leaves, credited, grants, failures;
} book;

static struct shared {
    book of[WORKERS];
    ml_u64 quiet; /* number of the quiet point that is called for; 0: go on */
    ml_u64 quit;
} *shared;

static char folder[] = "/dev/shm/ml-torture-XXXXXX";
static char path[64];
static uint64_t random_state;
static bool with_delays;

static uint64_t random_bits(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state >> 3;
}

/* Between any two stores, and above all inside claims: the worse the timing the better. */
void ml_kill_point(const char *name);
void ml_kill_point(const char *name) {
    if (!with_delays) return;
    uint64_t bits = random_bits();
    if (bits % (strncmp(name, "claim.", 6) == 0 ? 16 : 512) == 0)
        usleep((unsigned)(bits >> 10) % 300);
    else if (bits % 16 == 0)
        os_yield();
}

/* ---- what a process uses ----------------------------------------------------------------------------------- */

static uint64_t resident_kib(void) {
    unsigned long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%lu %lu", &size, &resident) != 2) resident = 0;
    if (file) fclose(file);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE) / 1024;
}

static unsigned files_in(const char *name, uint64_t *bytes) {
    unsigned count = 0;
    struct stat status;
    DIR *listing = opendir(name);
    for (struct dirent *entry; listing && (entry = readdir(listing)) != NULL;) {
        if (entry->d_name[0] == '.') continue;
        count++;
        if (bytes && fstatat(dirfd(listing), entry->d_name, &status, 0) == 0)
            *bytes += (uint64_t)status.st_blocks * 512;
    }
    if (listing) closedir(listing);
    return count;
}

static unsigned descriptors(void) {
    return files_in("/proc/self/fd", NULL);
}

/* ---- a worker ---------------------------------------------------------------------------------------------- */

static book *mine;
static ml_ledger *ledger;
static ml_device *chain, *read_only;
static ml_claim claims[CLAIMS]; /* open ones have an account */
static uint64_t held;           /* units of the chain's account */

static void must(bool good, const char *what) {
    if (good) return;
    ml_fetch_add_seq_cst(&mine->failures, 1);
    printf("worker %d: %s\n", (int)(mine - shared->of), what);
    fflush(stdout);
}
#define MUST(condition) must((condition), #condition)

static bool enter(void) {
    static const char *const keys[] = {"sim:inner", "sim:outer"};
    ml_pool_spec specs[2] = {{.key = keys[0], .kind = ML_KIND_SIM}, {.key = keys[1], .kind = ML_KIND_SIM}};
    ml_pool_spec other = {.key = "sim:read", .kind = ML_KIND_SIM};
    ml_join_options options = {.path = path, .label = "torture", .role = ML_ROLE_HOST, .slots = 32};
    if (ml_ledger_join(&options, &ledger) != ML_OK) return false;
    if (ml_device_open(ledger, specs, 2, &chain) != ML_OK || ml_device_open(ledger, &other, 1, &read_only) != ML_OK)
        return false;
    for (unsigned l = 0; l < 2; l++)
        if (ml_device_set_level_limit(chain, l, ROOM * UNIT) != ML_OK) return false;
    return ledger->seat.slot != NULL && chain->level[0]->view->shared && chain->level[1]->view->shared;
}

static int store_held(ml_claim *through, bool settle, uint64_t units) {
    ml_amounts amounts = {units * UNIT, units * UNIT / 2, units * UNIT / 4};
    int status = !through ? ml_account_publish(ml_device_account(chain), &amounts)
                 : settle ? ml_claim_settle(through, &amounts)
                          : ml_claim_publish(through, &amounts);
    if (status == ML_OK) held = units;
    return status;
}

static void shrink(void) {
    MUST(store_held(NULL, false, held ? random_bits() % held : 0) == ML_OK);
}

static void claim_some(void) {
    ml_claim *claim = &claims[random_bits() % CLAIMS];
    uint64_t bytes = (1 + random_bits() % 20) * UNIT, unused;
    if (claim->account) return;
    int status = random_bits() % 8
                     ? ml_claim_try(ml_device_account(chain), bytes, 0, 0, claim)
                     : ml_claim_wait(ml_device_account(chain), bytes, 0, 0, random_bits() % 2000000, claim, &unused);
    MUST(status >= ML_OK && status < ML_SLOW_LOCK);
    if (status != ML_OK) claim->account = NULL;
    if (status == ML_OK) ml_fetch_add_seq_cst(&mine->grants, 1);
}

/* The claim lands, is changed, or is dropped. */
static void go_on_with_claim(void) {
    ml_claim *claim = &claims[random_bits() % CLAIMS];
    uint64_t open = claim->open_bytes / UNIT;
    bool ends = true;
    if (!claim->account) return;
    switch (random_bits() % 4) {
        case 0: MUST(ml_claim_cancel(claim) == ML_OK); break;
        case 1: MUST(store_held(claim, true, held + (open ? random_bits() % (open + 1) : 0)) == ML_OK); break;
        case 2:
            MUST(store_held(claim, false, held + (open ? random_bits() % (open + 1) : 0)) == ML_OK);
            ends = false;
            break;
        default: {
            int status = ml_claim_resize(claim, (1 + random_bits() % 8) * UNIT);
            MUST(status == ML_OK || status == ML_REFUSED || status == ML_BUSY || status == ML_WAITING);
            ends = false;
        }
    }
    if (ends) claim->account = NULL;
}

static void ask_somebody(void) {
    ml_victim victims[32];
    ml_ask ask;
    int outcome = 0;
    uint64_t bytes = 0;
    unsigned pool = ml_device_pool(chain, 0), count = ml_ask_victims(ledger, pool, victims, 32);
    if (count == 0) return;
    MUST(ml_asking_begin(ledger) > 0);
    if (ml_ask_send(ledger, pool, victims[random_bits() % count].slot, UNIT, &ask) == ML_OK) {
        int status = ML_NOT_READY;
        for (unsigned i = 0; i < 20 && status == ML_NOT_READY; i++) {
            usleep(50);
            status = ml_ask_poll(ledger, &ask, &outcome, &bytes);
        }
        if (status == ML_OK) ml_fetch_add_seq_cst(&mine->credited, 1);
        if (status == ML_NOT_READY) (void)ml_ask_withdraw(ledger, &ask);
    }
    ml_asking_end(ledger);
}

static void answer_all(void) {
    ml_request request;
    for (unsigned i = 0; i < 8 && ml_request_next(ledger, &request) == ML_OK; i++) {
        uint64_t before = held;
        shrink();
        int status = ml_request_answer(ledger, &request, ML_ANSWER_DONE, (before - held) * UNIT);
        MUST(status == ML_OK || status == ML_EXPIRED);
    }
}

static void lead_and_follow(void) {
    ml_prompt prompt;
    unsigned flags;
    if (random_bits() % 2) {
        MUST(ml_group_follow(ledger, ledger->seat.me, ledger->seat.generation) == ML_OK);
        MUST(ml_prompt_begin(ledger, "job") == ML_OK);
        (void)ml_group_interrupt(ledger, 0);
        MUST(ml_prompt_end(ledger) == ML_OK);
    } else {
        unsigned slot = (unsigned)(random_bits() % 32);
        uint64_t word = ml_load_acquire(&ml_view_slot(ledger->view, slot)->state);
        MUST(ml_group_follow(ledger, slot, ML_SLOT_GENERATION(word)) == ML_OK);
        (void)ml_group_interrupt(ledger, ml_job_key("job"));
        (void)ml_prompt_get(ledger, &prompt);
    }
    (void)ml_free_request(ledger, ML_FREE_CACHE, random_bits() % 2);
    (void)ml_free_epoch(ledger, &flags);
    (void)ml_pending(ledger);
}

static void open_and_read(void) {
    char key[32];
    ml_device *device;
    ml_reading_op op;
    ml_reading reading = {.total = 100 * UNIT, .free = random_bits() % 100 * UNIT, .scope = ML_SCOPE_DEVICE};
    snprintf(key, sizeof key, "sim:extra%u", (unsigned)(random_bits() % 12));
    ml_pool_spec spec = {.key = key, .kind = ML_KIND_SIM};
    MUST(ml_device_open(ledger, &spec, 1, &device) == ML_OK);
    MUST(ml_device_set_floor(device, random_bits() % 4 * UNIT) == ML_OK);
    unsigned pool = ml_device_pool(read_only, 0);
    MUST(ml_reading_begin(ledger, pool, NULL, &op) == ML_OK);
    (void)ml_reading_end(ledger, &op, &reading);
    (void)ml_reading_settle(ledger, &op);
}

static void keep_house(void) {
    ml_tick tick;
    ml_sweep dead;
    uint64_t freed, waited_ns;
    MUST(ml_ledger_tick(ledger, &tick) == ML_OK);
    if (ml_sweep_begin(ledger, &dead) == ML_OK) MUST(ml_sweep_commit(ledger, &dead, &freed) == ML_OK);
    if (random_bits() % 4 == 0 && ml_window_open(chain, 1000000, &waited_ns) == ML_OK) ml_window_close(chain);
}

/* The child is another member by its first call, and leaves, ends without leaving, or is killed. */
static void fork_a_member(void) {
    pid_t worker = getpid(), pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        ml_store_release(&mine->child, (uint64_t)getpid());
        if (getppid() != worker) _exit(0);
        random_state = (random_state ^ (uint64_t)getpid() << 20) | 1;
        ml_claim claim;
        ml_amounts two = {2 * UNIT, UNIT, UNIT / 2};
        uint64_t unused;
        (void)ml_ledger_recover(ledger, ML_SLOW_FORK);
        bool granted = ml_claim_wait(ml_device_account(chain), 2 * UNIT, 0, 0, 0, &claim, &unused) == ML_OK;
        if (granted) MUST(ml_claim_settle(&claim, &two) == ML_OK);
        /* Nothing of the parent's is the child's. */
        const ml_local_pool *pool = chain->level[0];
        MUST(pool->me == ML_NO_SLOT || ML_WORD_COMMITTED(ml_load_relaxed(&pool->own->word)) == (granted ? 2 : 0));
        if (random_bits() % 3 == 0) MUST(ml_ledger_leave(ledger) == ML_OK);
        if (random_bits() % 3 == 0) kill(getpid(), SIGKILL);
        _exit(0);
    }
    int status;
    MUST(pid > 0 && waitpid(pid, &status, 0) == pid);
    ml_store_release(&mine->child, 0);
    ml_fetch_add_seq_cst(&mine->forks, 1);
}

static void stand_still(uint64_t quiet) {
    uint64_t open = 0;
    for (unsigned c = 0; c < CLAIMS; c++) open += claims[c].account ? claims[c].open_bytes : 0;
    ml_store_release(&mine->slot, ledger->seat.me);
    ml_store_release(&mine->generation, ledger->seat.generation);
    ml_store_release(&mine->held, held * UNIT);
    ml_store_release(&mine->open, open);
    ml_store_release(&mine->parked, quiet);
    while (ml_load_acquire(&shared->quiet) == quiet) usleep(200);
}

static void be_sure_of(uint64_t units) {
    uint64_t sequence = (ml_load_relaxed(&mine->sure) >> 32) + 1;
    ml_exchange_seq_cst(&mine->sure, sequence << 32 | units);
}

static uint64_t units_now(void) {
    uint64_t units = held;
    for (unsigned c = 0; c < CLAIMS; c++) units += claims[c].account ? claims[c].open_bytes / UNIT : 0;
    return units;
}

static void step(void) {
    typedef void action(void);
    /* More is claimed than given back: the card is nearly always full, and most claims meet another. */
    static action *const often[] = {claim_some,      claim_some,       claim_some,  claim_some, claim_some,
                                    claim_some,      go_on_with_claim, shrink,      answer_all, keep_house,
                                    lead_and_follow, open_and_read,    ask_somebody};
    uint64_t bytes;
    action *chosen = random_bits() % 200 ? often[random_bits() % (sizeof often / sizeof *often)] : fork_a_member;
    if (chosen != claim_some) be_sure_of(0);
    chosen();
    be_sure_of(units_now());
    int status = ml_device_free(chain, &bytes);
    MUST(status != ML_OK || bytes <= ROOM * UNIT);
    ml_fetch_add_seq_cst(&mine->steps, 1);
}

/* As one member after the other: joins, does what chance wants, leaves, and nothing of the handle stays. */
static void live(void) {
    uint64_t kib = 0;
    unsigned files = 0;
    for (unsigned life = 0; life < LIVES && !ml_load_acquire(&shared->quit); life++) {
        memset(claims, 0, sizeof claims);
        held = 0;
        MUST(enter());
        for (unsigned i = 0; i < LIFE && !ml_load_acquire(&shared->quit); i++) {
            uint64_t quiet = ml_load_acquire(&shared->quiet);
            if (quiet) stand_still(quiet);
            step();
        }
        be_sure_of(0);
        MUST(ml_ledger_leave(ledger) == ML_OK);
        ml_ledger_free(ledger);
        ml_fetch_add_seq_cst(&mine->leaves, 1);
        if (life == 0) {
            kib = resident_kib();
            files = descriptors();
        }
    }
    if (kib) MUST(resident_kib() < kib + GROWTH_KIB && descriptors() == files);
}

/* ---- the auditor ------------------------------------------------------------------------------------------- */

/* What the segment says of a member that stands still. */
static void compare(ml_ledger *own, const book *b, uint64_t *sum) {
    unsigned slot = (unsigned)ml_load_acquire(&b->slot);
    uint64_t bytes = ml_load_acquire(&b->held) + ml_load_acquire(&b->open);
    CHECK_EQ(ml_load_acquire(&ml_view_slot(own->view, slot)->state),
             ML_SLOT_WORD(ml_load_acquire(&b->generation), ML_SLOT_LIVE));
    for (unsigned l = 0; l < 2; l++) {
        const ml_record *record = ml_view_record(own->view, chain->level[l]->index, slot);
        ml_figure f = {0};
        uint64_t version;
        CHECK(ml_record_read(record, &f, &version));
        CHECK_EQ(f.held, ml_load_acquire(&b->held));
        CHECK_EQ(f.claims, ml_load_acquire(&b->open));
        CHECK_EQ(ML_WORD_COMMITTED(ml_load_acquire(&record->word)), bytes / UNIT);
    }
    *sum += bytes;
}

static void audit(void) {
    ml_finding found[4];
    ml_sweep dead;
    uint64_t freed, sum = 0, bytes = 0;
    ml_claim all;
    with_delays = false;
    CHECK(enter());
    CHECK_EQ(ml_sweep_begin(ledger, &dead), ML_OK);
    CHECK_EQ(ml_sweep_commit(ledger, &dead, &freed), ML_OK);
    unsigned count = ml_ledger_check(ledger, found, 4), live_slots = 0;
    for (unsigned i = 0; i < count && i < 4; i++)
        printf("  invariant %u, pool %u, slot %u: %s\n", found[i].invariant, found[i].pool, found[i].slot,
               found[i].text);
    CHECK_EQ(count, 0);
    for (unsigned i = 0; i < WORKERS; i++)
        if (ml_load_acquire(&shared->of[i].parked)) compare(ledger, &shared->of[i], &sum);
    for (unsigned s = 0; s < ledger->view->slot_count; s++) live_slots += ml_slot_in_use(ledger->view, s);
    CHECK_EQ(live_slots, WORKERS + 1);
    CHECK(sum <= ROOM * UNIT);
    CHECK_EQ(ml_device_free(chain, &bytes), ML_OK);
    CHECK_EQ(bytes, ROOM * UNIT - sum);
    if (bytes) {
        CHECK_EQ(ml_claim_wait(ml_device_account(chain), bytes, 0, 0, 5 * SECOND, &all, &freed), ML_OK);
        CHECK_EQ(ml_claim_cancel(&all), ML_OK);
    }
    CHECK_EQ(ml_ledger_leave(ledger), ML_OK);
}

/* ---- the controller ---------------------------------------------------------------------------------------- */

static pid_t workers[WORKERS];
static bool stopped[WORKERS];
static unsigned quiet_points, kills, stops;
static uint64_t audits;

static pid_t start(void (*body)(void), book *of) {
    uint64_t state = random_bits();
    fflush(stdout);
    pid_t pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid();
    random_state = state | 1;
    mine = of;
    check_failures = 0;
    with_delays = true;
    body();
    fflush(stdout);
    _exit(check_failures != 0);
}

/* Its child goes with it: nobody else knows of it. */
static void bury_child_of(unsigned i) {
    int status;
    pid_t orphan = (pid_t)ml_load_acquire(&shared->of[i].child);
    if (orphan > 0) {
        kill(orphan, SIGKILL);
        (void)waitpid(orphan, &status, 0);
    }
    ml_store_release(&shared->of[i].child, 0);
}

/* Words that are the same in two passes were so at one moment between them: their sum was granted at once then. */
static void audit_grants(void) {
    uint64_t words[WORKERS], sum = 0;
    for (unsigned i = 0; i < WORKERS; i++) words[i] = ml_load_seq_cst(&shared->of[i].sure);
    for (unsigned i = 0; i < WORKERS; i++)
        if (ml_load_seq_cst(&shared->of[i].sure) == words[i]) sum += words[i] & 0xffffffff;
    if (!CHECK(sum <= ROOM)) printf("  %llu units are granted at once\n", (unsigned long long)sum);
    audits++;
}

static void begin_life(unsigned i) {
    ml_store_release(&shared->of[i].parked, 0);
    stopped[i] = false;
    workers[i] = start(live, &shared->of[i]);
}

static void kill_one(unsigned i) {
    int status;
    kill(workers[i], SIGKILL);
    CHECK_EQ(waitpid(workers[i], &status, 0), workers[i]);
    bury_child_of(i);
    uint64_t sequence = (ml_load_relaxed(&shared->of[i].sure) >> 32) + 1;
    ml_exchange_seq_cst(&shared->of[i].sure, sequence << 32);
    kills++;
    begin_life(i);
}

static void stop_or_go_on(unsigned i) {
    unsigned count = 0;
    for (unsigned j = 0; j < WORKERS; j++) count += stopped[j];
    if (!stopped[i] && count >= WORKERS / 2) return;
    kill(workers[i], stopped[i] ? SIGCONT : SIGSTOP);
    stopped[i] = !stopped[i];
    stops += stopped[i];
}

/* Those that have left by themselves make way for others; so do orphans. */
static void replace_the_gone(void) {
    int status;
    for (unsigned i = 0; i < WORKERS; i++) {
        if (waitpid(workers[i], &status, WNOHANG) != workers[i]) continue;
        CHECK_EQ(status, 0);
        if (!ml_load_acquire(&shared->quit)) begin_life(i);
    }
}

static bool all_stand_still(uint64_t quiet) {
    for (unsigned i = 0; i < WORKERS; i++)
        if (ml_load_acquire(&shared->of[i].parked) != quiet) return false;
    return true;
}

static void be_quiet(void) {
    int status = 1;
    uint64_t quiet = ++quiet_points, end_ns = os_now_ns() + QUIET_S * SECOND, bytes = 0;
    ml_store_release(&shared->quiet, quiet);
    for (unsigned i = 0; i < WORKERS; i++)
        if (stopped[i]) stop_or_go_on(i);
    while (!all_stand_still(quiet) && os_now_ns() < end_ns) {
        replace_the_gone();
        usleep(500);
    }
    if (!CHECK(all_stand_still(quiet))) return;
    pid_t auditor = start(audit, &shared->of[0]);
    CHECK_EQ(waitpid(auditor, &status, 0), auditor);
    CHECK_EQ(status, 0);
    CHECK_EQ(files_in(folder, &bytes), 1);
    CHECK(bytes <= ml_view_size());
    for (unsigned i = 0; i < WORKERS; i++) ml_store_release(&shared->of[i].parked, 0);
    ml_store_release(&shared->quiet, 0);
}

static uint64_t total_of(size_t offset) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < WORKERS; i++)
        sum += ml_load_relaxed((const ml_u64 *)(const void *)((const char *)&shared->of[i] + offset));
    return sum;
}
#define TOTAL(field) ((unsigned long long)total_of(offsetof(book, field)))

/* For up to 5 ms. */
static void watch(void) {
    for (unsigned n = (unsigned)(random_bits() % 100); n > 0 && check_failures == 0; n--) {
        for (unsigned a = 0; a < 20; a++) audit_grants();
        usleep(50);
    }
}

static void torture(double seconds) {
    uint64_t end_ns = os_now_ns() + (uint64_t)(seconds * 1e9), kib = 0;
    unsigned files = 0;
    for (unsigned i = 0; i < WORKERS; i++) begin_life(i);
    for (bool first = true; (os_now_ns() < end_ns || first) && check_failures == 0; first = false) {
        for (unsigned n = (unsigned)(random_bits() % 60); n > 0; n--) {
            unsigned i = (unsigned)(random_bits() % WORKERS);
            if (random_bits() % 8 == 0)
                kill_one(i);
            else
                stop_or_go_on(i);
            replace_the_gone();
            watch();
        }
        be_quiet();
        if (first) {
            kib = resident_kib();
            files = descriptors();
        }
        CHECK_EQ(TOTAL(failures), 0);
    }
    CHECK(resident_kib() < kib + GROWTH_KIB);
    CHECK_EQ(descriptors(), files);
}

static void end_all(void) {
    int status;
    ml_store_release(&shared->quit, 1);
    for (unsigned i = 0; i < WORKERS; i++) {
        if (stopped[i]) stop_or_go_on(i);
        if (check_failures) kill(workers[i], SIGKILL);
        (void)waitpid(workers[i], &status, 0);
        if (!check_failures) CHECK_EQ(status, 0);
        bury_child_of(i);
    }
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 20;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : os_random_u64() >> 16;
    random_state = seed | 1;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || !mkdtemp(folder)) return 2;
    snprintf(path, sizeof path, "%s/segment", folder);
    printf("seed %llu\n", (unsigned long long)seed);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    CHECK_WATCHDOG((unsigned)(seconds * 2) + 4 * QUIET_S);
    torture(seconds);
    end_all();
    unlink(path);
    rmdir(folder);
    printf(
        "%llu steps, %llu grants, %llu credits, %u kills, %u stops, %llu forks, %llu leaves, %u quiet, %llu audits\n",
        TOTAL(steps), TOTAL(grants), TOTAL(credited), kills, stops, TOTAL(forks), TOTAL(leaves), quiet_points,
        (unsigned long long)audits);
    printf("%s\n", check_failures ? "FAILED" : "ok: every sum exact, 0 findings");
    return check_failures != 0;
}
