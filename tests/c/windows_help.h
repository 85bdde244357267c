/* The part of core_help.h that deals with children, for Windows, which has no fork: a child is this program again, told
 * which body to run. Nothing here stops a process, and a file that is mapped keeps its name. */
#ifndef ML_TESTS_WINDOWS_HELP_H
#define ML_TESTS_WINDOWS_HELP_H

#define WIN32_LEAN_AND_MEAN
#include <process.h>
#include <windows.h>

#define SIGKILL 9
#define SIGTERM 15
#define run_child(body) run_named(#body)

static const char *program;

/* Ends this process; its outcome is minus `signal`. */
static inline void die(int signal) {
    fflush(stdout);
    TerminateProcess(GetCurrentProcess(), (UINT)signal);
}

static inline int run_named(const char *body) {
    char quoted[OS_PATH_BYTES + 2];
    snprintf(quoted, sizeof quoted, "\"%s\"", path);
    fflush(stdout);
    int status = (int)_spawnl(_P_WAIT, program, "child", "child", body, quoted, NULL);
    return status == SIGKILL || status == SIGTERM ? -status : status;
}

static inline bool make_folder(void) {
    char place[TEST_FOLDER_BYTES - 32];
    if (GetTempPathA(sizeof place, place) == 0) return false;
    snprintf(folder, sizeof folder, "%sml-core-%llx", place, (unsigned long long)os_random_u64());
    return CreateDirectoryA(folder, NULL);
}

#endif
