/* The methods that a sampler calls at every step. */
#include "py/native.h"

#include <string.h>

#define SLOW_TRIES 1000 /* each recovers something; a handful is the most ever needed */

/* Runs `call` until it gives no slow answer, or returns NULL with an exception set. `status` is the caller's. */
#define RETRY_SLOW(status, ledger, call)                                                               \
    do {                                                                                               \
        (status) = (call);                                                                             \
        for (int tries_ = 0; ML_UNLIKELY((status) >= ML_SLOW_LOCK) && tries_ < SLOW_TRIES; tries_++) { \
            if (!native_recover((ledger), (status))) return NULL;                                      \
            (status) = (call);                                                                         \
        }                                                                                              \
    } while (0)

/* ---- keyword arguments ---- */

typedef struct amounts_arguments {
    PyObject *value[3]; /* held, releasable, pinned; NULL when absent */
} amounts_arguments;

static const char *const amount_names[3] = {"held", "releasable", "pinned"};

/* Which of the three is this? -1: none. A keyword in a call is interned, so the pointer nearly always tells. */
static int amount_index(const module_state *state, PyObject *name) {
    for (int i = 0; i < 3; i++)
        if (ML_LIKELY(name == state->amount_names[i])) return i;
    for (int i = 0; i < 3; i++)
        if (PyUnicode_CompareWithASCIIString(name, amount_names[i]) == 0) return i;
    return -1;
}

static bool parse_names(const module_state *state, const char *method, PyObject *const *values, PyObject *names,
                        amounts_arguments *out) {
    Py_ssize_t named = PyTuple_Size(names);
    for (Py_ssize_t n = 0; n < named; n++) {
        PyObject *name = PyTuple_GetItem(names, n);
        int i = amount_index(state, name);
        if (ML_UNLIKELY(i < 0 || out->value[i])) {
            native_bad_argument(method, name);
            return false;
        }
        out->value[i] = values[n];
    }
    return true;
}

static inline bool parse_amounts(const AccountObject *self, const char *method, PyObject *const *args, Py_ssize_t count,
                                 PyObject *names, amounts_arguments *out) {
    *out = (amounts_arguments){{NULL, NULL, NULL}};
    if (count == 1) {
        out->value[0] = args[0];
    } else if (ML_UNLIKELY(count > 1)) {
        PyErr_Format(PyExc_TypeError, "%s() takes one positional argument (held), the others by name; got %zd", method,
                     count);
        return false;
    }
    return !names || parse_names(self->ledger->state, method, args + count, names, out);
}

static bool native_difference(PyObject *object, const char *name, int64_t *out) {
    if (PyLong_CheckExact(object)) {
        long long value = PyLong_AsLongLong(object);
        if (ML_LIKELY(value != -1 || !PyErr_Occurred())) return *out = value, true;
        PyErr_Clear();
    }
    return native_difference_slow(object, name, out);
}

/* ---- Account and Device: publish and add ---- */

PyObject *native_account_publish(PyObject *self_object, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    AccountObject *self = (AccountObject *)self_object;
    amounts_arguments given;
    ml_amounts amounts = {0, 0, 0};
    if (!parse_amounts(self, "publish", args, count, names, &given)) return NULL;
    if (ML_UNLIKELY(!given.value[0])) return PyErr_SetString(PyExc_TypeError, "publish() needs held, in bytes"), NULL;
    if (!native_bytes(given.value[0], "held", &amounts.held)) return NULL;
    if (given.value[1] && !native_bytes(given.value[1], "releasable", &amounts.releasable)) return NULL;
    if (given.value[2] && !native_bytes(given.value[2], "pinned", &amounts.pinned)) return NULL;
    if (ML_UNLIKELY(amounts.releasable > amounts.held)) return native_releasable_above_held(&amounts);
    int status;
    RETRY_SLOW(status, self->ledger, ml_account_publish(self->account, &amounts));
    if (ML_UNLIKELY(status != ML_OK)) return native_raise(status, "publish");
    Py_RETURN_NONE;
}

PyObject *native_account_add(PyObject *self_object, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    AccountObject *self = (AccountObject *)self_object;
    amounts_arguments given;
    int64_t difference[3] = {0, 0, 0};
    if (!parse_amounts(self, "add", args, count, names, &given)) return NULL;
    for (int i = 0; i < 3; i++)
        if (given.value[i] && !native_difference(given.value[i], amount_names[i], &difference[i])) return NULL;
    int status;
    RETRY_SLOW(status, self->ledger, ml_account_add(self->account, difference[0], difference[1], difference[2]));
    if (ML_UNLIKELY(status != ML_OK)) return native_raise(status, "add");
    Py_RETURN_NONE;
}

/* ---- figures ---- */

/* Out of line, so that the hit needs no stack frame of its own. */
static ML_COLD PyObject *free_changed(DeviceObject *self) {
    uint64_t bytes = UINT64_MAX;
    int status;
    RETRY_SLOW(status, self->base.ledger, ml_device_free(self->device, &bytes));
    if (status == ML_NOT_READY) Py_RETURN_NONE;
    if (ML_UNLIKELY(status != ML_OK)) return native_raise(status, "free");
    if (!self->free_object || bytes != self->free_bytes) {
        PyObject *object = PyLong_FromUnsignedLongLong(bytes);
        if (!object) return NULL;
        Py_XDECREF(self->free_object);
        self->free_object = object;
        self->free_bytes = bytes;
    }
    Py_INCREF(self->free_object);
    return self->free_object;
}

PyObject *native_device_free(PyObject *self_object, PyObject *unused) {
    DeviceObject *self = (DeviceObject *)self_object;
    (void)unused;
    ml_device *device = self->device;
    if (ML_LIKELY(!ml_is_forked(device->ledger) && ml_device_unchanged(device) && self->free_object &&
                  ml_load_acquire(&device->cached) == self->free_bytes)) {
        Py_INCREF(self->free_object);
        return self->free_object;
    }
    return free_changed(self);
}

static bool cache_is_current(const DeviceObject *self) {
    const ml_device *device = self->device;
    if (ml_is_forked(device->ledger)) return false;
    ml_mark_asked(device->ledger);
    for (unsigned l = 0; l < device->level_count; l++) {
        const ml_u64 *change = ml_ptr_load_acquire(&device->level[l]->change);
        if (ml_load_acquire(change) != self->cache.tag[l]) return false;
    }
    return true;
}

static void forget(PyObject **object) {
    PyObject *old = *object;
    *object = NULL;
    Py_XDECREF(old);
}

/* Bring self->cache up to date. False: an exception is set. */
static ML_COLD PyObject *refresh_cache(DeviceObject *self) {
    figures_cache *cache = &self->cache;
    uint64_t tag[ML_LEVELS_MAX];
    int status;
    for (unsigned l = 0; l < self->device->level_count; l++) /* before the scan, see [O3] in figures.c */
        tag[l] = ml_load_acquire((const ml_u64 *)ml_ptr_load_acquire(&self->device->level[l]->change));
    RETRY_SLOW(status, self->base.ledger, ml_device_figures(self->device, &cache->figures));
    if (status < ML_OK) return native_raise(status, "figures");
    forget(&cache->available);
    forget(&cache->budget);
    forget(&cache->claimed_by_others);
    forget(&cache->total);
    forget(&cache->tuple);
    cache->status = status;
    memcpy(cache->tag, tag, sizeof tag);
    return Py_None;
}

/* One cached figure: None when unknown. */
static PyObject *figure(DeviceObject *self, PyObject **slot, const uint64_t *value, bool always) {
    if (ML_UNLIKELY(!cache_is_current(self)) && !refresh_cache(self)) return NULL;
    if (self->cache.status != ML_OK && !always) Py_RETURN_NONE;
    if (!*slot && !(*slot = PyLong_FromUnsignedLongLong(*value))) return NULL;
    Py_INCREF(*slot);
    return *slot;
}

PyObject *native_device_available(PyObject *self_object, PyObject *unused) {
    DeviceObject *self = (DeviceObject *)self_object;
    (void)unused;
    return figure(self, &self->cache.available, &self->cache.figures.available, false);
}
PyObject *native_device_budget(PyObject *self_object, PyObject *unused) {
    DeviceObject *self = (DeviceObject *)self_object;
    (void)unused;
    return figure(self, &self->cache.budget, &self->cache.figures.budget, false);
}
PyObject *native_device_total(PyObject *self_object, PyObject *unused) {
    DeviceObject *self = (DeviceObject *)self_object;
    (void)unused;
    return figure(self, &self->cache.total, &self->cache.figures.total, false);
}
PyObject *native_device_claimed_by_others(PyObject *self_object, PyObject *unused) {
    DeviceObject *self = (DeviceObject *)self_object;
    (void)unused;
    return figure(self, &self->cache.claimed_by_others, &self->cache.figures.claimed_by_others, true);
}

PyObject *native_device_figures(PyObject *self_object, PyObject *unused) {
    DeviceObject *self = (DeviceObject *)self_object;
    figures_cache *cache = &self->cache;
    (void)unused;
    if (ML_UNLIKELY(!cache_is_current(self)) && !refresh_cache(self)) return NULL;
    if (!cache->tuple) {
        cache->tuple = native_figures_object(self->base.ledger->state, &cache->figures, cache->status);
        if (!cache->tuple) return NULL;
    }
    Py_INCREF(cache->tuple);
    return cache->tuple;
}

/* The floor of every figure in the benchmarks: a method of the same kind that does nothing. */
PyObject *native_device_empty(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    Py_RETURN_NONE;
}

/* ---- claims ---- */

PyObject *native_account_try_claim(PyObject *self_object, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    AccountObject *self = (AccountObject *)self_object;
    uint64_t bytes = 0, replacing = 0;
    PyObject *ttl = NULL;
    if (count != 1) {
        PyErr_Format(PyExc_TypeError, "try_claim() takes one positional argument (nbytes), got %zd", count);
        return NULL;
    }
    if (!native_bytes(args[0], "nbytes", &bytes)) return NULL;
    Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    for (Py_ssize_t n = 0; n < named; n++) {
        PyObject *name = PyTuple_GetItem(names, n);
        if (PyUnicode_CompareWithASCIIString(name, "replacing") == 0) {
            if (!native_bytes(args[1 + n], "replacing", &replacing)) return NULL;
        } else if (PyUnicode_CompareWithASCIIString(name, "ttl") == 0) {
            ttl = args[1 + n];
        } else {
            return native_bad_argument("try_claim", name);
        }
    }
    /* What needs a clock, or is wrong, is dealt with where there is time for it. */
    if ((ttl && ttl != Py_None) || replacing > self->account->amounts.held)
        return native_claim_slow(self_object, bytes, replacing, ttl);
    ClaimObject *claim = native_claim_new(self);
    if (!claim) return NULL;
    int status = ml_claim_try(self->account, bytes, replacing, 0, &claim->claim);
    if (ML_LIKELY(status == ML_OK)) return (PyObject *)claim;
    Py_DECREF(claim);
    return native_claim_slow(self_object, bytes, replacing, ttl);
}

/* Through a claim, what is not given stays as it was, and releasable never exceeds the new held. */
static PyObject *claim_publish_as(ClaimObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names,
                                  const char *method, int (*publish)(ml_claim *, const ml_amounts *)) {
    amounts_arguments given;
    ml_amounts amounts;
    if (!parse_amounts(self->owner, method, args, count, names, &given)) return NULL;
    if (!given.value[0]) return PyErr_Format(PyExc_TypeError, "%s() needs held, in bytes", method);
    /* In a forked child they are the parent's until it has joined. */
    if (ml_is_forked(self->owner->ledger->core) && !native_recover(self->owner->ledger, ML_SLOW_FORK)) return NULL;
    amounts = self->owner->account->amounts;
    if (!native_bytes(given.value[0], "held", &amounts.held)) return NULL;
    if (given.value[1] && !native_bytes(given.value[1], "releasable", &amounts.releasable)) return NULL;
    if (given.value[2] && !native_bytes(given.value[2], "pinned", &amounts.pinned)) return NULL;
    if (amounts.releasable > amounts.held) {
        if (given.value[1]) return native_releasable_above_held(&amounts);
        amounts.releasable = amounts.held;
    }
    int status;
    RETRY_SLOW(status, self->owner->ledger, publish(&self->claim, &amounts));
    if (status != ML_OK) return native_raise(status, method);
    Py_RETURN_NONE;
}

PyObject *native_claim_publish(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    return claim_publish_as((ClaimObject *)self, args, count, names, "publish", ml_claim_publish);
}
PyObject *native_claim_settle(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    return claim_publish_as((ClaimObject *)self, args, count, names, "settle", ml_claim_settle);
}

PyObject *native_claim_cancel(PyObject *self_object, PyObject *unused) {
    ClaimObject *self = (ClaimObject *)self_object;
    (void)unused;
    int status;
    RETRY_SLOW(status, self->owner->ledger, ml_claim_cancel(&self->claim));
    if (status != ML_OK) return native_raise(status, "cancel");
    Py_RETURN_NONE;
}

PyObject *native_claim_enter(PyObject *self, PyObject *unused) {
    (void)unused;
    Py_INCREF(self);
    return self;
}

PyObject *native_claim_exit(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    (void)args;
    (void)count;
    return native_claim_cancel(self, NULL);
}

/* ---- groups ---- */

PyObject *native_ledger_pending(PyObject *self_object, PyObject *unused) {
    LedgerObject *self = (LedgerObject *)self_object;
    (void)unused;
    if (ml_is_forked(self->core) && !native_recover(self, ML_SLOW_FORK)) return NULL;
    return PyLong_FromLong((long)ml_pending(self->core));
}

PyObject *native_ledger_interrupted(PyObject *self_object, PyObject *unused) {
    LedgerObject *self = (LedgerObject *)self_object;
    (void)unused;
    if (ml_is_forked(self->core) && !native_recover(self, ML_SLOW_FORK)) return NULL;
    return PyBool_FromLong(ml_group_interrupted(self->core, 0));
}

PyObject *native_job_interrupted(PyObject *self_object, PyObject *unused) {
    JobObject *self = (JobObject *)self_object;
    (void)unused;
    if (ml_is_forked(self->ledger->core) && !native_recover(self->ledger, ML_SLOW_FORK)) return NULL;
    return PyBool_FromLong(ml_group_interrupted(self->ledger->core, self->key));
}
