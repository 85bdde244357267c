/* The segment on POSIX: what can stand under the name, what a kill or a full file system leaves there. */
#define _GNU_SOURCE
#include "test_os_help.h"

#include <grp.h>
#include <sys/resource.h>
#include <time.h>

#define RACERS 20
#define ROUNDS 12
#define OTHER_USER 1234

/* ---- creation -------------------------------------------------------------------------------------------- */

static void race_to_create(void) {
    os_segment segment;
    bool created;
    os_error error = {0, ""};
    (void)ml_fetch_add_seq_cst(&shared->ready, 1);
    while (ml_load_acquire(&shared->stop) == 0) os_yield();
    if (create_at(path, &segment, &created, &error) != OS_OK) {
        printf("racer: %s %d\n", error.call, error.code);
        (void)ml_fetch_add_seq_cst(&shared->errors, 1);
        return;
    }
    if (segment.base[0] != 42 || segment.base[SIZE_BYTES - 1] != 7) (void)ml_fetch_add_seq_cst(&shared->errors, 1);
    (void)ml_fetch_add_seq_cst(&shared->count, created);
    if (!ml_cas_seq_cst(&shared->pid[0], 0, segment.file_id) && ml_load_acquire(&shared->pid[0]) != segment.file_id)
        (void)ml_fetch_add_seq_cst(&shared->errors, 1); /* two segments */
    (void)ml_fetch_add_seq_cst(&shared->done, 1);
}

/* Reads the name over and over; anything but "absent" or a complete file is an error. */
static void watch_name(void) {
    static unsigned char image[SIZE_BYTES];
    uint64_t size_bytes, device_id, file_id;
    os_error error;
    while (ml_load_acquire(&shared->done) != UINT64_MAX && ml_load_acquire(&shared->stop) < 2) {
        os_status status = os_image_read(path, image, sizeof image, &size_bytes, &device_id, &file_id, false, &error);
        if (status != OS_ABSENT &&
            (status != OS_OK || size_bytes != SIZE_BYTES || image[0] != 42 || image[SIZE_BYTES - 1] != 7))
            (void)ml_fetch_add_seq_cst(&shared->errors, 1);
    }
}

static void race_once(unsigned *random_state) {
    pid_t racers[RACERS];
    clear_board();
    empty_folder();
    pid_t watcher = child(watch_name);
    for (int i = 0; i < RACERS; i++) racers[i] = child(race_to_create);
    CHECK(wait_value(&shared->ready, RACERS));
    ml_store_release(&shared->stop, 1);
    for (int i = 0; i < 6; i++) {
        os_sleep_ns((uint64_t)(rand_r(random_state) % 400) * 1000);
        kill(racers[rand_r(random_state) % RACERS], SIGKILL);
    }
    int survivors = 0;
    for (int i = 0; i < RACERS; i++) survivors += outcome(racers[i]) == 0;
    ml_store_release(&shared->stop, 2);
    CHECK_EQ(outcome(watcher), 0);
    CHECK_EQ(ml_load_acquire(&shared->errors), 0);
    CHECK((int)ml_load_acquire(&shared->done) >= survivors);
    CHECK(ml_load_acquire(&shared->count) <= 1);
    os_segment segment = segment_or_exit(); /* and whoever comes later finds or makes a good one */
    CHECK(segment.base[0] == 42);
}

static void race(void) {
    unsigned seed = (unsigned)os_random_u64();
    unsigned state = seed;
    unsigned before = check_failures;
    for (int round = 0; round < ROUNDS; round++) race_once(&state);
    if (check_failures != before) printf("seed %u\n", seed);
}

static void test_create_race_with_kills_makes_one_complete_segment(void) {
    race();
    CHECK_EQ(names_with(".tmp."), 0);
}

static void test_create_race_without_nameless_files(void) {
    os_test_inject("tmpfile", EOPNOTSUPP, -1);
    race();
    os_test_inject("tmpfile", 0, 0);
}

static void test_create_without_proc_uses_a_temporary_name(void) {
    empty_folder();
    os_test_inject("publish", ENOENT, 1);
    os_segment segment = segment_or_exit();
    CHECK(segment.base[0] == 42);
    CHECK_EQ(names_with(""), 1);
}

/* A creator that was killed between link() and unlink() leaves two names for one file. */
static void test_second_temporary_name_is_removed_and_the_segment_opens(void) {
    char tmp[OS_PATH_BYTES + 16];
    os_error error = {0, ""};
    empty_folder();
    os_segment first = segment_or_exit(), segment;
    snprintf(tmp, sizeof tmp, "%s.tmp.0123", path);
    CHECK_EQ(link(path, tmp), 0);
    CHECK_EQ(os_segment_open(path, 4096, LIMIT_BYTES, &segment, &error), OS_OK);
    CHECK_EQ(segment.file_id, first.file_id);
    CHECK_EQ(names_with(""), 1);
}

static void test_only_old_temporary_names_of_ours_are_removed(void) {
    char tmp[3][OS_PATH_BYTES + 16];
    struct timespec old[2] = {{time(NULL) - 120, 0}, {time(NULL) - 120, 0}};
    struct stat file;
    empty_folder();
    for (int i = 0; i < 3; i++) {
        snprintf(tmp[i], sizeof tmp[i], "%s.tmp.%d", path, i);
        close(open(tmp[i], O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    }
    utimensat(AT_FDCWD, tmp[0], old, 0);
    utimensat(AT_FDCWD, tmp[2], old, 0);
    bool foreign = geteuid() == 0 && chown(tmp[2], OTHER_USER, OTHER_USER) == 0;
    os_test_inject("tmpfile", EOPNOTSUPP, 1);
    (void)segment_or_exit();
    CHECK(stat(tmp[0], &file) != 0);
    CHECK(stat(tmp[1], &file) == 0);
    if (foreign) CHECK(stat(tmp[2], &file) == 0);
}

/* ---- no room --------------------------------------------------------------------------------------------- */

static void test_no_space_leaves_no_name_at_all(void) {
    static const int codes[] = {ENOSPC, EDQUOT, ENOSPC};
    for (int i = 0; i < 3; i++) {
        os_segment segment;
        bool created;
        os_error error = {0, ""};
        empty_folder();
        if (i == 2) os_test_inject("tmpfile", EOPNOTSUPP, 1);
        os_test_inject("fallocate", codes[i], 1);
        CHECK_EQ(create_at(path, &segment, &created, &error), OS_NO_SPACE);
        CHECK_EQ(error.code, codes[i]);
        CHECK_STR(error.call, "fallocate");
        CHECK_EQ(names_with(""), 0);
    }
}

static void create_under_file_limit(void) {
    struct rlimit limit = {65536, 65536};
    os_segment segment;
    bool created;
    os_error error = {0, ""};
    setrlimit(RLIMIT_FSIZE, &limit);
    CHECK_EQ(create_at(path, &segment, &created, &error), OS_NO_SPACE);
    CHECK_EQ(error.code, EFBIG);
}

/* The kernel answers growth past RLIMIT_FSIZE with a signal that ends the process. */
static void test_file_size_limit_raises_no_signal(void) {
    empty_folder();
    CHECK_EQ(outcome(child(create_under_file_limit)), 0);
    CHECK_EQ(names_with(""), 0);
}

static void on_tick(int number) {
    (void)number;
}

/* Some kernels undo a reservation that a signal interrupts; one long call under a profiler's timer would never end
 * there. Newer ones let it finish, and there this shows little. */
static void test_creation_ends_under_a_storm_of_signals(void) {
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    struct sigaction action = {.sa_handler = on_tick}, before;
    struct itimerspec fast = {{0, 100000}, {0, 100000}};
    os_segment segment;
    bool created = false;
    os_error error = {0, ""};
    empty_folder();
    sigaction(SIGUSR1, &action, &before);
    CHECK_EQ(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
    timer_settime(timer, 0, &fast, NULL);
    os_status status =
        os_segment_open_or_create(path, LIMIT_BYTES, 4096, LIMIT_BYTES, fill_slowly, NULL, &segment, &created, &error);
    timer_delete(timer);
    sigaction(SIGUSR1, &before, NULL);
    CHECK_EQ(status, OS_OK);
    CHECK(created);
}

/* ---- what is refused ------------------------------------------------------------------------------------- */

static void make_file(mode_t mode, off_t size) {
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, size) == 0 && fchmod(fd, mode) == 0);
    close(fd);
}

static void check_refused_and_unchanged(const char *rule) {
    struct stat before, after;
    os_segment segment;
    bool created = true;
    os_error error = {0, ""};
    CHECK_EQ(lstat(path, &before), 0);
    CHECK_EQ(create_at(path, &segment, &created, &error), OS_FOREIGN);
    CHECK(!created);
    CHECK_STR(error.call, rule);
    CHECK_EQ(os_segment_open(path, 4096, LIMIT_BYTES, &segment, &error), OS_FOREIGN);
    CHECK_STR(error.call, rule);
    CHECK_EQ(lstat(path, &after), 0);
    CHECK(before.st_ino == after.st_ino && before.st_mode == after.st_mode && before.st_size == after.st_size &&
          before.st_nlink == after.st_nlink && before.st_uid == after.st_uid &&
          memcmp(&before.st_mtim, &after.st_mtim, sizeof before.st_mtim) == 0);
}

static void test_wrong_kind_of_file_is_refused(void) {
    char other[OS_PATH_BYTES + 8];
    struct stat file;
    snprintf(other, sizeof other, "%s-other", path);
    empty_folder();
    CHECK_EQ(symlink(other, path), 0); /* to nothing: creating through it would make the target */
    check_refused_and_unchanged("type");
    CHECK(stat(other, &file) != 0);
    unlink(path);
    make_file(0600, (off_t)SIZE_BYTES);
    CHECK_EQ(rename(path, other), 0);
    CHECK_EQ(symlink(other, path), 0);
    check_refused_and_unchanged("type");
    empty_folder();
    CHECK_EQ(mkfifo(path, 0600), 0);
    check_refused_and_unchanged("type");
    empty_folder();
    CHECK_EQ(mkdir(path, 0700), 0);
    check_refused_and_unchanged("type");
}

static void test_wrong_mode_links_or_size_is_refused(void) {
    static const mode_t modes[] = {0666, 0644, 0604, 0660};
    char other[OS_PATH_BYTES + 8];
    snprintf(other, sizeof other, "%s-other", path);
    for (int i = 0; i < (geteuid() == 0 ? 3 : 4); i++) { /* root's own 0660 is the administrator's segment */
        empty_folder();
        make_file(modes[i], (off_t)SIZE_BYTES);
        check_refused_and_unchanged("mode");
    }
    empty_folder();
    make_file(0600, (off_t)SIZE_BYTES);
    CHECK_EQ(link(path, other), 0);
    check_refused_and_unchanged("links");
    static const off_t sizes[] = {0, 1, 4095, (off_t)LIMIT_BYTES + 1};
    for (int i = 0; i < 4; i++) {
        empty_folder();
        make_file(0600, sizes[i]);
        check_refused_and_unchanged("size");
    }
}

static void become_other_user(void) {
    CHECK_EQ(setgroups(0, NULL), 0);
    CHECK_EQ(setresgid(OTHER_USER, OTHER_USER, OTHER_USER), 0);
    CHECK_EQ(setresuid(OTHER_USER, OTHER_USER, OTHER_USER), 0);
}

static void look_as_other_user(void) {
    become_other_user();
    check_refused_and_unchanged("owner");
}

static void look_as_group_member(void) {
    os_segment segment;
    os_error error = {0, ""};
    become_other_user();
    CHECK_EQ(os_segment_open(path, 4096, LIMIT_BYTES, &segment, &error), OS_OK);
}

static void read_any_owner(void) {
    static unsigned char image[SIZE_BYTES];
    uint64_t size_bytes, device_id, file_id;
    os_error error = {0, ""};
    become_other_user();
    CHECK_EQ(os_image_read(path, image, sizeof image, &size_bytes, &device_id, &file_id, false, &error), OS_FOREIGN);
    CHECK_EQ(os_image_read(path, image, sizeof image, &size_bytes, &device_id, &file_id, true, &error), OS_OK);
    CHECK_EQ(size_bytes, SIZE_BYTES);
}

static void test_other_owner_is_refused_and_the_group_segment_is_not(void) {
    if (geteuid() != 0) {
        printf("not root: other owners not tested\n");
        return;
    }
    static const mode_t modes[] = {0600, 0666, 0660};
    for (int i = 0; i < 3; i++) {
        empty_folder();
        make_file(modes[i], (off_t)SIZE_BYTES);
        CHECK_EQ(outcome(child(look_as_other_user)), 0);
        CHECK_EQ(chown(path, OTHER_USER, OTHER_USER), 0);
        check_refused_and_unchanged("owner");
    }
    CHECK_EQ(chown(path, 0, OTHER_USER), 0);
    CHECK_EQ(outcome(child(look_as_group_member)), 0);
    CHECK_EQ(chown(path, 0, 0), 0);
    CHECK_EQ(chmod(path, 0644), 0);
    CHECK_EQ(outcome(child(read_any_owner)), 0);
}

/* ---- using it -------------------------------------------------------------------------------------------- */

static void shrink_and_grow(void) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    while (ml_load_acquire(&shared->stop) == 0 && ftruncate(fd, 5000) == 0 && ftruncate(fd, (off_t)SIZE_BYTES) == 0) {
    }
}

static void test_reading_a_shrinking_file_gives_a_short_count(void) {
    static unsigned char image[SIZE_BYTES];
    uint64_t size_bytes, device_id, file_id;
    os_error error = {0, ""};
    clear_board();
    empty_folder();
    os_segment segment = segment_or_exit();
    pid_t saboteur = child(shrink_and_grow);
    for (int i = 0; i < 2000; i++) {
        if (!CHECK_EQ(os_image_read(path, image, sizeof image, &size_bytes, &device_id, &file_id, false, &error),
                      OS_OK))
            break;
        CHECK(size_bytes <= SIZE_BYTES && file_id == segment.file_id);
    }
    ml_store_release(&shared->stop, 1);
    CHECK_EQ(outcome(saboteur), 0);
    CHECK_EQ(truncate(path, 5000), 0);
    CHECK_EQ(os_segment_verify(path, &segment, &error), OS_FOREIGN);
    CHECK_STR(error.call, "size");
    CHECK_EQ(os_image_read(path, image, sizeof image, &size_bytes, &device_id, &file_id, false, &error), OS_OK);
    CHECK_EQ(size_bytes, 5000);
}

static void test_verify_after_unlink_and_replacement(void) {
    os_error error = {0, ""};
    empty_folder();
    os_segment old = segment_or_exit();
    CHECK_EQ(os_segment_unlink(path, &error), OS_OK);
    CHECK_EQ(os_segment_verify(path, &old, &error), OS_ABSENT);
    old.base[9] = 9; /* still there for who has it mapped */
    os_segment fresh = segment_or_exit();
    CHECK(fresh.file_id != old.file_id);
    CHECK_EQ(os_segment_verify(path, &old, &error), OS_FOREIGN);
    CHECK_EQ(os_segment_verify(path, &fresh, &error), OS_OK);
}

/* ThreadSanitizer takes the new mapping for a write to every byte; that it comes under a reader is the point here. */
__attribute__((no_sanitize_thread)) static void *read_all_the_time(void *context) {
    const volatile unsigned char *base = context;
    while (ml_load_acquire(&shared->stop) == 0)
        for (uint64_t i = 0; i < SIZE_BYTES; i += 1024) {
            unsigned char byte = base[i];
            if (byte != 0 && byte != 7 && byte != 42) (void)ml_fetch_add_seq_cst(&shared->errors, 1);
        }
    return NULL;
}

static void test_retire_under_a_reader_gives_zeros_and_no_fault(void) {
    pthread_t reader;
    clear_board();
    empty_folder();
    os_segment segment = segment_or_exit();
    unsigned char *base = segment.base;
    CHECK_EQ(pthread_create(&reader, NULL, read_all_the_time, base), 0);
    os_sleep_ns(5000000);
    os_segment_retire(&segment);
    os_sleep_ns(5000000);
    ml_store_release(&shared->stop, 1);
    pthread_join(reader, NULL);
    CHECK_EQ(ml_load_acquire(&shared->errors), 0);
    CHECK(base[0] == 0 && base[SIZE_BYTES - 1] == 0);
}

static void open_without_streams(void) {
    os_segment segment = segment_or_exit();
    os_error error;
    os_probe probe;
    close(0);
    close(1);
    close(2);
    if (os_probe_open(path, &segment, os_lock_kind_of(path, NULL), &probe, &error) != OS_OK || probe.fd <= 2) _exit(7);
}

/* A host without standard streams would print into whatever file has number 1 or 2. */
static void test_descriptors_stay_clear_of_the_standard_streams(void) {
    empty_folder();
    CHECK_EQ(outcome(child(open_without_streams)), 0);
}

int main(int argc, char **argv) {
    static const check_test tests[] = {
        TEST(test_create_race_with_kills_makes_one_complete_segment),
        TEST(test_create_race_without_nameless_files),
        TEST(test_create_without_proc_uses_a_temporary_name),
        TEST(test_second_temporary_name_is_removed_and_the_segment_opens),
        TEST(test_only_old_temporary_names_of_ours_are_removed),
        TEST(test_no_space_leaves_no_name_at_all),
        TEST(test_file_size_limit_raises_no_signal),
        TEST(test_creation_ends_under_a_storm_of_signals),
        TEST(test_wrong_kind_of_file_is_refused),
        TEST(test_wrong_mode_links_or_size_is_refused),
        TEST(test_other_owner_is_refused_and_the_group_segment_is_not),
        TEST(test_reading_a_shrinking_file_gives_a_short_count),
        TEST(test_verify_after_unlink_and_replacement),
        TEST(test_retire_under_a_reader_gives_zeros_and_no_fault),
        TEST(test_descriptors_stay_clear_of_the_standard_streams),
    };
    if (!begin()) return 2;
    int result = CHECK_MAIN(tests, argc, argv);
    finish();
    return result;
}
