/* Making, validating and describing a mapped segment. */
#include "core/core.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS_AT 4096u
#define POOLS_AT(slots) (SLOTS_AT + (uint64_t)(slots) * sizeof(ml_slot))
#define RECORDS_AT(slots) (POOLS_AT(slots) + (uint64_t)ML_POOLS_MAX * sizeof(ml_pool))
#define READINGS_AT(slots) (RECORDS_AT(slots) + (uint64_t)ML_POOLS_MAX * (slots) * sizeof(ml_record))
#define READING_STRIDE ((uint64_t)ML_READING_COPIES * sizeof(ml_reading_cell))
#define SIZE_OF(slots) (READINGS_AT(slots) + (uint64_t)ML_POOLS_MAX * (slots) * READING_STRIDE)
#define SIZE_MAX_BYTES (UINT64_C(8) << 20)
#define PAGE_BYTES UINT64_C(16384) /* macOS rounds to 16 KiB; a multiple of it is a multiple everywhere */

_Static_assert(SIZE_OF(ML_SLOTS_MAX) <= SIZE_MAX_BYTES, "the segment must fit a container's small /dev/shm");

static uint64_t size_for(unsigned slots) {
    return (SIZE_OF(slots) + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

uint64_t ml_view_size(void) {
    return size_for(ML_SLOTS_MAX);
}

/* Of the structures' sizes: two builds of one version that disagree must not meet in one segment. */
static uint64_t fingerprint(void) {
    uint64_t sizes[] = {sizeof(ml_header), sizeof(ml_slot),         sizeof(ml_pool), sizeof(ml_record),
                        sizeof(ml_copy),   sizeof(ml_reading_cell), ML_RING_COPIES,  ML_READING_COPIES};
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) hash = (hash ^ sizes[i]) * UINT64_C(1099511628211);
    return hash;
}

static inline void put(ml_u64 *field, uint64_t value) {
    ML_KILL_POINT("create.field");
    ml_store_relaxed(field, value);
}

void ml_view_init(unsigned char *base, uint64_t size_bytes, void *context) {
    unsigned slots = *(unsigned *)context;
    ml_header *h = (ml_header *)(void *)base;
    os_identity self;
    os_identity_self(&self);
    put(&h->layout, (uint64_t)ML_LAYOUT_MAJOR << 32 | ML_LAYOUT_MINOR);
    put(&h->size_bytes, size_bytes);
    put(&h->fingerprint, fingerprint());
    put(&h->slot_count, slots);
    put(&h->pool_count, ML_POOLS_MAX);
    put(&h->slot_offset, SLOTS_AT);
    put(&h->slot_stride, sizeof(ml_slot));
    put(&h->pool_offset, POOLS_AT(slots));
    put(&h->pool_stride, sizeof(ml_pool));
    put(&h->record_offset, RECORDS_AT(slots));
    put(&h->record_stride, sizeof(ml_record));
    put(&h->record_pool_stride, sizeof(ml_record) * (uint64_t)slots);
    put(&h->reading_offset, READINGS_AT(slots));
    put(&h->reading_stride, READING_STRIDE);
    put(&h->reading_pool_stride, READING_STRIDE * slots);
    put(&h->boot_id[0], self.boot_id[0]);
    put(&h->boot_id[1], self.boot_id[1]);
    put(&h->creator_pid, self.pid);
    for (unsigned p = 0; p < ML_POOLS_MAX; p++) {
        /* Random, never reset: a figure cached from another segment, or from before a fork, cannot match. */
        put(&((ml_pool *)(void *)(base + POOLS_AT(slots)))[p].change, os_random_u64());
    }
    /* Last, so that a reader of a half-made private view sees no magic. Under a name it is only ever complete. */
    ML_KILL_POINT("create.magic");
    ml_store_release(&h->magic, ML_MAGIC);
}

/* Does an array of `count` items lie inside the segment, each long enough and aligned? Everything comes from the
 * file, so each step is checked for overflow. */
static bool area_fits(uint64_t size, uint64_t offset, uint64_t stride, uint64_t count, uint64_t least) {
    if (stride < least || stride % 64 != 0 || offset % 64 != 0 || offset > size) return false;
    return stride <= size && count <= (size - offset) / stride;
}

/* Do the areas keep clear of each other and of the header? Else one member's record would be another's slot. They are
 * known to fit. */
static bool areas_are_apart(const ml_view *v) {
    const uint64_t area[][2] = {{0, sizeof(ml_header)},
                                {v->slot_offset, v->slot_stride * v->slot_count},
                                {v->pool_offset, v->pool_stride * v->pool_count},
                                {v->record_offset, v->record_pool_stride * v->pool_count},
                                {v->reading_offset, v->reading_pool_stride * v->pool_count}};
    const unsigned count = sizeof area / sizeof *area;
    for (unsigned i = 0; i < count; i++)
        for (unsigned k = 0; k < count; k++)
            if (i != k && area[i][0] <= area[k][0] && area[k][0] - area[i][0] < area[i][1]) return false;
    return true;
}

int ml_view_load(ml_view *view) {
    const ml_header *h = ml_view_header(view);
    uint64_t size = view->segment.size_bytes;
    if (size < sizeof(ml_header) || ml_load_acquire(&h->magic) != ML_MAGIC) return ML_ERR_FOREIGN;
    uint64_t layout = ml_load_relaxed(&h->layout);
    view->layout_major = (unsigned)(layout >> 32);
    view->layout_minor = (unsigned)(layout & 0xffffffff);
    if (view->layout_major != ML_LAYOUT_MAJOR) return ML_ERR_LAYOUT;
    /* A newer minor may have longer structures: then its strides rule. The same minor with other sizes is no
     * version of ours. */
    if (view->layout_minor == ML_LAYOUT_MINOR && ml_load_relaxed(&h->fingerprint) != fingerprint())
        return ML_ERR_FOREIGN;
    uint64_t slots = ml_load_relaxed(&h->slot_count), pools = ml_load_relaxed(&h->pool_count);
    if (slots < 1 || slots > ML_SLOTS_MAX || pools < 1 || pools > ML_POOLS_MAX) return ML_ERR_FOREIGN;
    view->slot_count = (unsigned)slots;
    view->pool_count = (unsigned)pools;
    view->slot_offset = ml_load_relaxed(&h->slot_offset);
    view->slot_stride = ml_load_relaxed(&h->slot_stride);
    view->pool_offset = ml_load_relaxed(&h->pool_offset);
    view->pool_stride = ml_load_relaxed(&h->pool_stride);
    view->record_offset = ml_load_relaxed(&h->record_offset);
    view->record_stride = ml_load_relaxed(&h->record_stride);
    view->record_pool_stride = ml_load_relaxed(&h->record_pool_stride);
    view->reading_offset = ml_load_relaxed(&h->reading_offset);
    view->reading_stride = ml_load_relaxed(&h->reading_stride);
    view->reading_pool_stride = ml_load_relaxed(&h->reading_pool_stride);
    uint64_t kind = ml_load_relaxed(&h->lock_kind);
    if (kind > OS_LOCKS_WINDOWS) return ML_ERR_FOREIGN;
    view->lock_kind = (os_lock_kind)kind;
    if (!area_fits(size, view->slot_offset, view->slot_stride, slots, sizeof(ml_slot)) ||
        !area_fits(size, view->pool_offset, view->pool_stride, pools, sizeof(ml_pool)) ||
        !area_fits(size, view->record_offset, view->record_pool_stride, pools, sizeof(ml_record)) ||
        !area_fits(view->record_pool_stride, 0, view->record_stride, slots, sizeof(ml_record)) ||
        !area_fits(size, view->reading_offset, view->reading_pool_stride, pools, READING_STRIDE) ||
        !area_fits(view->reading_pool_stride, 0, view->reading_stride, slots, READING_STRIDE) || !areas_are_apart(view))
        return ML_ERR_FOREIGN;
    return ML_OK;
}

typedef struct init_context {
    unsigned slots; /* first, so that ml_view_init can be handed this */
    os_lock_kind lock_kind;
} init_context;

static void init_shared(unsigned char *base, uint64_t size_bytes, void *context) {
    init_context *c = context;
    put(&((ml_header *)(void *)base)->lock_kind, c->lock_kind);
    ml_view_init(base, size_bytes, &c->slots);
}

static int status_of(os_status status) {
    switch (status) {
        case OS_OK: return ML_OK;
        case OS_ABSENT: return ML_ERR_ABSENT;
        case OS_FOREIGN: return ML_ERR_FOREIGN;
        default: return ML_ERR_SYSTEM;
    }
}

/* An existing segment says which kind of lock its members use; who makes one finds out first what there is. */
static os_status open_or_make(const char *path, unsigned slots, ml_view *view, os_error *error) {
    bool created = false;
    os_status status = os_segment_open(path, sizeof(ml_header), SIZE_MAX_BYTES, &view->segment, error);
    if (status != OS_ABSENT) return status;
    init_context context = {slots, os_lock_kind_of(path, error)};
    if (context.lock_kind == OS_LOCKS_NONE) return OS_FAILED;
    return os_segment_open_or_create(path, size_for(slots), sizeof(ml_header), SIZE_MAX_BYTES, init_shared, &context,
                                     &view->segment, &created, error);
}

ml_view *ml_view_open(const char *path, unsigned slots, int *status, os_error *error, unsigned layout[2]) {
    ml_view *view = calloc(1, sizeof *view);
    if (!view) {
        *status = ML_ERR_MEMORY;
        return NULL;
    }
    memset(error, 0, sizeof *error);
    *status = status_of(open_or_make(path, slots, view, error));
    if (*status == ML_OK) {
        *status = ml_view_load(view);
        if (*status == ML_OK && view->segment.size_bytes != ml_load_relaxed(&ml_view_header(view)->size_bytes)) {
            /* Somebody cut it after it was made: the pages behind the end would raise SIGBUS. */
            *status = ML_ERR_FOREIGN;
            error->call = "size";
        } else if (*status == ML_OK && view->lock_kind == OS_LOCKS_NONE) {
            *status = ML_ERR_FOREIGN;
            error->call = "lock kind";
        } else if (*status == ML_ERR_FOREIGN) {
            error->call = "header";
        }
        layout[0] = view->layout_major;
        layout[1] = view->layout_minor;
        if (*status != ML_OK) os_private_unmap(&view->segment); /* nobody has seen it */
    }
    if (*status != ML_OK) {
        free(view);
        return NULL;
    }
    view->shared = true;
    size_t length = strlen(path);
    memcpy(view->path, path, ml_min_u64(length, sizeof view->path - 1));
    return view;
}

ml_view *ml_view_private(void) {
    ml_view *view = calloc(1, sizeof *view);
    unsigned slots = 1;
    os_error error;
    if (!view) return NULL;
    if (os_private_map(size_for(slots), &view->segment, &error) != OS_OK) {
        free(view);
        return NULL;
    }
    ml_view_init(view->segment.base, view->segment.size_bytes, &slots);
    (void)ml_view_load(view);
    return view;
}

void ml_view_free(ml_view *view) {
    if (!view) return;
    os_private_unmap(&view->segment);
    free(view);
}

/* Bytes of the control character at `c`, of ASCII or, in UTF-8, of Latin-1: terminals obey both. 0: none there. */
static unsigned control_bytes(const char *c) {
    unsigned char first = (unsigned char)c[0], second = first ? (unsigned char)c[1] : 0;
    if ((first && first < 0x20) || first == 0x7f) return 1;
    return first == 0xc2 && second >= 0x80 && second < 0xa0 ? 2 : 0;
}

bool ml_text_is_plain(const char *text) {
    for (; *text; text++)
        if (control_bytes(text)) return false;
    return true;
}

void ml_words_store(ml_u64 *words, unsigned count, const char *text) {
    char padded[ML_KEY_BYTES > ML_LABEL_BYTES ? ML_KEY_BYTES : ML_LABEL_BYTES];
    memset(padded, 0, sizeof padded);
    size_t length = text ? strlen(text) : 0;
    memcpy(padded, text ? text : "", ml_min_u64(length, count * 8u - 1));
    /* The first word last: a name whose first word is 0 is no name yet. */
    for (unsigned i = count; i-- > 0;) {
        uint64_t word;
        memcpy(&word, padded + i * 8u, 8);
        ML_KILL_POINT("words.word");
        ml_store_release(&words[i], word);
    }
}

void ml_words_load(const ml_u64 *words, unsigned count, char *text) {
    for (unsigned i = 0; i < count; i++) {
        uint64_t word = ml_load_acquire(&words[i]);
        memcpy(text + i * 8u, &word, 8);
    }
    text[count * 8u - 1] = '\0';
    /* Bytes above ASCII stay: names are UTF-8, and whoever shows them decodes them with care. */
    for (char *c = text; *c; c++)
        for (unsigned n = control_bytes(c); n; n--) c[n - 1] = '?';
}
