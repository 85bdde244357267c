/* Looking at a whole pool or a whole segment: by members, and by tools that join nothing. */
#include "core/snapshot.h"

#include <stdlib.h>
#include <string.h>

#define CUT_TRIES 16
#define IMAGE_TRIES 8
#define IMAGE_MAX_BYTES (UINT64_C(8) << 20)

typedef struct marks {
    uint64_t version[ML_SLOTS_MAX], word[ML_SLOTS_MAX];
} marks;

static void mark(const ml_view *view, unsigned index, marks *out) {
    memset(out, 0, sizeof *out);
    ML_FOR_EACH_SLOT(i, ML_SLOT_BITS(ml_view_pool(view, index)->publishers), view->slot_count) {
        const ml_record *record = ml_view_record(view, index, i);
        out->version[i] = ml_load_seq_cst(&record->version);
        out->word[i] = ml_load_seq_cst(&record->word);
    }
}

static void read_rows(const ml_view *view, unsigned index, ml_snapshot *out) {
    out->row_count = 0;
    ML_FOR_EACH_SLOT(i, ML_SLOT_BITS(ml_view_pool(view, index)->publishers), view->slot_count) {
        const ml_record *record = ml_view_record(view, index, i);
        ml_row *row = &out->rows[out->row_count++];
        ml_figure f;
        uint64_t version, limit = ml_load_acquire(&record->limit);
        (void)ml_record_read(record, &f, &version);
        *row = (ml_row){.slot = i,
                        .generation = f.generation,
                        .held = f.held,
                        .releasable = f.releasable,
                        .pinned = f.pinned,
                        .claims = f.claims,
                        .pending = ML_WORD_PENDING(ml_load_acquire(&record->word)) << out->shift,
                        .headroom = ml_load_acquire(&record->headroom),
                        .limit = limit ? limit - 1 : UINT64_MAX};
        for (unsigned a = 0; a < ML_ACCOUNTS_MAX; a++)
            row->account_held[a] = ml_min_u64(ml_load_acquire(&record->account_held[a]), f.held);
    }
}

static void describe(const ml_view *view, unsigned index, ml_snapshot *out) {
    const ml_pool *entry = ml_view_pool(view, index);
    uint64_t shift = ml_load_relaxed(&entry->shift), kind = ml_load_relaxed(&entry->kind);
    ml_words_load(entry->key, ML_KEY_WORDS, out->key);
    for (unsigned a = 0; a < ML_ALIASES_MAX; a++) ml_words_load(entry->alias[a], ML_KEY_WORDS, out->aliases[a]);
    out->shift = (unsigned)(shift < 12 ? 12 : shift > 34 ? 34 : shift);
    out->kind = kind <= ML_KIND_PIN ? (int)kind : ML_KIND_DEVICE;
    out->generation = ML_SLOT_GENERATION(ml_load_acquire(&entry->state));
}

void ml_sample_to_reading(const ml_sample *s, ml_reading *out) {
    memset(out, 0, sizeof *out);
    out->immediate = out->soft_limit = UINT64_MAX;
    out->reason = s->sequence ? s->reason : ML_REASON_NO_PROBE;
    out->source = s->source;
    out->scope = s->scope;
    out->flags = s->flags & (ML_SAMPLE_SETTLED - 1);
    out->reader = s->slot;
    out->sequence = s->sequence;
    if (!s->sequence) return;
    out->age_ns = ml_sub_sat(os_boottime_ns(), s->time_ns);
    if (s->reason != ML_REASON_NONE) return;
    out->total = s->total;
    out->free = s->free;
    out->reserved = s->reserved;
    out->immediate = s->immediate;
    out->soft_limit = s->soft_limit;
    out->unaccounted = s->unaccounted;
    if (s->flags & ML_SAMPLE_FROZEN) out->reason = ML_REASON_FROZEN;
}

/* A consistent cut: versions and words stood still while the records were read. */
void ml_view_snapshot(const ml_view *view, unsigned index, ml_snapshot *out) {
    marks before, after;
    memset(out, 0, sizeof *out);
    describe(view, index, out);
    const ml_pool *entry = ml_view_pool(view, index);
    ml_totals totals;
    memset(&totals, 0, sizeof totals);
    for (int i = 0; i < CUT_TRIES && !out->coherent; i++) {
        mark(view, index, &before);
        read_rows(view, index, out);
        ml_totals_make(view, index, entry, out->shift, &totals);
        ml_figures_of(view, entry, index, out->shift, ML_NO_SLOT, 0, 0, &totals, &out->figures);
        mark(view, index, &after);
        out->coherent = memcmp(&before, &after, sizeof before) == 0;
    }
    ml_sample_to_reading(&totals.sample, &out->reading);
}

int ml_pool_snapshot(ml_ledger *ledger, unsigned pool, ml_snapshot *out) {
    memset(out, 0, sizeof *out);
    if (ml_is_forked(ledger)) (void)ml_ledger_recover(ledger, ML_SLOW_FORK);
    if (ml_load_acquire(&ledger->closed)) return ML_ERR_CLOSED;
    ml_cold_lock(ledger); /* the view cannot be retired meanwhile */
    if (pool >= ledger->pool_count) {
        ml_cold_unlock(ledger);
        return ML_ERR_ARGUMENT;
    }
    ml_view_snapshot(ledger->pool[pool].view, ledger->pool[pool].index, out);
    bool whole = ledger->mode == ML_MODE_SHARED && !ml_load_acquire(&ledger->foreign_layout);
    if (!whole) out->figures.flags &= ~(uint32_t)ML_FIGURES_COMPLETE;
    ml_cold_unlock(ledger);
    return ML_OK;
}

unsigned ml_view_members(const ml_view *view, os_probe *probe, bool hosts_only, ml_member *out, unsigned capacity) {
    unsigned count = 0;
    for (unsigned i = 0; i < view->slot_count && count < capacity; i++) {
        if (hosts_only && ml_load_relaxed(&ml_view_slot(view, i)->role) != ML_ROLE_HOST) continue;
        int state = ml_slot_liveness(view, i, probe);
        if (state == 0) continue;
        ml_slot_describe(view, i, &out[count]);
        out[count++].state = state;
    }
    return count;
}

static unsigned members(ml_ledger *ledger, bool hosts_only, ml_member *out, unsigned capacity) {
    os_probe probe = {.fd = -1};
    os_error error;
    if (ml_is_forked(ledger)) (void)ml_ledger_recover(ledger, ML_SLOW_FORK);
    if (ml_load_acquire(&ledger->closed)) return 0;
    ml_cold_lock(ledger);
    ml_view *view = ledger->view;
    bool open = false;
    if (view->shared) {
        os_fork_guard_lock();
        open = os_probe_open(view->path, &view->segment, view->lock_kind, &probe, &error) == OS_OK;
        if (open) ledger->sweeps[0] = &probe;
        os_fork_guard_unlock();
    }
    unsigned count = ml_view_members(view, open ? &probe : NULL, hosts_only, out, capacity);
    ledger->sweeps[0] = NULL;
    if (open) os_probe_close(&probe);
    ml_cold_unlock(ledger);
    return count;
}

unsigned ml_ledger_members(ml_ledger *ledger, ml_member *out, unsigned capacity) {
    return members(ledger, false, out, capacity);
}

unsigned ml_ledger_hosts(ml_ledger *ledger, ml_member *out, unsigned capacity) {
    return members(ledger, true, out, capacity);
}

/* ---- images ---- */

struct ml_image {
    ml_view view;
    os_segment buffer[2];
    bool stable[ML_POOLS_MAX]; /* two copies in a row had the same versions and words */
};

static int image_status(os_status status) {
    return status == OS_OK        ? ML_OK
           : status == OS_ABSENT  ? ML_ERR_ABSENT
           : status == OS_FOREIGN ? ML_ERR_FOREIGN
                                  : ML_ERR_SYSTEM;
}

/* One copy of the file into `buffer`, validated. */
static int copy(ml_image *image, unsigned which, os_error *error) {
    uint64_t size = 0, device = 0, file = 0;
    int status = image_status(os_image_read(image->view.path, image->buffer[which].base, IMAGE_MAX_BYTES, &size,
                                            &device, &file, true, error));
    if (status != ML_OK) return status;
    image->view.segment =
        (os_segment){.base = image->buffer[which].base, .size_bytes = size, .device_id = device, .file_id = file};
    status = ml_view_load(&image->view);
    if (status == ML_ERR_FOREIGN) error->call = "header";
    if (status == ML_OK && size != ml_load_relaxed(&ml_view_header(&image->view)->size_bytes)) {
        error->call = "size";
        status = ML_ERR_FOREIGN;
    }
    return status;
}

static void compare(ml_image *image, const ml_view *older) {
    marks a, b;
    for (unsigned p = 0; p < image->view.pool_count; p++) {
        mark(older, p, &a);
        mark(&image->view, p, &b);
        uint64_t newest = ml_load_relaxed(&ml_view_pool(older, p)->newest);
        image->stable[p] =
            memcmp(&a, &b, sizeof a) == 0 && newest == ml_load_relaxed(&ml_view_pool(&image->view, p)->newest);
    }
}

static bool all_stable(const ml_image *image) {
    for (unsigned p = 0; p < image->view.pool_count; p++)
        if (!image->stable[p]) return false;
    return true;
}

/* Of two copies that agree the older one is shown: all of it was read between the two looks at what must not change. In
 * the newer one a reading may already be overwritten by the time its cell is copied. */
static int fill(ml_image *image, os_error *error) {
    int status = copy(image, 0, error);
    for (unsigned i = 1; i <= IMAGE_TRIES && status == ML_OK; i++) {
        ml_view older = image->view;
        status = copy(image, i % 2, error);
        if (status != ML_OK) break;
        bool comparable = older.pool_count == image->view.pool_count && older.slot_count == image->view.slot_count;
        if (comparable) compare(image, &older);
        if ((comparable && all_stable(image)) || i == IMAGE_TRIES) {
            if (comparable) image->view = older;
            break;
        }
    }
    return status;
}

static void resolve(const char *path, char out[ML_PATH_BYTES]) {
    if (!path || !*path) path = getenv("MEMLEDGER_PATH");
    out[0] = '\0';
    if (path && *path && strlen(path) < ML_PATH_BYTES)
        memcpy(out, path, strlen(path) + 1);
    else if (!path || !*path)
        (void)os_segment_default_path(out, ML_LAYOUT_MAJOR);
}

int ml_image_open(const char *path, ml_image **out, ml_ledger_info *info) {
    os_error error = {0, NULL};
    *out = NULL;
    memset(info, 0, sizeof *info);
    info->slot = ML_NO_SLOT;
    info->system_call = "";
    info->degraded_status = ML_ERR_MEMORY;
    ml_image *image = calloc(1, sizeof *image);
    if (!image) return ML_ERR_MEMORY;
    resolve(path, image->view.path);
    memcpy(info->path, image->view.path, sizeof info->path);
    bool mapped = os_private_map(IMAGE_MAX_BYTES, &image->buffer[0], &error) == OS_OK &&
                  os_private_map(IMAGE_MAX_BYTES, &image->buffer[1], &error) == OS_OK;
    int status = mapped ? fill(image, &error) : ML_ERR_MEMORY;
    info->degraded_status = status;
    info->system_code = error.code;
    if (error.call) info->system_call = error.call;
    info->layout_major = image->view.layout_major;
    info->layout_minor = image->view.layout_minor;
    info->file_device = image->view.segment.device_id;
    info->file_id = image->view.segment.file_id;
    if (status != ML_OK) {
        ml_image_close(image);
        return status;
    }
    image->view.shared = true;
    info->lock_kind = (int)image->view.lock_kind;
    info->overflow_count = ml_load_relaxed(&ml_view_header(&image->view)->overflow_count);
    info->sweep_count = ml_load_relaxed(&ml_view_header(&image->view)->sweep_count);
    *out = image;
    return ML_OK;
}

void ml_image_close(ml_image *image) {
    if (!image) return;
    for (int i = 0; i < 2; i++)
        if (image->buffer[i].base) os_private_unmap(&image->buffer[i]);
    free(image);
}

uint64_t ml_image_pools(ml_image *image) {
    uint64_t bits = 0;
    for (unsigned p = 0; p < image->view.pool_count; p++)
        if (ML_SLOT_STATE(ml_load_acquire(&ml_view_pool(&image->view, p)->state)) == ML_POOL_USED)
            bits |= UINT64_C(1) << p;
    return bits;
}

int ml_image_snapshot(ml_image *image, unsigned pool, ml_snapshot *out) {
    memset(out, 0, sizeof *out);
    if (pool >= image->view.pool_count) return ML_ERR_ARGUMENT;
    ml_view_snapshot(&image->view, pool, out);
    out->coherent = out->coherent && image->stable[pool];
    return ML_OK;
}

unsigned ml_image_members(ml_image *image, ml_member *out, unsigned capacity) {
    os_probe probe = {.fd = -1};
    os_error error;
    bool open = os_probe_open(image->view.path, &image->view.segment, image->view.lock_kind, &probe, &error) == OS_OK;
    unsigned count = ml_view_members(&image->view, open ? &probe : NULL, false, out, capacity);
    if (open) os_probe_close(&probe);
    return count;
}

const ml_view *ml_image_view(const ml_image *image) {
    return &image->view;
}

int ml_path_has_owners(const char *path) {
    os_probe probe = {.fd = -1};
    os_error error;
    int answer = 0;
    if (os_probe_open(path, NULL, os_lock_kind_of(path, &error), &probe, &error) != OS_OK) return -1;
    for (unsigned i = 0; i < ML_SLOTS_MAX && answer == 0; i++) {
        os_answer held = os_probe_held(&probe, i);
        if (held == OS_UNKNOWN && probe.kind == OS_LOCKS_FLOCK) {
            /* A lock file that is not there may have been removed under its owner; taking the lock tells. */
            os_status taken = os_probe_exclude(&probe, i, 0);
            if (taken == OS_OK) os_probe_release(&probe, i);
            held = taken == OS_OK ? OS_NO : taken == OS_BUSY ? OS_YES : OS_UNKNOWN;
        }
        if (held == OS_YES) answer = 1;
        if (held == OS_UNKNOWN) answer = -1;
    }
    os_probe_close(&probe);
    return answer;
}
