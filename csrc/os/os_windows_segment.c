/* Windows: the segment, a file in the user's local application data, mapped by everybody. Checked under wine only. */
#include "os/os_windows.h"

#include <accctrl.h>
#include <aclapi.h>
#include <shlobj.h>
#include <stdio.h>
#include <string.h>

#define CREATE_ATTEMPTS 100
#define WRITE_STEP_BYTES ((uint64_t)1 << 20)
#define SHARE_ALL (FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE)
#define SID_SPACE_BYTES 256
#define TMP_AGE_TICKS 600000000ull /* a minute, in the system's 100 ns */

/* ---- names and users ------------------------------------------------------------------------------------- */

bool os_win_path(const char *path, wchar_t wide[OS_PATH_BYTES]) {
    if (MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, OS_PATH_BYTES) <= 0) return false;
    for (wchar_t *c = wide; *c != L'\0'; c++)
        if (*c == L'/') *c = L'\\'; /* the system takes both; what looks for the folder's end knows one */
    return true;
}

/* From the user's profile, not from the environment, which sandboxes scrub. */
os_status os_segment_default_path(char path[OS_PATH_BYTES], unsigned layout_major) {
    wchar_t folder[MAX_PATH];
    char text[MAX_PATH * 3];
    if (SHGetFolderPathW(NULL, CSIDL_LOCAL_APPDATA, NULL, 0, folder) != S_OK ||
        WideCharToMultiByte(CP_UTF8, 0, folder, -1, text, sizeof text, NULL, NULL) == 0)
        return OS_ABSENT;
    int length = snprintf(path, OS_PATH_BYTES, "%s\\memledger\\memledger-v%u", text, layout_major);
    return length > 0 && length < OS_PATH_BYTES ? OS_OK : OS_FAILED;
}

/* The SID of this process's user or of the owner that new files get, inside `space`; NULL on failure. */
static PSID own_sid(TOKEN_INFORMATION_CLASS which, void *space, DWORD space_bytes) {
    HANDLE token;
    DWORD length;
    if (!OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &token)) return NULL;
    BOOL known = GetTokenInformation(token, which, space, space_bytes, &length);
    CloseHandle(token);
    if (!known) return NULL;
    return which == TokenUser ? ((TOKEN_USER *)space)->User.Sid : ((TOKEN_OWNER *)space)->Owner;
}

uint64_t os_win_user_id(void) {
    _Alignas(16) unsigned char space[SID_SPACE_BYTES];
    const unsigned char *sid = own_sid(TokenUser, space, sizeof space);
    uint64_t hash = 0xcbf29ce484222325ull;
    if (sid == NULL) return 0;
    for (DWORD i = 0; i < GetLengthSid((PSID)sid); i++) hash = (hash ^ sid[i]) * 0x100000001b3ull;
    return hash;
}

bool os_win_is_ours(HANDLE file) {
    _Alignas(16) unsigned char user_space[SID_SPACE_BYTES], owner_space[SID_SPACE_BYTES];
    PSID owner = NULL;
    PSECURITY_DESCRIPTOR descriptor = NULL;
    PSID user = own_sid(TokenUser, user_space, sizeof user_space);
    PSID maker = own_sid(TokenOwner, owner_space, sizeof owner_space);
    if (GetSecurityInfo(file, SE_FILE_OBJECT, OWNER_SECURITY_INFORMATION, &owner, NULL, NULL, NULL, &descriptor) !=
        ERROR_SUCCESS)
        return false;
    bool ours = owner != NULL && ((user != NULL && EqualSid(owner, user)) || (maker != NULL && EqualSid(owner, maker)));
    LocalFree(descriptor);
    return ours;
}

/* ---- opening what is there ------------------------------------------------------------------------------- */

HANDLE os_win_open(const char *path, DWORD access) {
    wchar_t wide[OS_PATH_BYTES];
    DWORD fault = (DWORD)OS_FAULT("open");
    if (fault == 0 && !os_win_path(path, wide)) fault = ERROR_FILENAME_EXCED_RANGE;
    if (fault != 0) {
        SetLastError(fault);
        return INVALID_HANDLE_VALUE;
    }
    return CreateFileW(wide, access, SHARE_ALL, NULL, OPEN_EXISTING,
                       FILE_FLAG_OPEN_REPARSE_POINT | FILE_FLAG_BACKUP_SEMANTICS, NULL);
}

static os_status open_refused(DWORD code, os_error *error) {
    bool absent = code == ERROR_FILE_NOT_FOUND || code == ERROR_PATH_NOT_FOUND;
    return os_fail(error, absent ? OS_ABSENT : OS_FAILED, "CreateFile", code);
}

typedef struct file_facts {
    uint64_t size_bytes, device_id, file_id;
    DWORD attributes, links;
} file_facts;

static bool facts_of(HANDLE file, file_facts *out) {
    BY_HANDLE_FILE_INFORMATION info;
    if (!GetFileInformationByHandle(file, &info)) return false;
    *out = (file_facts){(uint64_t)info.nFileSizeHigh << 32 | info.nFileSizeLow, info.dwVolumeSerialNumber,
                        (uint64_t)info.nFileIndexHigh << 32 | info.nFileIndexLow, info.dwFileAttributes,
                        info.nNumberOfLinks};
    return true;
}

/* The owner is judged; who else the access list lets in is left to the profile's folder. */
static os_status open_valid(const char *path, DWORD access, bool any_owner, HANDLE *out, file_facts *facts,
                            os_error *error) {
    HANDLE file = os_win_open(path, access);
    if (file == INVALID_HANDLE_VALUE) return open_refused(GetLastError(), error);
    os_status status = OS_OK;
    if (!facts_of(file, facts))
        status = os_fail(error, OS_FAILED, "GetFileInformationByHandle", GetLastError());
    else if (GetFileType(file) != FILE_TYPE_DISK ||
             (facts->attributes & (FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_REPARSE_POINT)) != 0)
        status = os_fail(error, OS_FOREIGN, "type", 0);
    else if (facts->links > 1)
        status = os_fail(error, OS_FOREIGN, "links", 0);
    else if (!any_owner && !os_win_is_ours(file))
        status = os_fail(error, OS_FOREIGN, "owner", 0);
    if (status != OS_OK) CloseHandle(file);
    *out = file;
    return status;
}

static bool is_same(const file_facts *facts, const os_segment *segment) {
    return facts->device_id == segment->device_id && facts->file_id == segment->file_id;
}

os_status os_win_open_same(const char *path, const os_segment *segment, HANDLE *out, os_error *error) {
    file_facts facts;
    *out = os_win_open(path, GENERIC_READ | GENERIC_WRITE);
    if (*out == INVALID_HANDLE_VALUE) return open_refused(GetLastError(), error);
    if (segment == NULL || (facts_of(*out, &facts) && is_same(&facts, segment))) return OS_OK;
    CloseHandle(*out);
    return os_fail(error, OS_ABSENT, "replaced", 0);
}

os_status os_segment_open(const char *path, uint64_t min_size_bytes, uint64_t max_size_bytes, os_segment *out,
                          os_error *error) {
    HANDLE file, section = NULL;
    file_facts facts;
    os_status status = open_valid(path, GENERIC_READ | GENERIC_WRITE, false, &file, &facts, error);
    if (status != OS_OK) return status;
    if (facts.size_bytes == 0 || facts.size_bytes < min_size_bytes || facts.size_bytes > max_size_bytes) {
        CloseHandle(file);
        return os_fail(error, OS_FOREIGN, "size", 0);
    }
    DWORD fault = (DWORD)OS_FAULT("mmap");
    void *base = NULL;
    if (fault == 0) section = CreateFileMappingW(file, NULL, PAGE_READWRITE, 0, 0, NULL);
    if (section != NULL) base = MapViewOfFile(section, FILE_MAP_ALL_ACCESS, 0, 0, 0);
    if (base != NULL)
        *out = (os_segment){base, facts.size_bytes, facts.device_id, facts.file_id};
    else
        status = os_fail(error, OS_FAILED, "MapViewOfFile", fault != 0 ? fault : GetLastError());
    if (section != NULL) CloseHandle(section); /* the view keeps what it needs */
    CloseHandle(file);
    return status;
}

os_status os_segment_verify(const char *path, const os_segment *segment, os_error *error) {
    file_facts facts;
    HANDLE file = os_win_open(path, FILE_READ_ATTRIBUTES);
    if (file == INVALID_HANDLE_VALUE) return open_refused(GetLastError(), error);
    bool known = facts_of(file, &facts);
    CloseHandle(file);
    if (!known) return os_fail(error, OS_FAILED, "GetFileInformationByHandle", GetLastError());
    if (!is_same(&facts, segment)) return os_fail(error, OS_FOREIGN, "replaced", 0);
    if (facts.size_bytes != segment->size_bytes) return os_fail(error, OS_FOREIGN, "size", 0);
    return OS_OK;
}

/* Pages cannot be exchanged in one step here: between unmapping and allocating anew a straggler would fault and take
 * the host down. Copy-on-write over the view would do, but where it is not honoured (wine) clearing the view clears
 * the segment of everybody. So the pages stay; the cost is that a straggler sees the old values instead of zeros. */
void os_segment_retire(os_segment *segment) {
    segment->device_id = segment->file_id = 0;
}

os_status os_private_map(uint64_t size_bytes, os_segment *out, os_error *error) {
    void *base = VirtualAlloc(NULL, (SIZE_T)size_bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
    if (base == NULL) return os_fail(error, OS_FAILED, "VirtualAlloc", GetLastError());
    *out = (os_segment){.base = base, .size_bytes = size_bytes};
    return OS_OK;
}

void os_private_unmap(os_segment *segment) {
    /* Of a file or not: each of the two calls refuses the other's memory. */
    if (segment->base != NULL && !UnmapViewOfFile(segment->base)) VirtualFree(segment->base, 0, MEM_RELEASE);
    *segment = (os_segment){0};
}

os_status os_image_read(const char *path, unsigned char *buffer, uint64_t capacity_bytes, uint64_t *size_bytes,
                        uint64_t *device_id, uint64_t *file_id, bool any_owner, os_error *error) {
    HANDLE file;
    file_facts facts;
    os_status status = open_valid(path, GENERIC_READ, any_owner, &file, &facts, error);
    if (status != OS_OK) return status;
    uint64_t done = 0;
    DWORD count = 1;
    if (facts.size_bytes > capacity_bytes) status = os_fail(error, OS_FOREIGN, "size", 0);
    while (status == OS_OK && done < facts.size_bytes && count > 0) {
        if (!ReadFile(file, buffer + done, (DWORD)ml_min_u64(facts.size_bytes - done, WRITE_STEP_BYTES), &count, NULL))
            status = os_fail(error, OS_FAILED, "ReadFile", GetLastError());
        else
            done += count;
    }
    CloseHandle(file);
    *size_bytes = done;
    *device_id = facts.device_id;
    *file_id = facts.file_id;
    return status;
}

/* Refused by the system while anybody has the segment mapped. */
os_status os_segment_unlink(const char *path, os_error *error) {
    wchar_t wide[OS_PATH_BYTES];
    if (os_win_path(path, wide) && DeleteFileW(wide)) return OS_OK;
    DWORD code = GetLastError();
    return os_fail(error, code == ERROR_FILE_NOT_FOUND ? OS_ABSENT : OS_FAILED, "DeleteFile", code);
}

/* ---- creating -------------------------------------------------------------------------------------------- */

static void make_folder(const wchar_t *path) {
    wchar_t folder[OS_PATH_BYTES];
    wcscpy(folder, path);
    wchar_t *slash = wcsrchr(folder, L'\\');
    if (slash != NULL) {
        *slash = L'\0';
        CreateDirectoryW(folder, NULL);
    }
}

static DWORD write_all(HANDLE file, const unsigned char *bytes, uint64_t size_bytes) {
    DWORD count, fault = (DWORD)OS_FAULT("fallocate");
    for (uint64_t done = 0; fault == 0 && done < size_bytes; done += count) {
        if (!WriteFile(file, bytes + done, (DWORD)ml_min_u64(size_bytes - done, WRITE_STEP_BYTES), &count, NULL))
            fault = GetLastError();
        else if (count == 0)
            fault = ERROR_DISK_FULL;
        if (fault != 0) break;
    }
    return fault;
}

/* Removes what creators that were ended left under temporary names. The system refuses while one is still written. */
static void tidy(const wchar_t *path) {
    wchar_t pattern[OS_PATH_BYTES + 8], name[2 * OS_PATH_BYTES];
    WIN32_FIND_DATAW found;
    swprintf(pattern, OS_PATH_BYTES + 8, L"%ls.tmp.*", path);
    const wchar_t *slash = wcsrchr(path, L'\\');
    int folder_length = slash == NULL ? 0 : (int)(slash - path) + 1;
    HANDLE listing = FindFirstFileW(pattern, &found);
    if (listing == INVALID_HANDLE_VALUE) return;
    do {
        FILETIME now;
        GetSystemTimeAsFileTime(&now);
        uint64_t now_ticks = (uint64_t)now.dwHighDateTime << 32 | now.dwLowDateTime;
        uint64_t then_ticks =
            (uint64_t)found.ftLastWriteTime.dwHighDateTime << 32 | found.ftLastWriteTime.dwLowDateTime;
        swprintf(name, 2 * OS_PATH_BYTES, L"%.*ls%ls", folder_length, path, found.cFileName);
        if (ml_sub_sat(now_ticks, then_ticks) > TMP_AGE_TICKS) DeleteFileW(name);
    } while (FindNextFileW(listing, &found));
    FindClose(listing);
}

/* The complete image goes into a file of another name, which then takes the final one, never replacing.
 * OS_BUSY: somebody was first. */
static os_status create_file(const char *path, const os_segment *image, os_error *error) {
    wchar_t final_name[OS_PATH_BYTES], temporary[OS_PATH_BYTES + 32];
    if (!os_win_path(path, final_name)) return os_fail(error, OS_FAILED, "path", GetLastError());
    make_folder(final_name);
    tidy(final_name);
    swprintf(temporary, OS_PATH_BYTES + 32, L"%ls.tmp.%016I64x", final_name, os_random_u64());
    HANDLE file = CreateFileW(temporary, GENERIC_WRITE | DELETE, FILE_SHARE_DELETE, NULL, CREATE_NEW,
                              FILE_ATTRIBUTE_TEMPORARY | FILE_ATTRIBUTE_NOT_CONTENT_INDEXED, NULL);
    if (file == INVALID_HANDLE_VALUE) return os_fail(error, OS_FAILED, "CreateFile", GetLastError());
    DWORD code = write_all(file, image->base, image->size_bytes);
    CloseHandle(file);
    os_status status = OS_OK;
    if (code != 0) {
        bool full = code == ERROR_DISK_FULL || code == ERROR_HANDLE_DISK_FULL;
        status = os_fail(error, full ? OS_NO_SPACE : OS_FAILED, "WriteFile", code);
    } else if (!MoveFileExW(temporary, final_name, 0)) {
        code = GetLastError();
        bool taken = code == ERROR_ALREADY_EXISTS || code == ERROR_FILE_EXISTS;
        status = taken ? OS_BUSY : os_fail(error, OS_FAILED, "MoveFileEx", code);
    }
    if (status != OS_OK) DeleteFileW(temporary);
    return status;
}

os_status os_segment_open_or_create(const char *path, uint64_t size_bytes, uint64_t min_size_bytes,
                                    uint64_t max_size_bytes, os_segment_init *init, void *context, os_segment *out,
                                    bool *created, os_error *error) {
    bool made = false;
    *created = false;
    for (int attempt = 0; attempt < CREATE_ATTEMPTS; attempt++) {
        os_segment image;
        os_status status = os_segment_open(path, min_size_bytes, max_size_bytes, out, error);
        if (status != OS_ABSENT) {
            *created = status == OS_OK && made;
            return status;
        }
        status = os_private_map(size_bytes, &image, error);
        if (status != OS_OK) return status;
        init(image.base, size_bytes, context);
        status = create_file(path, &image, error);
        os_private_unmap(&image);
        if (status != OS_OK && status != OS_BUSY) return status;
        made = status == OS_OK;
    }
    return os_fail(error, OS_FAILED, "create", 0);
}
