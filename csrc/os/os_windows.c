/* Windows: time, identity, locks, waiting. The segment is in os_windows_segment.c, the (empty) fork registry in
 * os_fork.c. Checked under wine only. */
#include "os/os_windows.h"

#include <ntsecapi.h>
#include <stdlib.h>
#include <string.h>
#include <tlhelp32.h>

#define LOCK_OFFSET_HIGH 0x100u /* byte 2^40 + index, far behind any data */
#define TAKE_TRIES 8
#define TAKE_PAUSE_NS 1000000ull
#define POLL_NS 1000000ull

/* ---- time, identity, chance ------------------------------------------------------------------------------ */

uint64_t os_now_ns(void) {
    LARGE_INTEGER count, per_second;
    QueryPerformanceCounter(&count);
    QueryPerformanceFrequency(&per_second);
    uint64_t whole = (uint64_t)(count.QuadPart / per_second.QuadPart);
    uint64_t rest = (uint64_t)(count.QuadPart % per_second.QuadPart);
    return whole * 1000000000ull + rest * 1000000000ull / (uint64_t)per_second.QuadPart;
}

uint64_t os_boottime_ns(void) {
    return GetTickCount64() * 1000000ull;
}

uint64_t os_random_u64(void) {
    uint64_t value;
    if (RtlGenRandom(&value, sizeof value)) return value;
    uint64_t x = os_now_ns() ^ (uint64_t)GetCurrentProcessId() << 40 ^ (uint64_t)(uintptr_t)&value;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    return x ^ (x >> 31);
}

void os_yield(void) {
    SwitchToThread();
}

/* Rounded up to the system's millisecond; a wait that the contract bounds subtracts that itself. */
void os_sleep_ns(uint64_t ns) {
    Sleep((DWORD)ml_min_u64((ns + 999999u) / 1000000u, 3600000u));
}

static uint64_t parent_of(DWORD pid) {
    HANDLE list = CreateToolhelp32Snapshot(TH32CS_SNAPPROCESS, 0);
    PROCESSENTRY32 entry = {.dwSize = sizeof entry};
    uint64_t parent = 0;
    if (list == INVALID_HANDLE_VALUE) return 0;
    for (BOOL more = Process32First(list, &entry); more; more = Process32Next(list, &entry))
        if (entry.th32ProcessID == pid) parent = entry.th32ParentProcessID;
    CloseHandle(list);
    return parent;
}

void os_identity_self(os_identity *out) {
    FILETIME start, end, kernel, user;
    memset(out, 0, sizeof *out);
    out->pid = GetCurrentProcessId();
    out->parent_pid = parent_of(GetCurrentProcessId());
    if (GetProcessTimes(GetCurrentProcess(), &start, &end, &kernel, &user))
        out->start_ticks = (uint64_t)start.dwHighDateTime << 32 | start.dwLowDateTime;
    out->user_id = os_win_user_id();
}

/* ---- locks ----------------------------------------------------------------------------------------------- */

/* Locks on bytes behind the data of the segment itself belong to a handle: another handle, of this process too,
 * meets them, and they go with the handle, at the latest when the process has ended. */
static DWORD lock_byte(HANDLE file, unsigned index, DWORD flags) {
    OVERLAPPED at = {.Offset = index, .OffsetHigh = LOCK_OFFSET_HIGH};
    DWORD fault = (DWORD)OS_FAULT("lock");
    if (fault != 0) return fault;
    return LockFileEx(file, flags | LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &at) ? 0 : GetLastError();
}

static void unlock_byte(HANDLE file, unsigned index) {
    OVERLAPPED at = {.Offset = index, .OffsetHigh = LOCK_OFFSET_HIGH};
    UnlockFileEx(file, 0, 1, 0, &at);
}

static os_status lock_refused(DWORD code, os_error *error) {
    bool busy = code == ERROR_LOCK_VIOLATION || code == ERROR_IO_PENDING;
    return os_fail(error, busy ? OS_BUSY : OS_FAILED, "LockFileEx", code);
}

os_lock_kind os_lock_kind_of(const char *path, os_error *error) {
    (void)path;
    (void)error;
    return OS_LOCKS_WINDOWS;
}

/* A look is a try-lock, which may stand in an owner's way for a moment; hence the tries. */
os_status os_token_take(const char *path, const os_segment *segment, os_lock_kind kind, unsigned index, os_token *out,
                        os_error *error) {
    HANDLE file;
    *out = (os_token){0};
    if (kind != OS_LOCKS_WINDOWS || index >= OS_LOCK_COUNT) return os_fail(error, OS_UNSUPPORTED, "lock_kind", 0);
    os_status status = os_win_open_same(path, segment, &file, error);
    if (status != OS_OK) return status;
    DWORD code = lock_byte(file, index, LOCKFILE_EXCLUSIVE_LOCK);
    for (int i = 1; i < TAKE_TRIES && code == ERROR_LOCK_VIOLATION; i++) {
        os_sleep_ns(TAKE_PAUSE_NS);
        code = lock_byte(file, index, LOCKFILE_EXCLUSIVE_LOCK);
    }
    if (code != 0) {
        CloseHandle(file);
        return lock_refused(code, error);
    }
    *out = (os_token){.page = file, .extra = (uint64_t)(uintptr_t)file};
    return OS_OK;
}

void os_token_drop(os_token *token) {
    if (token->page != NULL) CloseHandle((HANDLE)(uintptr_t)token->extra);
    *token = (os_token){0};
}

os_status os_probe_open(const char *path, const os_segment *segment, os_lock_kind kind, os_probe *out,
                        os_error *error) {
    HANDLE file;
    memset(out, 0, sizeof *out);
    out->fd = -1;
    if (kind != OS_LOCKS_WINDOWS) return os_fail(error, OS_UNSUPPORTED, "lock_kind", 0);
    if (strlen(path) >= sizeof out->path) return os_fail(error, OS_FAILED, "path", ERROR_FILENAME_EXCED_RANGE);
    os_status status = os_win_open_same(path, segment, &file, error);
    if (status != OS_OK) return status;
    memcpy(out->path, path, strlen(path) + 1);
    out->kind = kind;
    out->fd = (intptr_t)file;
    return OS_OK;
}

os_answer os_probe_held(os_probe *probe, unsigned index) {
    if (probe->fd == -1 || index >= OS_LOCK_COUNT) return OS_UNKNOWN;
    DWORD code = lock_byte((HANDLE)probe->fd, index, 0);
    if (code == 0) {
        unlock_byte((HANDLE)probe->fd, index);
        return OS_NO;
    }
    return code == ERROR_LOCK_VIOLATION ? OS_YES : OS_UNKNOWN;
}

static os_status probe_lock(os_probe *probe, unsigned index, DWORD flags) {
    if (probe->fd == -1 || index >= OS_LOCK_COUNT) return OS_UNSUPPORTED;
    DWORD code = lock_byte((HANDLE)probe->fd, index, flags);
    return code == 0 ? OS_OK : lock_refused(code, NULL);
}

os_status os_probe_share(os_probe *probe, unsigned index) {
    return probe_lock(probe, index, 0);
}

os_status os_probe_exclude(os_probe *probe, unsigned index, uint64_t deadline_ns) {
    for (;;) {
        os_status status = probe_lock(probe, index, LOCKFILE_EXCLUSIVE_LOCK);
        uint64_t left_ns = ml_sub_sat(deadline_ns, os_now_ns());
        if (status != OS_BUSY || left_ns == 0) return status;
        os_sleep_ns(ml_min_u64(left_ns, POLL_NS));
    }
}

void os_probe_release(os_probe *probe, unsigned index) {
    if (probe->fd != -1) unlock_byte((HANDLE)probe->fd, index);
}

void os_probe_close(os_probe *probe) {
    if (probe->fd != -1) CloseHandle((HANDLE)probe->fd);
    probe->fd = -1;
}

/* ---- fork, waiting --------------------------------------------------------------------------------------- */

/* Nothing ever copies the address space: a word of the process's own will do. */
const volatile uint64_t *os_cookie_new(uint64_t value) {
    uint64_t *word = malloc(sizeof *word);
    if (word != NULL) *word = value;
    return word;
}

void os_cookie_free(const volatile uint64_t *cookie) {
    free((void *)(uintptr_t)cookie);
}

/* WaitOnAddress does not see other processes, so this looks again each millisecond. Sleep rounds up, so the last
 * part of the timeout only gives the processor away. */
void os_wait(uint32_t *word, uint32_t expected, uint64_t timeout_ns) {
    const volatile uint32_t *seen = word;
    uint64_t end_ns = ml_add_sat(os_now_ns(), timeout_ns);
    while (*seen == expected) {
        uint64_t left_ns = ml_sub_sat(end_ns, os_now_ns());
        if (left_ns == 0) return;
        Sleep(left_ns >= POLL_NS ? 1 : 0);
    }
}

void os_wake(uint32_t *word) {
    (void)word;
}
