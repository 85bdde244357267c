/* What os.h promises on every system. Runs on Linux and, under wine, on Windows; what only POSIX can show is in
 * test_os_segment.c and test_os_locks.c. */
#define _GNU_SOURCE
#include "check.h"

#include "os/os.h"
#include "os/os_test.h"

#include <errno.h>
#include <stdlib.h>

#define SIZE_BYTES ((uint64_t)256 * 1024)
#define LIMIT_BYTES ((uint64_t)1 << 23)

static char path[OS_PATH_BYTES];
static const char *program;

#ifdef _WIN32
#include <process.h>
#include <windows.h>
#define FAULT_SPACE ERROR_DISK_FULL
#define FAULT_MEMORY ERROR_NOT_ENOUGH_MEMORY
#define FAULT_IO ERROR_IO_DEVICE
#define FAULT_DENIED ERROR_ACCESS_DENIED
#define RETIRED_READS_ZERO 0
typedef intptr_t process;
static process start_holder(const char *index) {
    char quoted[OS_PATH_BYTES + 2];
    snprintf(quoted, sizeof quoted, "\"%s\"", path);
    return _spawnl(_P_NOWAIT, program, "holder", "hold", quoted, index, NULL);
}
static void kill_holder(process p) {
    TerminateProcess((HANDLE)p, 9);
    WaitForSingleObject((HANDLE)p, INFINITE);
    CloseHandle((HANDLE)p);
}
static void choose_path(void) {
    char folder[MAX_PATH];
    GetTempPathA(sizeof folder, folder);
    snprintf(path, sizeof path, "%sml-test-%lu-%llu", folder, GetCurrentProcessId(), os_random_u64() & 0xffffff);
}
static void make_directory(const char *name) {
    CreateDirectoryA(name, NULL);
}
static void remove_directory(const char *name) {
    RemoveDirectoryA(name);
}
#else
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#define FAULT_SPACE ENOSPC
#define FAULT_MEMORY ENOMEM
#define FAULT_IO EIO
#define FAULT_DENIED EACCES
#define RETIRED_READS_ZERO 1
typedef pid_t process;
static process start_holder(const char *index) {
    const char *emulator = getenv("TEST_EMULATOR"); /* the kernel cannot start a program of another CPU by itself */
    pid_t pid = fork();
    if (pid == 0) {
        if (emulator) execlp(emulator, emulator, program, "hold", path, index, (char *)NULL);
        execl(program, "holder", "hold", path, index, (char *)NULL);
        _exit(127);
    }
    return pid;
}
static void kill_holder(process p) {
    kill(p, SIGKILL);
    waitpid(p, NULL, 0);
}
static void choose_path(void) {
    const char *folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(path, sizeof path, "%s/ml-test-%d-%llx", folder, (int)getpid(),
             (unsigned long long)(os_random_u64() & 0xffffff));
}
static void make_directory(const char *name) {
    mkdir(name, 0700);
}
static void remove_directory(const char *name) {
    rmdir(name);
}
#endif

static void fill(unsigned char *base, uint64_t size_bytes, void *context) {
    memset(base, *(int *)context, (size_t)size_bytes);
}

static os_status create(os_segment *out, bool *created, os_error *error) {
    int byte = 7;
    return os_segment_open_or_create(path, SIZE_BYTES, 4096, LIMIT_BYTES, fill, &byte, out, created, error);
}

/* Maps the segment, or stops the test. Mappings stay: nothing is ever unmapped, as in the library. */
static os_segment segment_or_exit(void) {
    os_segment segment;
    bool created;
    os_error error = {0, ""};
    if (create(&segment, &created, &error) != OS_OK) {
        printf("cannot make %s: %s %d\n", path, error.call, error.code);
        exit(2);
    }
    return segment;
}

static void test_clocks_go_forward_and_sleep_lasts(void) {
    uint64_t before_ns = os_now_ns(), boot_ns = os_boottime_ns();
    os_sleep_ns(20000000);
    os_yield();
    CHECK(os_now_ns() - before_ns >= 15000000); /* the coarsest clock ticks in 15.6 ms */
    CHECK(os_boottime_ns() >= boot_ns);
    CHECK(boot_ns > 0);
}

static void test_random_differs(void) {
    uint64_t a = os_random_u64(), b = os_random_u64(), c = os_random_u64();
    CHECK(a != b && b != c && a != c);
}

static void test_identity_is_stable_and_filled(void) {
    os_identity a, b;
    os_identity_self(&a);
    os_identity_self(&b);
    CHECK(memcmp(&a, &b, sizeof a) == 0);
    CHECK(a.pid != 0);
    CHECK(a.parent_pid != a.pid);
    CHECK(a.start_ticks != 0);
}

static void test_create_then_open_is_the_same_segment(void) {
    os_segment a, b;
    bool created;
    os_error error = {0, ""};
    CHECK_EQ(os_segment_open(path, 4096, LIMIT_BYTES, &a, &error), OS_ABSENT);
    CHECK_EQ(create(&a, &created, &error), OS_OK);
    CHECK(created);
    CHECK_EQ(a.size_bytes, SIZE_BYTES);
    CHECK(a.base[0] == 7 && a.base[SIZE_BYTES - 1] == 7);
    CHECK_EQ(create(&b, &created, &error), OS_OK);
    CHECK(!created);
    CHECK(a.file_id == b.file_id && a.device_id == b.device_id && a.base != b.base);
    a.base[100] = 9;
    CHECK_EQ(b.base[100], 9);
    CHECK_EQ(os_segment_verify(path, &a, &error), OS_OK);
    CHECK_EQ(os_segment_open(path, SIZE_BYTES + 1, LIMIT_BYTES, &b, &error), OS_FOREIGN);
    CHECK_STR(error.call, "size");
    CHECK_EQ(os_segment_open(path, 1, SIZE_BYTES - 1, &b, &error), OS_FOREIGN);
}

static void test_verify_says_absent_or_replaced(void) {
    os_error error = {0, ""};
    os_segment segment = segment_or_exit(), other = segment;
    other.file_id++;
    CHECK_EQ(os_segment_verify(path, &other, &error), OS_FOREIGN);
    CHECK_STR(error.call, "replaced");
    other = segment;
    other.size_bytes++;
    CHECK_EQ(os_segment_verify(path, &other, &error), OS_FOREIGN);
    CHECK_STR(error.call, "size");
    char away[OS_PATH_BYTES + 8];
    snprintf(away, sizeof away, "%s.gone", path);
    CHECK_EQ(os_segment_verify(away, &segment, &error), OS_ABSENT);
    CHECK_EQ(os_segment_unlink(away, &error), OS_ABSENT);
}

static void test_directory_under_the_name_is_refused(void) {
    char name[OS_PATH_BYTES + 8];
    int byte = 7;
    bool created;
    os_segment segment;
    os_error error = {0, ""};
    snprintf(name, sizeof name, "%s.dir", path);
    make_directory(name);
    CHECK_EQ(os_segment_open_or_create(name, SIZE_BYTES, 4096, LIMIT_BYTES, fill, &byte, &segment, &created, &error),
             OS_FOREIGN);
    CHECK_STR(error.call, "type");
    remove_directory(name);
}

#ifdef _WIN32
/* What a creator that was ended left is removed from the segment's folder, and nothing of that name elsewhere. */
static void test_path_with_slashes_is_tidied_in_its_own_folder(void) {
    char saved[OS_PATH_BYTES], left[OS_PATH_BYTES + 16];
    FILETIME long_ago = {0, 1 << 24};
    memcpy(saved, path, sizeof saved);
    strcat(path, "-slashes");
    for (char *c = path; *c; c++)
        if (*c == '\\') *c = '/';
    snprintf(left, sizeof left, "%s.tmp.1", path);
    const char *names[] = {left, strrchr(left, '/') + 1}; /* the second in the current folder */
    for (int i = 0; i < 2; i++) {
        HANDLE file = CreateFileA(names[i], GENERIC_WRITE, 0, NULL, CREATE_NEW, 0, NULL);
        CHECK(file != INVALID_HANDLE_VALUE && SetFileTime(file, &long_ago, &long_ago, &long_ago));
        CloseHandle(file);
    }
    (void)segment_or_exit();
    CHECK(GetFileAttributesA(names[0]) == INVALID_FILE_ATTRIBUTES);
    CHECK(GetFileAttributesA(names[1]) != INVALID_FILE_ATTRIBUTES);
    DeleteFileA(names[1]);
    memcpy(path, saved, sizeof saved);
}
#endif

static void test_no_space_leaves_no_name(void) {
    char saved[OS_PATH_BYTES];
    os_segment segment;
    bool created;
    os_error error = {0, ""};
    memcpy(saved, path, sizeof saved);
    strcat(path, ".full");
    os_test_inject("fallocate", FAULT_SPACE, 1);
    CHECK_EQ(create(&segment, &created, &error), OS_NO_SPACE);
    CHECK_EQ(error.code, FAULT_SPACE);
    CHECK(!created);
    CHECK_EQ(os_segment_open(path, 1, LIMIT_BYTES, &segment, &error), OS_ABSENT);
    memcpy(path, saved, sizeof saved);
}

static void test_no_memory_on_attach_leaves_the_file(void) {
    os_segment first = segment_or_exit(), segment;
    bool created;
    os_error error = {0, ""};
    os_test_inject("mmap", FAULT_MEMORY, 1);
    CHECK_EQ(create(&segment, &created, &error), OS_FAILED);
    CHECK_EQ(error.code, FAULT_MEMORY);
    CHECK_EQ(os_segment_verify(path, &first, &error), OS_OK);
    os_test_inject("open", FAULT_DENIED, 1);
    CHECK_EQ(create(&segment, &created, &error), OS_FAILED);
    CHECK_EQ(error.code, FAULT_DENIED);
    CHECK_EQ(os_segment_verify(path, &first, &error), OS_OK);
}

static void test_retire_shows_zeros_and_keeps_the_file(void) {
    static unsigned char image[SIZE_BYTES];
    os_error error = {0, ""};
    uint64_t size_bytes, device_id, file_id;
    os_segment segment = segment_or_exit(), other = segment_or_exit();
    unsigned char *base = segment.base;
    segment.base[5] = 55;
    os_segment_retire(&segment);
    if (RETIRED_READS_ZERO) {
        CHECK(base[0] == 0 && base[5] == 0 && base[SIZE_BYTES - 1] == 0);
        base[5] = 1; /* a straggler's write goes nowhere */
    }
    CHECK(base[5] <= 55); /* no fault */
    CHECK_EQ(other.base[5], 55);
    CHECK_EQ(os_image_read(path, image, sizeof image, &size_bytes, &device_id, &file_id, false, &error), OS_OK);
    CHECK_EQ(size_bytes, SIZE_BYTES);
    CHECK_EQ(image[5], 55);
    CHECK_EQ(file_id, other.file_id);
    CHECK_EQ(os_image_read(path, image, 4096, &size_bytes, &device_id, &file_id, false, &error), OS_FOREIGN);
}

/* Of a segment that was refused, or of a handle that was freed. While Windows has it mapped, the name stays. */
static void test_unmapped_segment_can_be_removed(void) {
    char saved[OS_PATH_BYTES];
    os_error error = {0, ""};
    memcpy(saved, path, sizeof saved);
    strcat(path, ".unmapped");
    os_segment segment = segment_or_exit();
    os_private_unmap(&segment);
    CHECK(segment.base == NULL);
    CHECK_EQ(os_segment_unlink(path, &error), OS_OK);
    CHECK_EQ(os_segment_open(path, 1, LIMIT_BYTES, &segment, &error), OS_ABSENT);
    memcpy(path, saved, sizeof saved);
}

static void test_private_memory_is_zero_and_writable(void) {
    os_segment memory;
    os_error error = {0, ""};
    CHECK_EQ(os_private_map(LIMIT_BYTES, &memory, &error), OS_OK);
    CHECK(memory.base[0] == 0 && memory.base[LIMIT_BYTES - 1] == 0);
    memory.base[LIMIT_BYTES - 1] = 1;
    os_private_unmap(&memory);
    CHECK(memory.base == NULL);
}

static void test_token_excludes_and_is_seen_from_the_same_process(void) {
    os_segment segment = segment_or_exit();
    os_lock_kind kind = os_lock_kind_of(path, NULL);
    os_error error = {0, ""};
    os_token token, second;
    os_probe probe;
    CHECK(kind != OS_LOCKS_NONE);
    CHECK_EQ(os_probe_open(path, &segment, kind, &probe, &error), OS_OK);
    CHECK_EQ(os_token_take(path, &segment, kind, 3, &token, &error), OS_OK);
    CHECK(token.page != NULL);
    CHECK_EQ(os_probe_held(&probe, 3), OS_YES);
    CHECK_EQ(os_probe_held(&probe, 4), OS_NO);
    CHECK_EQ(os_token_take(path, &segment, kind, 3, &second, &error), OS_BUSY);
    CHECK(second.page == NULL);
    CHECK_EQ(os_probe_share(&probe, 3), OS_BUSY);
    os_probe any;
    CHECK_EQ(os_probe_open(path, NULL, kind, &any, &error), OS_OK);
    CHECK_EQ(os_probe_held(&any, 3), OS_YES);
    os_probe_close(&any);
    os_token_drop(&token);
    CHECK(token.page == NULL);
    CHECK_EQ(os_probe_held(&probe, 3), OS_NO);
    os_probe_close(&probe);
    CHECK_EQ(os_probe_held(&probe, 3), OS_UNKNOWN);
    segment.file_id++;
    CHECK_EQ(os_token_take(path, &segment, kind, 3, &token, &error), OS_ABSENT);
    CHECK_EQ(os_probe_open(path, &segment, kind, &probe, &error), OS_ABSENT);
}

static void test_sweepers_share_and_block_the_owner(void) {
    os_segment segment = segment_or_exit();
    os_lock_kind kind = os_lock_kind_of(path, NULL);
    os_error error = {0, ""};
    os_token token;
    os_probe a, b;
    CHECK_EQ(os_probe_open(path, &segment, kind, &a, &error), OS_OK);
    CHECK_EQ(os_probe_open(path, &segment, kind, &b, &error), OS_OK);
    CHECK_EQ(os_probe_share(&a, 20), OS_OK);
    CHECK_EQ(os_probe_share(&b, 20), OS_OK);
    CHECK_EQ(os_probe_held(&a, 20), OS_NO);
    CHECK_EQ(os_token_take(path, &segment, kind, 20, &token, &error), OS_BUSY);
    os_probe_release(&a, 20);
    CHECK_EQ(os_token_take(path, &segment, kind, 20, &token, &error), OS_BUSY);
    os_probe_close(&b);
    CHECK_EQ(os_token_take(path, &segment, kind, 20, &token, &error), OS_OK);
    CHECK_EQ(os_probe_share(&a, 20), OS_BUSY);
    uint64_t start_ns = os_now_ns();
    CHECK_EQ(os_probe_exclude(&a, 20, start_ns + 30000000), OS_BUSY);
    CHECK(os_now_ns() - start_ns >= 30000000);
    os_token_drop(&token);
    CHECK_EQ(os_probe_exclude(&a, 20, 0), OS_OK);
    os_probe_close(&a);
}

static void test_failing_lock_call_is_unknown(void) {
    os_segment segment = segment_or_exit();
    os_lock_kind kind = os_lock_kind_of(path, NULL);
    os_error error = {0, ""};
    os_token token;
    os_probe probe;
    CHECK_EQ(os_probe_open(path, &segment, kind, &probe, &error), OS_OK);
    os_test_inject("lock", FAULT_IO, -1);
    CHECK_EQ(os_probe_held(&probe, 5), OS_UNKNOWN);
    CHECK_EQ(os_probe_share(&probe, 5), OS_FAILED);
    CHECK_EQ(os_token_take(path, &segment, kind, 5, &token, &error), OS_FAILED);
    CHECK_EQ(error.code, FAULT_IO);
    os_test_inject("lock", 0, 0);
    CHECK_EQ(os_probe_held(&probe, 5), OS_NO);
    CHECK_EQ(os_probe_held(&probe, OS_LOCK_COUNT), OS_UNKNOWN);
    os_probe_close(&probe);
}

static os_answer wait_for_answer(os_probe *probe, unsigned index, os_answer wanted) {
    os_answer answer = os_probe_held(probe, index);
    for (int i = 0; i < 20000 && answer != wanted; i++) {
        os_sleep_ns(1000000);
        answer = os_probe_held(probe, index);
    }
    return answer;
}

static void test_token_dies_with_its_process(void) {
    os_segment segment = segment_or_exit();
    os_error error = {0, ""};
    os_probe probe;
    CHECK_EQ(os_probe_open(path, &segment, os_lock_kind_of(path, NULL), &probe, &error), OS_OK);
    process holder = start_holder("17");
    CHECK_EQ(wait_for_answer(&probe, 17, OS_YES), OS_YES);
    CHECK_EQ(os_probe_held(&probe, 16), OS_NO);
    kill_holder(holder);
    CHECK_EQ(wait_for_answer(&probe, 17, OS_NO), OS_NO);
    os_probe_close(&probe);
}

static void test_wait_returns_on_change_and_on_timeout(void) {
    os_segment segment = segment_or_exit();
    uint32_t *word = (uint32_t *)(void *)(segment.base + 64);
    *word = 5;
    os_wait(word, 4, 3600000000000ull); /* differs already: must not sleep */
    uint64_t start_ns = os_now_ns();
    while (os_now_ns() - start_ns < 20000000) os_wait(word, 5, 5000000);
    os_wake(word);
}

static void test_cookie_holds_its_value(void) {
    const volatile uint64_t *cookie = os_cookie_new(0x1234567812345678ull);
    if (cookie != NULL) CHECK(*cookie == 0x1234567812345678ull);
    CHECK_EQ(os_fork_count(), 0);
}

static void test_default_path_carries_the_layout(void) {
    char one[OS_PATH_BYTES], two[OS_PATH_BYTES];
    CHECK_EQ(os_segment_default_path(one, 1), OS_OK);
    CHECK_EQ(os_segment_default_path(two, 2), OS_OK);
    CHECK(strstr(one, "memledger") != NULL);
    CHECK(strcmp(one, two) != 0);
}

static int hold(const char *index) {
    os_error error = {0, ""};
    os_segment segment;
    os_token token;
    CHECK_WATCHDOG(CHECK_TEST_SECONDS);
    if (os_segment_open(path, 1, LIMIT_BYTES, &segment, &error) != OS_OK ||
        os_token_take(path, &segment, os_lock_kind_of(path, NULL), (unsigned)atoi(index), &token, &error) != OS_OK)
        return 3;
    os_sleep_ns((uint64_t)CHECK_TEST_SECONDS * 1000000000ull);
    return 0;
}

int main(int argc, char **argv) {
    static const check_test tests[] = {
        TEST(test_clocks_go_forward_and_sleep_lasts),
        TEST(test_random_differs),
        TEST(test_identity_is_stable_and_filled),
        TEST(test_create_then_open_is_the_same_segment),
        TEST(test_verify_says_absent_or_replaced),
        TEST(test_directory_under_the_name_is_refused),
#ifdef _WIN32
        TEST(test_path_with_slashes_is_tidied_in_its_own_folder),
#endif
        TEST(test_no_space_leaves_no_name),
        TEST(test_no_memory_on_attach_leaves_the_file),
        TEST(test_retire_shows_zeros_and_keeps_the_file),
        TEST(test_private_memory_is_zero_and_writable),
        TEST(test_unmapped_segment_can_be_removed),
        TEST(test_token_excludes_and_is_seen_from_the_same_process),
        TEST(test_sweepers_share_and_block_the_owner),
        TEST(test_failing_lock_call_is_unknown),
        TEST(test_token_dies_with_its_process),
        TEST(test_wait_returns_on_change_and_on_timeout),
        TEST(test_cookie_holds_its_value),
        TEST(test_default_path_carries_the_layout),
    };
    os_error error;
    program = argv[0];
    if (argc == 4 && strcmp(argv[1], "hold") == 0) {
        snprintf(path, sizeof path, "%s", argv[2]);
        return hold(argv[3]);
    }
    choose_path();
    int result = CHECK_MAIN(tests, argc, argv);
    (void)os_segment_unlink(path, &error);
    return result;
}
