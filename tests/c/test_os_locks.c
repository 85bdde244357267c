/* Tokens, probes, forks and wake-ups on POSIX. Everything about locks runs twice: with locks of open file
 * descriptions, and with flock, as on a kernel that has none. */
#define _GNU_SOURCE
#include "test_os_help.h"

static os_lock_kind kind;
static os_segment segment; /* of the running test */
static os_probe probe;

static void prepare(void) {
    os_error error = {0, ""};
    clear_board();
    empty_folder();
    segment = segment_or_exit();
    CHECK_EQ(os_lock_kind_of(path, NULL), kind);
    CHECK_EQ(os_probe_open(path, &segment, kind, &probe, &error), OS_OK);
}

static os_token take(unsigned index) {
    os_token token;
    os_error error = {0, ""};
    if (os_token_take(path, &segment, kind, index, &token, &error) != OS_OK)
        printf("cannot take %u: %s %d\n", index, error.call, error.code);
    return token;
}

static pid_t raw_clone(void) {
    return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

/* For children that must outlive their parent; the alarm is theirs, so that a failed test leaves none for long. */
static void stay(void) {
    CHECK_WATCHDOG(CHECK_TEST_SECONDS);
    for (;;) pause();
}

/* qemu's user mode follows no advice about forks, so only children that run a fork hook let go of a token there. */
static bool emulated(const char *what) {
    bool yes = getenv("TEST_EMULATOR") != NULL;
    if (yes) printf("emulated, so not tested: %s\n", what);
    return yes;
}

/* ---- tokens ---------------------------------------------------------------------------------------------- */

static void note_child(pid_t pid) {
    ml_store_release(&shared->pid[ml_fetch_add_seq_cst(&shared->count, 1)], (uint64_t)pid);
}

/* A holder with children of every kind that outlive it. */
static void hold_with_children(void) {
    os_token token = take(7);
    (void)token;
    pid_t pid = fork();
    if (pid == 0) stay();
    note_child(pid);
    pid = raw_clone();
    if (pid == 0)
        for (;;) syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0);
    note_child(pid);
    pid = fork();
    if (pid == 0) {
        execl("/bin/sleep", "sleep", "100", (char *)NULL);
        _exit(127);
    }
    note_child(pid);
    pid = vfork();
    if (pid == 0) {
        execl("/bin/sleep", "sleep", "100", (char *)NULL);
        _exit(127);
    }
    note_child(pid);
    ml_store_release(&shared->ready, 1);
    stay();
}

static void test_no_kind_of_child_keeps_a_dead_owners_token(void) {
    if (emulated("children that keep no token")) return;
    prepare();
    pid_t holder = child(hold_with_children);
    CHECK(wait_value(&shared->ready, 1));
    CHECK_EQ(os_probe_held(&probe, 7), OS_YES);
    end(holder);
    CHECK_EQ(wait_answer(&probe, 7, OS_NO), OS_NO);
    for (int i = 0; i < 4; i++) {
        pid_t pid = (pid_t)ml_load_acquire(&shared->pid[i]);
        CHECK(pid > 1 && kill(pid, 0) == 0);
        end(pid);
    }
    os_probe_close(&probe);
}

static void test_token_outlasts_children_that_end(void) {
    if (emulated("a child's own mapping in a token's place")) return;
    prepare();
    os_token token = take(8);
    for (int i = 0; i < 3; i++) {
        fflush(stdout);
        pid_t pid = i == 2 ? raw_clone() : fork();
        if (pid == 0) {
            if (i == 1) { /* a child's fork hook drops it; by then the address may be the child's own memory */
                volatile char *own =
                    mmap(token.page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
                *own = 1;
                os_token_drop(&token);
                _exit(*own == 1 && token.page == NULL ? 0 : 1);
            }
            _exit(0);
        }
        CHECK_EQ(outcome(pid), 0);
        CHECK_EQ(os_probe_held(&probe, 8), OS_YES);
    }
    os_token_drop(&token);
    CHECK_EQ(os_probe_held(&probe, 8), OS_NO);
    os_probe_close(&probe);
}

static void hold_and_close_everything(void) {
    os_token token = take(9);
    for (int fd = 3; fd < 1024; fd++) close(fd);
    ml_store_release(&shared->ready, token.page != NULL);
    stay();
}

static void test_closing_all_descriptors_does_not_lose_the_token(void) {
    prepare();
    pid_t holder = child(hold_and_close_everything);
    CHECK(wait_value(&shared->ready, 1));
    CHECK_EQ(os_probe_held(&probe, 9), OS_YES);
    end(holder);
    CHECK_EQ(wait_answer(&probe, 9, OS_NO), OS_NO);
    os_probe_close(&probe);
}

static void *take_in_thread(void *context) {
    *(os_token *)context = take(10);
    return NULL;
}

static void test_token_outlasts_the_thread_that_took_it(void) {
    pthread_t thread;
    os_token token;
    prepare();
    CHECK_EQ(pthread_create(&thread, NULL, take_in_thread, &token), 0);
    pthread_join(thread, NULL);
    CHECK_EQ(os_probe_held(&probe, 10), OS_YES);
    os_token_drop(&token);
    CHECK_EQ(os_probe_held(&probe, 10), OS_NO);
    os_probe_close(&probe);
}

static void test_token_of_a_replaced_segment_is_absent(void) {
    os_token token;
    os_error error = {0, ""};
    prepare();
    CHECK_EQ(os_segment_unlink(path, &error), OS_OK);
    CHECK_EQ(os_token_take(path, &segment, kind, 1, &token, &error), OS_ABSENT);
    (void)segment_or_exit();
    CHECK_EQ(os_token_take(path, &segment, kind, 1, &token, &error), OS_ABSENT);
    CHECK(token.page == NULL);
    os_probe_close(&probe);
}

static void test_failed_token_map_gives_the_lock_back(void) {
    os_token token;
    os_error error = {0, ""};
    prepare();
    os_test_inject("token_map", ENOMEM, 1);
    CHECK_EQ(os_token_take(path, &segment, kind, 2, &token, &error), OS_FAILED);
    CHECK_EQ(error.code, ENOMEM);
    token = take(2);
    CHECK(token.page != NULL);
    os_token_drop(&token);
    os_probe_close(&probe);
}

static void test_take_tries_again_where_a_look_is_a_lock(void) {
    os_token token;
    os_error error = {0, ""};
    prepare();
    os_test_inject("lock", EWOULDBLOCK, 3);
    CHECK_EQ(os_token_take(path, &segment, kind, 3, &token, &error), kind == OS_LOCKS_FLOCK ? OS_OK : OS_BUSY);
    os_token_drop(&token);
    os_test_inject("lock", 0, 0);
    os_probe_close(&probe);
}

/* ---- probes ---------------------------------------------------------------------------------------------- */

static void share_and_stay(void) {
    os_probe own;
    os_error error = {0, ""};
    CHECK_EQ(os_probe_open(path, &segment, kind, &own, &error), OS_OK);
    CHECK_EQ(os_probe_share(&own, 30), OS_OK);
    ml_store_release(&shared->ready, 1);
    stay();
}

static void test_killed_sweeper_blocks_nobody(void) {
    os_token token;
    os_error error = {0, ""};
    prepare();
    token = take(30);
    os_token_drop(&token); /* somebody owned it once: flock's file exists */
    pid_t sweeper = child(share_and_stay);
    CHECK(wait_value(&shared->ready, 1));
    CHECK_EQ(os_token_take(path, &segment, kind, 30, &token, &error), OS_BUSY);
    CHECK_EQ(os_probe_share(&probe, 30), OS_OK);
    os_probe_release(&probe, 30);
    CHECK_EQ(os_probe_held(&probe, 30), OS_NO);
    end(sweeper);
    token = take(30);
    CHECK(token.page != NULL);
    os_token_drop(&token);
    os_probe_close(&probe);
}

static void test_only_a_definite_answer_is_yes_or_no(void) {
    static const int codes[] = {EIO, EPERM, ENOLCK, ESTALE, EINVAL, EBADF, EINTR};
    prepare();
    os_token token = take(31);
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        os_test_inject("lock", codes[i], 1);
        CHECK_EQ(os_probe_held(&probe, 31), OS_UNKNOWN);
    }
    os_test_inject("lock", 0, 0);
    CHECK_EQ(os_probe_held(&probe, 31), OS_YES);
    if (kind == OS_LOCKS_FLOCK) {
        char name[OS_PATH_BYTES + 16];
        os_test_inject("open", EACCES, 1);
        CHECK_EQ(os_probe_held(&probe, 31), OS_UNKNOWN);
        snprintf(name, sizeof name, "%s.lock031", path);
        CHECK_EQ(unlink(name), 0); /* a cleaner of temporary files; the owner lives */
        CHECK_EQ(os_probe_held(&probe, 31), OS_UNKNOWN);
        CHECK_EQ(os_probe_share(&probe, 31), OS_ABSENT);
    }
    os_token_drop(&token);
    os_probe_close(&probe);
}

static void test_one_probe_holds_several_locks(void) {
    prepare();
    for (unsigned i = 0; i < OS_PROBE_LOCKS_MAX; i++) CHECK_EQ(os_probe_exclude(&probe, 40 + i, 0), OS_OK);
    os_probe other;
    os_error error = {0, ""};
    CHECK_EQ(os_probe_open(path, &segment, kind, &other, &error), OS_OK);
    for (unsigned i = 0; i < OS_PROBE_LOCKS_MAX; i++) CHECK_EQ(os_probe_held(&other, 40 + i), OS_YES);
    os_probe_release(&probe, 41);
    CHECK_EQ(os_probe_held(&other, 41), OS_NO);
    CHECK_EQ(os_probe_held(&other, 42), OS_YES);
    os_probe_close(&probe);
    CHECK_EQ(os_probe_held(&other, 42), OS_NO);
    os_probe_close(&other);
}

static void count_under_the_table_lock(void) {
    os_probe own;
    os_error error = {0, ""};
    CHECK_EQ(os_probe_open(path, &segment, kind, &own, &error), OS_OK);
    for (int i = 0; i < 100; i++) {
        if (!CHECK_EQ(os_probe_exclude(&own, OS_LOCK_TABLE, os_now_ns() + PATIENCE_NS), OS_OK)) break;
        uint64_t seen = *(volatile uint64_t *)&shared->plain;
        os_yield();
        *(volatile uint64_t *)&shared->plain = seen + 1;
        os_probe_release(&own, OS_LOCK_TABLE);
    }
    os_probe_close(&own);
}

static void test_table_lock_excludes(void) {
    pid_t pids[3];
    prepare();
    for (int i = 0; i < 3; i++) pids[i] = child(count_under_the_table_lock);
    for (int i = 0; i < 3; i++) CHECK_EQ(outcome(pids[i]), 0);
    CHECK_EQ(shared->plain, 300);
    os_probe_close(&probe);
}

/* ---- fork ------------------------------------------------------------------------------------------------ */

#define TAKERS 2
#define FORKS 150

static void *take_and_drop(void *context) {
    unsigned index = (unsigned)(uintptr_t)context;
    os_error error;
    while (ml_load_acquire(&shared->stop) == 0) {
        os_token token;
        if (os_token_take(path, &segment, kind, index, &token, &error) == OS_OK) os_token_drop(&token);
        (void)os_probe_held(&probe, index);
    }
    return NULL;
}

static void test_children_forked_while_threads_take_tokens_inherit_none(void) {
    if (emulated("children forked while threads take tokens")) return;
    pthread_t threads[TAKERS];
    pid_t pids[FORKS];
    prepare();
    for (unsigned i = 0; i < TAKERS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, take_and_drop, (void *)(uintptr_t)(50 + i)), 0);
    for (int i = 0; i < FORKS; i++) pids[i] = child(stay);
    ml_store_release(&shared->stop, 1);
    for (unsigned i = 0; i < TAKERS; i++) pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < TAKERS; i++) {
        os_token token = take(50 + i); /* would be busy for as long as a child that inherited it lives */
        CHECK(token.page != NULL);
        os_token_drop(&token);
        CHECK_EQ(os_probe_held(&probe, 50 + i), OS_NO);
    }
    for (int i = 0; i < FORKS; i++) end(pids[i]);
    os_probe_close(&probe);
}

typedef struct registered {
    pthread_mutex_t lock;
    os_probe probe;
    int prepared, in_parent, in_child;
} registered;

static void on_prepare(void *context) {
    registered *r = context;
    pthread_mutex_lock(&r->lock);
    r->prepared++;
}
static void on_parent(void *context) {
    registered *r = context;
    r->in_parent++;
    pthread_mutex_unlock(&r->lock);
}
static void on_child(void *context) {
    registered *r = context;
    pthread_mutex_init(&r->lock, NULL);
    r->in_child++;
    os_probe_close(&r->probe);
}
static const os_fork_hooks hooks = {on_prepare, on_parent, on_child};

static void test_fork_hook_keeps_the_childs_hands_off_a_sweepers_lock(void) {
    static registered r = {.lock = PTHREAD_MUTEX_INITIALIZER};
    os_error error = {0, ""};
    prepare();
    os_token token = take(60);
    os_token_drop(&token);
    r.prepared = r.in_parent = r.in_child = 0;
    CHECK_EQ(os_probe_open(path, &segment, kind, &r.probe, &error), OS_OK);
    CHECK_EQ(os_fork_register(&hooks, &r), OS_OK);
    CHECK_EQ(os_probe_share(&r.probe, 60), OS_OK);
    uint64_t forks = os_fork_count();
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        CHECK_WATCHDOG(CHECK_TEST_SECONDS);
        bool good = r.in_child == 1 && r.in_parent == 0 && r.probe.fd == -1 && os_fork_count() == forks + 1 &&
                    pthread_mutex_trylock(&r.lock) == 0;
        os_fork_guard_lock(); /* free in the child */
        os_fork_guard_unlock();
        os_token own;
        good = good && os_token_take(path, &segment, kind, 61, &own, &error) == OS_OK;
        ml_store_release(&shared->ready, good ? 1 : 2);
        stay();
    }
    CHECK(wait_value(&shared->ready, 1));
    CHECK_EQ(ml_load_acquire(&shared->ready), 1);
    CHECK(r.prepared == 1 && r.in_parent == 1 && r.in_child == 0);
    CHECK_EQ(os_fork_count(), forks);
    CHECK_EQ(os_token_take(path, &segment, kind, 60, &token, &error), OS_BUSY); /* the parent's is still there */
    os_probe_close(&r.probe);
    token = take(60); /* and nothing of it is in the child */
    CHECK(token.page != NULL);
    os_token_drop(&token);
    CHECK_EQ(os_probe_held(&probe, 61), OS_YES);
    os_fork_unregister(&r);
    end(pid);
    pid = fork();
    if (pid == 0) _exit(0);
    CHECK_EQ(outcome(pid), 0);
    CHECK_EQ(r.prepared, 1); /* no longer called */
    os_probe_close(&probe);
}

static void do_nothing(void) {
}

static void *note_under_the_guard(void *context) {
    registered *r = context;
    while (ml_load_acquire(&shared->stop) == 0) {
        os_fork_guard_lock();
        pthread_mutex_lock(&r->lock);
        pthread_mutex_unlock(&r->lock);
        os_fork_guard_unlock();
    }
    return NULL;
}

static void test_fork_beside_a_thread_that_takes_guard_then_lock_does_not_hang(void) {
    static registered r = {.lock = PTHREAD_MUTEX_INITIALIZER, .probe = {.fd = -1}};
    pthread_t thread;
    clear_board();
    CHECK_EQ(os_fork_register(&hooks, &r), OS_OK);
    CHECK_EQ(pthread_create(&thread, NULL, note_under_the_guard, &r), 0);
    for (int i = 0; i < 300; i++) CHECK_EQ(outcome(child(do_nothing)), 0);
    ml_store_release(&shared->stop, 1);
    pthread_join(thread, NULL);
    os_fork_unregister(&r);
}

static void test_fork_registry_is_bounded(void) {
    static int contexts[OS_FORK_MAX + 1];
    static const os_fork_hooks none = {NULL, NULL, NULL};
    for (int i = 0; i < OS_FORK_MAX; i++) CHECK_EQ(os_fork_register(&none, &contexts[i]), OS_OK);
    CHECK_EQ(os_fork_register(&none, &contexts[OS_FORK_MAX]), OS_FAILED);
    for (int i = 0; i <= OS_FORK_MAX; i++) os_fork_unregister(&contexts[i]);
    CHECK_EQ(os_fork_register(&none, &contexts[0]), OS_OK);
    os_fork_unregister(&contexts[0]);
}

static void segment_is_there(void) {
    CHECK(segment.base[0] == 42);
}

static void test_token_is_taken_also_under_the_callers_guard(void) {
    prepare();
    os_fork_guard_lock();
    os_token token = take(62);
    os_fork_guard_unlock();
    CHECK(token.page != NULL);
    os_token_drop(&token);
    CHECK_EQ(outcome(child(segment_is_there)), 0); /* and a fork does not wait for it */
    os_probe_close(&probe);
}

static void test_cookie_is_zero_in_every_child(void) {
    if (emulated("memory that a child sees wiped")) {
        CHECK(os_cookie_new(77) == NULL); /* it is not promised, either */
        return;
    }
    const volatile uint64_t *cookie = os_cookie_new(77);
    if (!CHECK(cookie != NULL)) return;
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        pid_t pid = i == 0 ? fork() : raw_clone();
        if (pid == 0) _exit(*cookie == 0 ? 0 : 1);
        CHECK_EQ(outcome(pid), 0);
        CHECK_EQ(*cookie, 77);
    }
}

/* ---- wake-ups -------------------------------------------------------------------------------------------- */

static void wait_for_wake(void) {
    os_segment own = segment_or_exit(); /* at another address */
    ml_store_release(&shared->ready, 1);
    os_wait((uint32_t *)(void *)(own.base + 128), 5, 3600000000000ull);
    ml_store_release(&shared->done, 1);
}

/* The word never changes, so only a wake can end the wait before its timeout of an hour. */
static void test_wake_reaches_another_process(void) {
    prepare();
    uint32_t *word = (uint32_t *)(void *)(segment.base + 128);
    *word = 5;
    pid_t waiter = child(wait_for_wake);
    CHECK(wait_value(&shared->ready, 1));
    while (ml_load_acquire(&shared->done) == 0) { /* the watchdog ends it; a wake before the wait is lost */
        os_wake(word);
        os_sleep_ns(1000000);
    }
    CHECK_EQ(outcome(waiter), 0);
    os_probe_close(&probe);
}

int main(int argc, char **argv) {
    static const check_test lock_tests[] = {
        TEST(test_no_kind_of_child_keeps_a_dead_owners_token),
        TEST(test_token_outlasts_children_that_end),
        TEST(test_closing_all_descriptors_does_not_lose_the_token),
        TEST(test_token_outlasts_the_thread_that_took_it),
        TEST(test_token_of_a_replaced_segment_is_absent),
        TEST(test_failed_token_map_gives_the_lock_back),
        TEST(test_take_tries_again_where_a_look_is_a_lock),
        TEST(test_killed_sweeper_blocks_nobody),
        TEST(test_only_a_definite_answer_is_yes_or_no),
        TEST(test_one_probe_holds_several_locks),
        TEST(test_table_lock_excludes),
        TEST(test_children_forked_while_threads_take_tokens_inherit_none),
        TEST(test_fork_hook_keeps_the_childs_hands_off_a_sweepers_lock),
        TEST(test_token_is_taken_also_under_the_callers_guard),
        TEST(test_fork_beside_a_thread_that_takes_guard_then_lock_does_not_hang),
        TEST(test_fork_registry_is_bounded),
        TEST(test_cookie_is_zero_in_every_child),
        TEST(test_wake_reaches_another_process),
    };
    if (!begin()) return 2;
    kind = OS_LOCKS_OFD;
    printf("open file description locks: ");
    int result = CHECK_MAIN(lock_tests, argc, argv);
    kind = OS_LOCKS_FLOCK;
    os_test_inject("ofd", EINVAL, -1);
    printf("flock: ");
    result |= CHECK_MAIN(lock_tests, argc, argv);
    finish();
    return result;
}
