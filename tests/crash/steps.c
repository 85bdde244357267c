/* One process is ended, stopped for good, or stopped while others act and then let go on, after each single instruction
 * of an operation. Others look each time: every invariant of check(), a coherent snapshot, a newcomer that joins, what
 * fits is granted within a few tries, and the sums are exact.
 *
 *     steps [--operation NAME] [--fate killed|stopped|"let go on"] [--samples N] [--seed S] [--all]
 *
 * Every instruction of the operations that are marked so, N sampled ones of the others; --all: every one of all. Prints
 * a line for each operation; the exit status is 1 after a violation, 77 where processes may not be traced.
 *
 * A run to instruction k does not take k single steps: the trace of the first run says which instruction before it was
 * executed for the first time where, so a breakpoint leads there at full speed, and the rest is stepped. The place is
 * compared with the trace. Operations that read the clock or files take some instructions more or less each time; then
 * the run stands some instructions away, which is counted. In the marked operations it is stepped from the start
 * instead.
 *
 * Linux, x86-64 and aarch64. On aarch64 build with -march=armv8.1-a: a pair of exclusive load and store never succeeds
 * between two steps. Nobody has run it there. */
#define _GNU_SOURCE
#include "core_help.h"

#include <elf.h>
#include <malloc.h>
#include <sched.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>

#define SLOTS 8
#define ROOM 100u    /* units, on both levels */
#define RESIDENT 16u /* held all the time by the process that watches */
#define TRIES_MAX 8
#define GIVE_UP 10 /* violations of one operation */

#if defined(__x86_64__)
#define TRAP() __asm__ volatile("int3")
#define TRAP_LENGTH 1
#define TRAP_WORD(old) (((old) & ~0xffL) | 0xcc)
#define PC(registers) ((registers).rip)
#elif defined(__aarch64__)
#define TRAP() __asm__ volatile("brk #0")
#define TRAP_LENGTH 0 /* the program counter stays */
#define TRAP_WORD(old) (((old) & ~0xffffffffL) | 0xd4200000L)
#define PC(registers) ((registers).pc)
#endif

static const char *const keys[] = {"sim:inner", "sim:outer"};

/* ---- members ---------------------------------------------------------------------------------------------- */

static ml_ledger *watching, *acting; /* of this process; of the one that is traced */
static ml_device *watched, *chain;
static ml_claim claim;
static ml_ask ask;

static int hold_units(ml_device *device, uint64_t units) { /* so that a mixture of two publishes shows */
    ml_amounts amounts = {units * UNIT, units * UNIT / 2, units * UNIT / 4};
    return ml_account_publish(ml_device_account(device), &amounts);
}

static void read_pools(ml_ledger *ledger, uint64_t used_units) {
    for (unsigned p = 0; p < 2; p++) (void)read_source(ledger, p, ROOM * UNIT, (ROOM - used_units) * UNIT);
}

static uint64_t taken_in(const ml_view *view, unsigned pool) {
    uint64_t sum = 0;
    for (unsigned s = 0; s < view->slot_count; s++)
        sum += ML_WORD_COMMITTED(ml_load_seq_cst(&ml_view_record(view, pool, s)->word));
    return sum;
}

/* All that is free; the number of tries. A try is a hot claim, and after one that fails a round of housekeeping. */
static unsigned claim_all(ml_ledger *ledger, ml_device *device, ml_claim *out) {
    ml_sweep dead;
    uint64_t freed;
    for (unsigned tries = 1; tries <= TRIES_MAX; tries++) {
        int status = try_claim(device, free_of(device), out);
        if (status == ML_OK) return tries;
        if (status >= ML_SLOW_LOCK) (void)ml_ledger_recover(ledger, status);
        if (ml_sweep_begin(ledger, &dead) == ML_OK) (void)ml_sweep_commit(ledger, &dead, &freed);
        (void)tick(ledger);
    }
    return TRIES_MAX + 1;
}

/* ---- operations: prepare, then what is stepped through ------------------------------------------------------ */

static void be_nobody(void) {
    acting = NULL;
}

static void be_a_member(void) {
    acting = join_with(SLOTS);
    chain = open_chain(acting, keys, 2);
    CHECK_EQ(hold_units(chain, 8), ML_OK);
}

static void publish(void) {
    (void)hold_units(chain, 20);
    (void)hold_units(chain, 8);
}

static void claim_and_settle(void) {
    ml_amounts amounts = {20 * UNIT, 10 * UNIT, 5 * UNIT};
    if (try_claim(chain, 12 * UNIT, &claim) == ML_OK) (void)ml_claim_settle(&claim, &amounts);
}

static void be_refused(void) {
    (void)try_claim(chain, 80 * UNIT, &claim); /* would fit if nobody else were there */
}

static void resize_and_cancel(void) {
    if (try_claim(chain, 4 * UNIT, &claim) != ML_OK) return;
    (void)ml_claim_resize(&claim, 12 * UNIT);
    (void)ml_claim_resize(&claim, 2 * UNIT);
    (void)ml_claim_cancel(&claim);
}

static void join_and_open(void) {
    acting = join_with(SLOTS);
    chain = open_chain(acting, keys, 2);
}

static void leave(void) {
    (void)ml_ledger_leave(acting);
}

static void sweep_the_dead(void) {
    ml_sweep dead;
    uint64_t freed;
    if (ml_sweep_begin(acting, &dead) == ML_OK) (void)ml_sweep_commit(acting, &dead, &freed);
}

static void ask_and_withdraw(void) {
    (void)ml_asking_begin(acting);
    if (ml_ask_send(acting, ml_device_pool(chain, 0), 0, UNIT, &ask) == ML_OK) (void)ml_ask_withdraw(acting, &ask);
    ml_asking_end(acting);
}

static void answer(void) {
    ml_request request;
    if (ml_request_next(acting, &request) != ML_OK) return;
    (void)hold_units(chain, 4);
    (void)ml_request_answer(acting, &request, ML_ANSWER_DONE, 4 * UNIT);
}

/* The watching member asks the one that is about to answer. */
static void be_asked(void) {
    unsigned slot = 1;
    (void)ml_asking_begin(watching);
    CHECK_EQ(ml_ask_send(watching, ml_device_pool(watched, 0), slot, 4 * UNIT, &ask), ML_OK);
}

static void read_the_source(void) {
    read_pools(acting, RESIDENT + 8);
}

static void make_a_pool(void) {
    (void)open_pool_of(acting, "sim:new");
}

static void open_a_window(void) {
    uint64_t waited_ns;
    (void)ml_window_open(chain, SECOND, &waited_ns);
    ml_window_close(chain);
}

static void keep_house(void) {
    (void)tick(acting);
}

static void die_holding(void) {
    be_a_member();
    (void)hold_units(chain, 4);
    CHECK_EQ(try_claim(chain, 5 * UNIT, &claim), ML_OK);
    kill(getpid(), check_failures ? SIGTERM : SIGKILL);
}

/* A dead member, and readings in which it is still counted. */
static void leave_a_corpse(void) {
    CHECK_EQ(run_child(die_holding), -SIGKILL);
    read_pools(watching, RESIDENT + 4);
}

/* Where the member is ended: what it counts for afterwards is 0. Where it is stopped: from `least` to `most` units, at
 * any instruction. `before`: what others count for until they are swept. */
typedef struct operation {
    const char *name;
    void (*set_scene)(void), (*prepare)(void), (*perform)(void), (*at_begin)(void);
    unsigned least, most, dead;
    bool complete; /* every instruction, always */
} operation;

static const operation operations[] = {
    {"publish", NULL, be_a_member, publish, NULL, 8, 20, 0, true},
    {"claim, settle", NULL, be_a_member, claim_and_settle, NULL, 8, 20, 0, true},
    {"refused claim", NULL, be_a_member, be_refused, NULL, 8, 8, 0, false},
    {"resize, cancel", NULL, be_a_member, resize_and_cancel, NULL, 8, 20, 0, false},
    {"join", NULL, be_nobody, join_and_open, NULL, 0, 0, 0, false},
    {"leave", NULL, be_a_member, leave, NULL, 0, 8, 0, false},
    {"sweep", leave_a_corpse, be_a_member, sweep_the_dead, NULL, 8, 8, 4 + 5 + 4, false},
    {"ask", NULL, be_a_member, ask_and_withdraw, NULL, 8, 8, 0, false},
    {"answer", NULL, be_a_member, answer, be_asked, 4, 8, 0, false},
    {"reading", NULL, be_a_member, read_the_source, NULL, 8, 8, 0, false},
    {"new pool", NULL, be_a_member, make_a_pool, NULL, 8, 8, 0, false},
    {"window", NULL, be_a_member, open_a_window, NULL, 8, 8, 0, false},
    {"housekeeping", NULL, be_a_member, keep_house, NULL, 8, 8, 0, false},
};

static const operation *now;

/* ---- what others see ---------------------------------------------------------------------------------------- */

typedef enum fate { KILLED, STOPPED, GONE_ON } fate;
static fate its_fate;

static struct board {
    ml_u64 most_tries;
} *board;

static void granted_within(unsigned tries) {
    CHECK(tries <= TRIES_MAX);
    if (tries > ml_load_relaxed(&board->most_tries)) ml_store_relaxed(&board->most_tries, tries);
}

/* A coherent cut in which every row is of one publish. */
static void look_at_snapshots(ml_ledger *ledger) {
    static ml_snapshot snapshot;
    for (unsigned p = 0; p < 2; p++) {
        CHECK_EQ(ml_pool_snapshot(ledger, p, &snapshot), ML_OK);
        CHECK(snapshot.coherent);
        CHECK(snapshot.figures.free <= snapshot.figures.total);
        for (unsigned r = 0; r < snapshot.row_count; r++) {
            CHECK_EQ(snapshot.rows[r].releasable, snapshot.rows[r].held / 2);
            CHECK_EQ(snapshot.rows[r].pinned, snapshot.rows[r].held / 4);
        }
    }
}

static void in_range(uint64_t free_bytes, unsigned least, unsigned most) {
    uint64_t taken = ROOM - free_bytes / UNIT;
    if (!CHECK(taken >= RESIDENT + least && taken <= RESIDENT + most))
        printf("  %llu units are taken, not %u to %u\n", (unsigned long long)taken, RESIDENT + least, RESIDENT + most);
}

/* Findings may be about the one who is stopped, and about nobody else. */
static void check_all(ml_ledger *ledger) {
    ml_finding found[8];
    unsigned count = ml_ledger_check(ledger, found, 8);
    for (unsigned i = 0; i < count && i < 8; i++) {
        bool about_others = found[i].slot == ledger->seat.me || found[i].slot == 0 || found[i].slot == ML_SLOTS_MAX;
        if (!CHECK(its_fate == STOPPED && !about_others))
            printf("  invariant %u, pool %u, slot %u: %s\n", found[i].invariant, found[i].pool, found[i].slot,
                   found[i].text);
    }
}

/* Where there are readings at all: the driver has let go of what the dead had, and the window says so soon. */
static void read_until_settled(ml_ledger *ledger) {
    ml_reading reading;
    if (ml_reading_get(ledger, 0, &reading) != ML_OK && ml_reading_get(ledger, 1, &reading) != ML_OK) return;
    for (unsigned i = 0; i < 4; i++) {
        forward_ns += SECOND;
        read_pools(ledger, RESIDENT + (its_fate == STOPPED ? now->least : 0));
    }
}

/* A newcomer, in a process of its own. */
static void look(void) {
    ml_ledger *ledger = join_with(SLOTS);
    ml_device *device = open_chain(ledger, keys, 2);
    ml_claim all;
    CHECK_EQ(info_of(ledger).mode, ML_MODE_SHARED);
    CHECK(device->level[0]->view->shared && device->level[1]->view->shared);
    look_at_snapshots(ledger);
    in_range(free_of(device), now->least, now->most + now->dead);
    granted_within(claim_all(ledger, device, &all));
    CHECK_EQ(ml_claim_cancel(&all), ML_OK);
    (void)sweep(ledger);
    read_until_settled(ledger);
    in_range(free_of(device), its_fate == STOPPED ? now->least : 0, its_fate == STOPPED ? now->most : 0);
    granted_within(claim_all(ledger, device, &all));
    CHECK_EQ(ml_claim_cancel(&all), ML_OK);
    check_all(ledger);
    ml_member members[SLOTS];
    unsigned count = ml_ledger_members(ledger, members, SLOTS);
    CHECK(its_fate == STOPPED ? count >= 2 && count <= 3 : count == 2);
    look_at_snapshots(ledger);
    CHECK_EQ(ml_ledger_leave(ledger), ML_OK);
}

static void forget_what_was_read(ml_device *device) { /* the segment's counters are put back each time */
    for (unsigned l = 0; l < device->level_count; l++) {
        ml_store_relaxed(&device->tag[l], 0);
        device->level[l]->totals_valid = false;
    }
}

/* The member that was there before. */
static void look_as_resident(void) {
    ml_claim all;
    forget_what_was_read(watched);
    granted_within(claim_all(watching, watched, &all));
    CHECK_EQ(ml_claim_cancel(&all), ML_OK);
    if (its_fate != STOPPED) CHECK_EQ(taken_in(watching->view, 0), taken_in(watching->view, 1));
}

/* ---- the traced process ------------------------------------------------------------------------------------- */

static __attribute__((noinline)) void operation_ends(void) {
    TRAP();
}

static void act(void) {
    alarm(0); /* its parent's death ends it */
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(77);
    now->prepare();
    if (check_failures) _exit(76);
    TRAP();
    now->perform();
    operation_ends();
    _exit(0);
}

static pid_t traced;

static uint64_t pc_of(pid_t pid, const uint64_t *set) {
    struct user_regs_struct registers;
    struct iovec io = {&registers, sizeof registers};
    if (ptrace(PTRACE_GETREGSET, pid, (void *)(uintptr_t)NT_PRSTATUS, &io) != 0) return 0;
    if (set) {
        PC(registers) = *set;
        (void)ptrace(PTRACE_SETREGSET, pid, (void *)(uintptr_t)NT_PRSTATUS, &io);
    }
    return PC(registers);
}

/* Until it traps: true. */
static bool go(int request) {
    int status;
    if (ptrace(request, traced, NULL, NULL) != 0) return false;
    return waitpid(traced, &status, 0) == traced && WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP;
}

/* A new process that stands before the first instruction. */
static bool start(void) {
    int status;
    traced = child(act);
    if (waitpid(traced, &status, 0) != traced || !WIFSTOPPED(status)) {
        if (WIFEXITED(status) && WEXITSTATUS(status) == 77) exit(77);
        printf("  does not come to the operation: status %#x\n", (unsigned)status);
        return false;
    }
    (void)ptrace(PTRACE_SETOPTIONS, traced, NULL, (void *)(uintptr_t)PTRACE_O_EXITKILL);
#if TRAP_LENGTH == 0
    uint64_t after = pc_of(traced, NULL) + 4;
    (void)pc_of(traced, &after);
#endif
    if (now->at_begin) now->at_begin();
    return true;
}

/* ---- the trace, and runs to one instruction ----------------------------------------------------------------- */

static struct {
    uint64_t *pc;     /* after k steps */
    uint32_t *anchor; /* largest number of steps up to k after which a place was reached for the first time */
    unsigned count, capacity;
} trace;

#define SEEN_MAX (1u << 18)
static uint64_t seen[SEEN_MAX];

static bool is_new(uint64_t pc) {
    unsigned i = (unsigned)(pc * UINT64_C(0x9e3779b97f4a7c15) >> 46) % SEEN_MAX;
    while (seen[i] && seen[i] != pc) i = (i + 1) % SEEN_MAX;
    bool fresh = seen[i] == 0;
    seen[i] = pc;
    return fresh;
}

static void trace_begin(uint64_t pc) {
    memset(seen, 0, sizeof seen);
    (void)is_new(pc);
    trace.count = 0;
}

static void trace_add(uint64_t pc) {
    if (trace.count + 2 >= trace.capacity) {
        trace.capacity = trace.capacity ? trace.capacity * 2 : 1u << 14;
        trace.pc = realloc(trace.pc, trace.capacity * sizeof *trace.pc);
        trace.anchor = realloc(trace.anchor, trace.capacity * sizeof *trace.anchor);
    }
    if (trace.count == 0) trace.anchor[0] = 0;
    unsigned k = ++trace.count;
    trace.pc[k] = pc;
    trace.anchor[k] = is_new(pc) ? k : trace.anchor[k - 1];
}

/* At full speed to where `pc` is reached for the first time. */
static bool run_to_place(uint64_t pc) {
    void *at = (void *)(uintptr_t)pc;
    errno = 0;
    long old = ptrace(PTRACE_PEEKTEXT, traced, at, NULL);
    if (errno || ptrace(PTRACE_POKETEXT, traced, at, (void *)TRAP_WORD(old)) != 0) return false;
    if (!go(PTRACE_CONT) || pc_of(traced, NULL) != pc + TRAP_LENGTH) return false;
    (void)pc_of(traced, &pc);
    return ptrace(PTRACE_POKETEXT, traced, at, (void *)old) == 0;
}

static bool run_to(unsigned k, bool quickly) {
    unsigned done = quickly ? trace.anchor[k] : 0;
    if (done && !run_to_place(trace.pc[done])) return false;
    /* Reading the clock takes some steps more or less: a run may be over before. */
    for (; done < k && pc_of(traced, NULL) != (uint64_t)(uintptr_t)operation_ends; done++)
        if (!go(PTRACE_SINGLESTEP)) return false;
    return true;
}

/* ---- experiments -------------------------------------------------------------------------------------------- */

static unsigned char *scene, *moment;
static unsigned counts[3], violations, drifts;
static uint64_t random_state;

static void save(unsigned char *into) {
    memcpy(into, watching->view->segment.base, watching->view->segment.size_bytes);
}
static void put_back(const unsigned char *from) {
    memcpy(watching->view->segment.base, from, watching->view->segment.size_bytes);
}

static const char *const words[] = {"killed", "stopped", "let go on"};

static bool judge(fate what, unsigned k) {
    unsigned before = check_failures;
    its_fate = what;
    if (what != GONE_ON) {
        CHECK_EQ(run_child(look), 0);
        look_as_resident();
    } else { /* nobody is inside a call, and whatever was granted was granted once */
        check_all(watching);
        for (unsigned p = 0; p < 2; p++) CHECK(taken_in(watching->view, p) <= ROOM);
        look_at_snapshots(watching);
    }
    counts[what]++;
    if (check_failures == before) return true;
    violations++;
    printf("VIOLATION %s, %s after instruction %u of %u\n", now->name, words[what], k, trace.count);
    return violations < GIVE_UP;
}

static bool stand_at(unsigned k) {
    put_back(scene);
    if (!start()) return false;
    bool there = run_to(k, true), exact = there && pc_of(traced, NULL) == trace.pc[k];
    drifts += !exact;
    if (exact || (there && !now->complete)) return true;
    end(traced);
    put_back(scene);
    return start() && run_to(k, false);
}

static bool kill_at(unsigned k) {
    bool there = stand_at(k);
    end(traced);
    return CHECK(there) && judge(KILLED, k);
}

/* Takes all that is free, and keeps it. */
static void take_all(void) {
    ml_ledger *ledger = join_with(SLOTS);
    ml_device *device = open_chain(ledger, keys, 2);
    ml_claim all;
    (void)sweep(ledger);
    read_until_settled(ledger);
    granted_within(claim_all(ledger, device, &all));
    kill(getpid(), check_failures ? SIGTERM : SIGSTOP);
}

static bool go_on_at(unsigned k) {
    bool there = stand_at(k);
    its_fate = STOPPED;
    pid_t taker = child(take_all);
    CHECK_EQ(outcome(taker), -SIGSTOP);
    there = CHECK(there) && CHECK(go(PTRACE_CONT));
    bool more = there && judge(GONE_ON, k);
    end(traced);
    end(taker);
    return more;
}

/* The one process that is stepped all the way: it is judged as stopped at each instruction that is wanted (NULL: none),
 * and what the others did is taken back before it goes on. */
static bool trace_and_stop(const bool *wanted) {
    unsigned known = trace.count;
    put_back(scene);
    if (!CHECK(start())) return false;
    bool more = true;
    trace_begin(pc_of(traced, NULL));
    while (more && go(PTRACE_SINGLESTEP)) {
        uint64_t pc = pc_of(traced, NULL);
        if (pc == (uint64_t)(uintptr_t)operation_ends) break;
        trace_add(pc);
        if (!wanted || trace.count > known || !wanted[trace.count]) continue;
        save(moment);
        more = judge(STOPPED, trace.count);
        put_back(moment);
    }
    end(traced);
    return more && CHECK(trace.count > 10);
}

static uint64_t random_bits(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* One of each `samples` equal parts. */
static void choose(bool *wanted, unsigned count, unsigned samples) {
    memset(wanted, 0, count + 1);
    for (unsigned i = 0; i < samples; i++) {
        unsigned from = 1 + (unsigned)((uint64_t)count * i / samples);
        unsigned length = 1 + (unsigned)((uint64_t)count * (i + 1) / samples) - from;
        wanted[length ? from + random_bits() % length : from] = true;
    }
}

static void set_the_scene(void) {
    new_segment();
    watching = join_with(SLOTS);
    watched = open_chain(watching, keys, 2);
    for (unsigned l = 0; l < 2; l++) CHECK_EQ(ml_device_set_level_limit(watched, l, ROOM * UNIT), ML_OK);
    CHECK_EQ(hold_units(watched, RESIDENT), ML_OK);
    scene = realloc(scene, watching->view->segment.size_bytes);
    moment = realloc(moment, watching->view->segment.size_bytes);
    if (now->set_scene) now->set_scene();
    save(scene);
}

typedef bool experiment(unsigned k);

static bool at_each(experiment *one, const bool *wanted, unsigned count) {
    for (unsigned k = 1; k <= count && k <= trace.count; k++)
        if (wanted[k] && !one(k)) return false;
    return true;
}

static bool is_wanted(const char *only, fate what) {
    return !only || strcmp(words[what], only) == 0;
}

static void run_operation(unsigned samples, bool all, const char *fates) {
    memset(counts, 0, sizeof counts);
    violations = drifts = 0;
    ml_store_relaxed(&board->most_tries, 0);
    set_the_scene();
    bool more = trace_and_stop(NULL);
    unsigned count = trace.count;
    bool *wanted = calloc(count + 1, sizeof *wanted);
    choose(wanted, count, all || now->complete || samples > count ? count : samples);
    if (is_wanted(fates, STOPPED)) more = more && trace_and_stop(wanted);
    if (is_wanted(fates, KILLED)) more = more && at_each(kill_at, wanted, count);
    if (is_wanted(fates, GONE_ON)) more = more && at_each(go_on_at, wanted, count);
    free(wanted);
    ml_ledger_leave(watching);
    printf("%-16s %6u instructions %6u kills %6u stops %6u let go on  tries <= %llu  violations %u%s\n", now->name,
           count, counts[KILLED], counts[STOPPED], counts[GONE_ON],
           (unsigned long long)ml_load_relaxed(&board->most_tries), violations, more ? "" : ", given up");
    if (drifts) printf("  %u runs stood some instructions away from the trace\n", drifts);
    fflush(stdout);
}

/* A step wakes one process and puts the other to sleep; between processors that takes four times as long. */
static void stay_on_one_processor(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((unsigned)sched_getcpu(), &one);
    (void)sched_setaffinity(0, sizeof one, &one);
}

int main(int argc, char **argv) {
    const char *only = NULL, *fates = NULL;
    unsigned samples = 40, failures = 0;
    bool all = false;
    random_state = os_random_u64() >> 16 | 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--all") == 0) all = true;
        if (i + 1 < argc && strcmp(argv[i], "--operation") == 0) only = argv[i + 1];
        if (i + 1 < argc && strcmp(argv[i], "--fate") == 0) fates = argv[i + 1];
        if (i + 1 < argc && strcmp(argv[i], "--samples") == 0) samples = (unsigned)strtoul(argv[i + 1], NULL, 10);
        if (i + 1 < argc && strcmp(argv[i], "--seed") == 0) random_state = strtoull(argv[i + 1], NULL, 0) | 1;
    }
    printf("seed %llu\n", (unsigned long long)random_state);
    stay_on_one_processor();
    (void)mallopt(M_MMAP_THRESHOLD, 16384); /* else clearing a large block takes more steps than the operation */
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED || !begin()) return 2;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        now = &operations[i];
        if (only && !strstr(now->name, only)) continue;
        check_failures = 0;
        run_operation(samples, all, fates);
        failures += check_failures;
    }
    finish();
    printf("%s\n", failures ? "FAILED" : "ok: 0 violations");
    return failures != 0;
}
