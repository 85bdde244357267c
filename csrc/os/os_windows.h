/* What the files of the Windows half need of each other. Nobody outside csrc/os includes it. */
#ifndef ML_OS_OS_WINDOWS_H
#define ML_OS_OS_WINDOWS_H

#define WIN32_LEAN_AND_MEAN
#define _WIN32_WINNT 0x0601
#include "os/os.h"
#include "os/os_test.h"

#include <windows.h>

static inline os_status os_fail(os_error *error, os_status status, const char *call, DWORD code) {
    if (error != NULL) {
        error->code = (int)code;
        error->call = call;
    }
    return status;
}

/* UTF-8 to the system's; false when too long or not valid. */
bool os_win_path(const char *path, wchar_t wide[OS_PATH_BYTES]);
/* Opens what is there, sharing everything, never following a link, not inheritable. INVALID_HANDLE_VALUE on failure,
 * the reason in GetLastError(). */
HANDLE os_win_open(const char *path, DWORD access);
/* As os_win_open, but OS_ABSENT unless it is the file of `segment`. */
os_status os_win_open_same(const char *path, const os_segment *segment, HANDLE *out, os_error *error);
/* Hash of a user's security identifier, as a stable number; 0 where unknown. */
uint64_t os_win_user_id(void);
/* Does the file belong to this process's user, or to the group that owns what its user makes? */
bool os_win_is_ours(HANDLE file);

#endif
