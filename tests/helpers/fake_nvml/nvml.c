/* A driver without a GPU: the calls of NVML that matter for memory, answered from a file that the test writes.
 *
 * FAKE_NVML_STATE names the file; its layout is `struct state`, which __init__.py packs. It is mapped shared, so the
 * test changes answers while processes run, and counts the calls of all of them. FAKE_NVML_INIT makes initialisation
 * fail with that code in one process. -DWITHOUT_<CALL> leaves a symbol out, as old drivers do. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#define DEVICES_MAX 16
#define MAGIC UINT64_C(0x6c6d764e656b6146)

enum call { CALL_INIT, CALL_SHUTDOWN, CALL_LIST, CALL_FIND, CALL_V2, CALL_V1, CALL_COUNT = 8 };

typedef struct device {
    char uuid[96], name[96], pci[32];
    uint64_t total, free, reserved;
    uint64_t find_error, v2_error, v1_error;
    uint64_t latency_us; /* of a memory call */
    uint64_t slice_of;   /* index of the card + 1; 0: a card */
} device;

typedef struct state {
    uint64_t magic, device_count, init_error, epoch;
    uint64_t slow_pid; /* 0: latency is for every process */
    uint64_t calls[CALL_COUNT];
    device devices[DEVICES_MAX];
} state;

typedef struct memory_v1 {
    unsigned long long total, free, used;
} memory_v1;
typedef struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_v2;
typedef struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, pci_device, pci_subsystem;
    char bus_id[32];
} pci_info;

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SIZE = 7, NOT_LOADED = 9 };

static state *shared;
static int initialised;
static uint64_t epoch;

static int count(enum call call) {
    if (shared) __atomic_fetch_add(&shared->calls[call], 1, __ATOMIC_RELAXED);
    return OK;
}

/* A driver that was reloaded forgets everybody. */
static int ready(void) {
    if (!initialised) return UNINITIALIZED;
    return shared->epoch == epoch ? OK : 999;
}

static state *map(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return NULL;
    void *memory = mmap(NULL, sizeof(state), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) return NULL;
    return ((state *)memory)->magic == MAGIC ? memory : NULL;
}

int nvmlInitWithFlags(unsigned flags) {
    const char *own = getenv("FAKE_NVML_INIT");
    (void)flags;
    if (!shared) shared = map();
    if (!shared) return NOT_LOADED;
    count(CALL_INIT);
    if (own && atoi(own)) return atoi(own);
    if (shared->init_error) return (int)shared->init_error;
    initialised++;
    epoch = shared->epoch;
    return OK;
}
int nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

int nvmlShutdown(void) {
    if (!initialised) return UNINITIALIZED;
    count(CALL_SHUTDOWN);
    initialised--;
    return OK;
}

const char *nvmlErrorString(int code) {
    return code ? "a failure that a test asked for" : "success";
}

static unsigned cards(void) {
    unsigned n = 0;
    for (unsigned i = 0; i < shared->device_count && i < DEVICES_MAX; i++) n += shared->devices[i].slice_of == 0;
    return n;
}

int nvmlDeviceGetCount_v2(unsigned *out) {
    int status = ready();
    if (status) return status;
    count(CALL_LIST);
    *out = cards();
    return OK;
}

static int found(device *d, void **out) {
    if (d->find_error) return (int)d->find_error;
    *out = d;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    int status = ready();
    if (status) return status;
    count(CALL_LIST);
    for (unsigned i = 0; i < shared->device_count && i < DEVICES_MAX; i++)
        if (shared->devices[i].slice_of == 0 && index-- == 0) return found(&shared->devices[i], out);
    return INVALID;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    int status = ready();
    if (status) return status;
    count(CALL_FIND);
    for (unsigned i = 0; i < shared->device_count && i < DEVICES_MAX; i++)
        if (strcmp(shared->devices[i].uuid, uuid) == 0) return found(&shared->devices[i], out);
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **out) {
    int status = ready();
    if (status) return status;
    count(CALL_FIND);
    for (unsigned i = 0; i < shared->device_count && i < DEVICES_MAX; i++) {
        device *d = &shared->devices[i];
        /* The driver writes the domain with 8 digits, and takes 4. */
        if (d->slice_of == 0 && (strcasecmp(d->pci, pci) == 0 || strcasecmp(d->pci + 4, pci) == 0))
            return found(d, out);
    }
    return NOT_FOUND;
}

static int text(char *to, unsigned length, const char *from) {
    if (strlen(from) >= length) return SIZE;
    strcpy(to, from);
    return OK;
}
int nvmlDeviceGetUUID(device *d, char *out, unsigned length) {
    int status = ready();
    return status ? status : text(out, length, d->uuid);
}
int nvmlDeviceGetName(device *d, char *out, unsigned length) {
    int status = ready();
    return status ? status : text(out, length, d->name);
}
int nvmlDeviceGetPciInfo_v3(device *d, pci_info *out) {
    int status = ready();
    if (status) return status;
    memset(out, 0, sizeof *out);
    return text(out->bus_id, sizeof out->bus_id, d->pci);
}

static unsigned slices(const device *card) {
    unsigned n = 0;
    for (unsigned i = 0; i < shared->device_count && i < DEVICES_MAX; i++)
        n += shared->devices[i].slice_of == (uint64_t)(card - shared->devices) + 1;
    return n;
}
int nvmlDeviceGetMigMode(device *d, unsigned *current, unsigned *pending) {
    int status = ready();
    if (status) return status;
    if (!slices(d)) return NOT_SUPPORTED;
    *current = *pending = 1;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(device *d, unsigned *out) {
    (void)d;
    *out = 7;
    return ready();
}
int nvmlDeviceGetMigDeviceHandleByIndex(device *card, unsigned index, void **out) {
    int status = ready();
    if (status) return status;
    for (unsigned i = 0; i < shared->device_count && i < DEVICES_MAX; i++)
        if (shared->devices[i].slice_of == (uint64_t)(card - shared->devices) + 1 && index-- == 0)
            return found(&shared->devices[i], out);
    return NOT_FOUND;
}

static int memory_call(device *d, enum call call, uint64_t error) {
    int status = ready();
    if (status) return status;
    count(call);
    if (d->latency_us && (!shared->slow_pid || shared->slow_pid == (uint64_t)getpid()))
        usleep((useconds_t)d->latency_us);
    return (int)error;
}

#ifndef WITHOUT_V1
int nvmlDeviceGetMemoryInfo(device *d, memory_v1 *out) {
    int status = memory_call(d, CALL_V1, d->v1_error);
    if (status) return status;
    /* v1 counts the driver's reserve as used. */
    *out = (memory_v1){d->total, d->free, d->total - d->free};
    return OK;
}
#endif

#ifndef WITHOUT_V2
int nvmlDeviceGetMemoryInfo_v2(device *d, memory_v2 *out) {
    int status = memory_call(d, CALL_V2, d->v2_error);
    if (status) return status;
    out->total = d->total;
    out->reserved = d->reserved;
    out->free = d->free;
    out->used = d->total - d->free - d->reserved;
    return OK;
}
#endif
