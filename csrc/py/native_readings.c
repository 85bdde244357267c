/* Readings and sweeps for housekeeping. The GIL is given up round what may block. */
#include "py/native.h"

#include <stdlib.h>
#include <string.h>

PyObject *native_ledger_reading(PyObject *self, PyObject *pool_object) {
    ml_reading reading;
    unsigned long pool = PyLong_AsUnsignedLong(pool_object);
    if (pool == (unsigned long)-1 && PyErr_Occurred()) return NULL;
    memset(&reading, 0, sizeof reading);
    if (!native_is_joined((LedgerObject *)self)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    (void)ml_reading_get(((LedgerObject *)self)->core, (unsigned)pool, &reading);
    Py_END_ALLOW_THREADS;
    return native_reading_dict(&reading);
}

/* The begun reading as opaque bytes; it holds no resources, so it may be dropped. */
PyObject *native_ledger_reading_begin(PyObject *self, PyObject *args) {
    unsigned pool;
    const char *dead = NULL;
    Py_ssize_t length = 0;
    ml_reading_op op;
    int status;
    if (!PyArg_ParseTuple(args, "I|z#", &pool, &dead, &length)) return NULL;
    uint64_t bits[ML_SLOTS_MAX / 64] = {0};
    if (!native_is_joined((LedgerObject *)self)) return NULL;
    if (dead && length == (Py_ssize_t)sizeof bits) memcpy(bits, dead, sizeof bits);
    Py_BEGIN_ALLOW_THREADS;
    status = ml_reading_begin(((LedgerObject *)self)->core, pool, bits, &op);
    Py_END_ALLOW_THREADS;
    if (status != ML_OK) return native_raise(status, "reading_begin");
    return PyBytes_FromStringAndSize((const char *)&op, sizeof op);
}

static bool optional_bytes(PyObject *object, const char *name, uint64_t absent, uint64_t *out) {
    if (object == Py_None) return *out = absent, true;
    return native_bytes(object, name, out);
}

typedef struct reading_arguments {
    const char *source, *scope, *reason;
    PyObject *total, *free, *reserved, *immediate, *soft_limit;
    unsigned flags;
} reading_arguments;

static bool reading_from(const reading_arguments *a, ml_reading *r) {
    memset(r, 0, sizeof *r);
    if (!optional_bytes(a->total, "total", 0, &r->total) || !optional_bytes(a->free, "free", 0, &r->free) ||
        !optional_bytes(a->reserved, "reserved", 0, &r->reserved) ||
        !optional_bytes(a->immediate, "immediate", UINT64_MAX, &r->immediate) ||
        !optional_bytes(a->soft_limit, "soft_limit", UINT64_MAX, &r->soft_limit))
        return false;
    memcpy(&r->source, a->source, strlen(a->source) < 8 ? strlen(a->source) : 8);
    r->scope = (uint32_t)native_scope_index(a->scope);
    r->reason = (uint32_t)native_reason_index(a->reason);
    r->flags = a->flags;
    return true;
}

/* (op, source, total, free, reserved, immediate, soft_limit, scope, reason, flags) -> status */
PyObject *native_ledger_reading_end(PyObject *self, PyObject *args) {
    const char *op_bytes;
    Py_ssize_t op_length;
    reading_arguments a;
    ml_reading r;
    ml_reading_op op;
    if (!PyArg_ParseTuple(args, "y#sOOOOOszI", &op_bytes, &op_length, &a.source, &a.total, &a.free, &a.reserved,
                          &a.immediate, &a.soft_limit, &a.scope, &a.reason, &a.flags))
        return NULL;
    if (op_length != (Py_ssize_t)sizeof op) {
        PyErr_SetString(PyExc_ValueError, "reading_end() needs what reading_begin() returned");
        return NULL;
    }
    memcpy(&op, op_bytes, sizeof op);
    if (!reading_from(&a, &r)) return NULL;
    int status;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_reading_end(((LedgerObject *)self)->core, &op, &r);
    Py_END_ALLOW_THREADS;
    return PyLong_FromLong(status);
}

/* _reading_settle(op) -> status */
PyObject *native_ledger_reading_settle(PyObject *self, PyObject *begun) {
    char *bytes;
    Py_ssize_t length;
    ml_reading_op op;
    int status;
    if (PyBytes_AsStringAndSize(begun, &bytes, &length) != 0) return NULL;
    if (length != (Py_ssize_t)sizeof op) {
        PyErr_SetString(PyExc_ValueError, "_reading_settle() needs what _reading_begin() returned");
        return NULL;
    }
    memcpy(&op, bytes, sizeof op);
    Py_BEGIN_ALLOW_THREADS;
    status = ml_reading_settle(((LedgerObject *)self)->core, &op);
    Py_END_ALLOW_THREADS;
    if (status < 0) return native_raise(status, "reading_settle");
    return PyLong_FromLong(status);
}

/* (pool, source, total, free, reserved, immediate, soft_limit, scope, reason, flags) */
PyObject *native_ledger_reading_local(PyObject *self, PyObject *args) {
    unsigned pool;
    reading_arguments a;
    ml_reading r;
    if (!PyArg_ParseTuple(args, "IsOOOOOszI", &pool, &a.source, &a.total, &a.free, &a.reserved, &a.immediate,
                          &a.soft_limit, &a.scope, &a.reason, &a.flags) ||
        !reading_from(&a, &r))
        return NULL;
    int status;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_reading_local(((LedgerObject *)self)->core, pool, &r);
    Py_END_ALLOW_THREADS;
    if (status != ML_OK) return native_raise(status, "reading");
    Py_RETURN_NONE;
}

typedef struct sweep_holder {
    LedgerObject *ledger; /* a reference */
    ml_sweep sweep;
} sweep_holder;

#define SWEEP_NAME "memledger._native.sweep"

static void holder_free(sweep_holder *holder) {
    Py_DECREF(holder->ledger);
    free(holder);
}

/* A sweep that was never committed (the source raised): commit it, so that its locks and descriptor go. */
static void sweep_capsule_free(PyObject *capsule) {
    sweep_holder *holder = PyCapsule_GetPointer(capsule, SWEEP_NAME);
    uint64_t freed;
    if (!holder) return;
    (void)ml_sweep_commit(holder->ledger->core, &holder->sweep, &freed);
    holder_free(holder);
}

/* _sweep_begin(full) -> None: nobody is dead. Else (capsule, dead bitmap, pools that want a reading, count). */
PyObject *native_ledger_sweep_begin(PyObject *self, PyObject *full) {
    int status, everywhere = PyObject_IsTrue(full);
    if (everywhere < 0 || !native_is_joined((LedgerObject *)self)) return NULL;
    sweep_holder *holder = calloc(1, sizeof *holder);
    if (!holder) return PyErr_NoMemory();
    Py_INCREF(self);
    holder->ledger = (LedgerObject *)self;
    Py_BEGIN_ALLOW_THREADS;
    status = everywhere ? ml_sweep_begin(holder->ledger->core, &holder->sweep)
                        : ml_sweep_begin_near(holder->ledger->core, &holder->sweep);
    Py_END_ALLOW_THREADS;
    if (status != ML_OK || holder->sweep.count == 0) {
        holder_free(holder);
        Py_RETURN_NONE;
    }
    PyObject *capsule = PyCapsule_New(holder, SWEEP_NAME, sweep_capsule_free);
    if (!capsule) {
        uint64_t freed;
        (void)ml_sweep_commit(holder->ledger->core, &holder->sweep, &freed);
        holder_free(holder);
        return NULL;
    }
    return Py_BuildValue("(Ny#KI)", capsule, (const char *)holder->sweep.dead, (Py_ssize_t)sizeof holder->sweep.dead,
                         (unsigned long long)holder->sweep.want_reading, holder->sweep.count);
}

PyObject *native_ledger_sweep_commit(PyObject *self, PyObject *capsule) {
    uint64_t freed = 0;
    (void)self;
    sweep_holder *holder = PyCapsule_GetPointer(capsule, SWEEP_NAME);
    if (!holder) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    (void)ml_sweep_commit(holder->ledger->core, &holder->sweep, &freed);
    Py_END_ALLOW_THREADS;
    return PyLong_FromUnsignedLongLong(freed);
}
