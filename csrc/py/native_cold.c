/* Methods that may enter the kernel or wait: they give the GIL up round it. Also what hot methods fall back to. */
#include "py/native.h"

#include <stdlib.h>
#include <string.h>

/* ---- exceptions ---- */

PyObject *native_raise_named(const char *name, PyObject *argument) {
    PyObject *errors = PyImport_ImportModule("memledger.errors");
    PyObject *type = errors ? PyObject_GetAttrString(errors, name) : NULL;
    PyObject *error = !type      ? NULL
                      : argument ? PyObject_CallFunctionObjArgs(type, argument, NULL)
                                 : PyObject_CallFunctionObjArgs(type, NULL);
    if (error) PyErr_SetObject(type, error);
    Py_XDECREF(error);
    Py_XDECREF(type);
    Py_XDECREF(errors);
    Py_XDECREF(argument);
    return NULL;
}

static PyObject *raise_figure(PyObject *message) {
    return message ? native_raise_named("InvalidFigure", message) : NULL;
}

PyObject *native_raise(int status, const char *what) {
    switch (status) {
        case ML_ERR_CLOSED: return native_raise_named("LedgerClosed", NULL);
        case ML_ERR_FIGURE:
            return raise_figure(
                PyUnicode_FromFormat("%s(): the sum of this process's figures must stay within 0 and 2^63-1 bytes, and "
                                     "releasable within held",
                                     what));
        case ML_ERR_MEMORY: return PyErr_NoMemory();
        default:
            return native_raise_named(
                "LedgerError", PyUnicode_FromFormat("%s() ended with status %d, which it never should", what, status));
    }
}

PyObject *native_releasable_above_held(const ml_amounts *amounts) {
    return raise_figure(
        PyUnicode_FromFormat("releasable is a part of held, so it cannot exceed it: expected at most %llu, got %llu",
                             (unsigned long long)amounts->held, (unsigned long long)amounts->releasable));
}

PyObject *native_bad_argument(const char *method, PyObject *name) {
    return PyErr_Format(PyExc_TypeError, "%s() got '%U' twice or does not take it", method, name);
}

/* An int, or something that converts without loss (numpy's ints); no bool, no float. New reference or NULL. */
static PyObject *as_index(PyObject *object, const char *name) {
    if (PyBool_Check(object) || !PyIndex_Check(object)) {
        PyObject *type = PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__name__");
        if (type) PyErr_Format(PyExc_TypeError, "%s: expected bytes as an int, got %U", name, type);
        Py_XDECREF(type);
        return NULL;
    }
    return PyNumber_Index(object);
}

bool native_bytes_slow(PyObject *object, const char *name, uint64_t *out) {
    PyObject *index = as_index(object, name);
    if (!index) return false;
    long long value = PyLong_AsLongLong(index);
    if (value < 0) {
        PyErr_Clear();
        raise_figure(PyUnicode_FromFormat("%s: expected 0 to 2^63-1 bytes, got %R", name, index));
        Py_DECREF(index);
        return false;
    }
    Py_DECREF(index);
    *out = (uint64_t)value;
    return true;
}

bool native_difference_slow(PyObject *object, const char *name, int64_t *out) {
    PyObject *index = as_index(object, name);
    if (!index) return false;
    long long value = PyLong_AsLongLong(index);
    if (value == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        raise_figure(PyUnicode_FromFormat("%s: expected a difference of -2^63 to 2^63-1 bytes, got %R", name, index));
        Py_DECREF(index);
        return false;
    }
    Py_DECREF(index);
    *out = value;
    return true;
}

bool native_seconds(PyObject *object, const char *name, uint64_t *out) {
    double seconds = PyFloat_AsDouble(object);
    if (seconds == -1.0 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError)) return false;
        PyErr_Format(PyExc_TypeError, "%s: expected seconds as a number, got %R", name, object);
        return false;
    }
    if (!(seconds >= 0)) {
        PyErr_Format(PyExc_ValueError, "%s: expected seconds >= 0, got %R", name, object);
        return false;
    }
    *out = seconds > 1e9 ? UINT64_C(1000000000000000000) : (uint64_t)(seconds * 1e9);
    return true;
}

/* ---- recovery ---- */

bool native_note_fork(LedgerObject *ledger) {
    uint64_t forks = ml_ledger_fork_count(ledger->core);
    if (forks == ledger->fork_count) return true;
    ledger->fork_count = forks;
    PyObject *done = PyObject_CallMethod((PyObject *)ledger, "_after_fork", NULL);
    Py_XDECREF(done);
    return done != NULL;
}

bool native_is_joined(LedgerObject *ledger) {
    if (ml_is_forked(ledger->core) && !native_recover(ledger, ML_SLOW_FORK)) return false;
    return native_note_fork(ledger);
}

bool native_recover(LedgerObject *ledger, int status) {
    int result;
    Py_BEGIN_ALLOW_THREADS;
    result = ml_ledger_recover(ledger->core, status);
    Py_END_ALLOW_THREADS;
    if (!native_note_fork(ledger)) return false;
    if (result == ML_OK) return true;
    native_raise(result, "recover");
    return false;
}

/* ---- Ledger ---- */

PyObject *native_ledger_info(PyObject *self, PyObject *unused) {
    ml_ledger_info info;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS;
    ml_ledger_get_info(((LedgerObject *)self)->core, &info);
    Py_END_ALLOW_THREADS;
    return native_info_dict(&info);
}

PyObject *native_ledger_leave(PyObject *self, PyObject *unused) {
    (void)unused;
    Py_BEGIN_ALLOW_THREADS;
    (void)ml_ledger_leave(((LedgerObject *)self)->core);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

/* _wait(timeout, mark=None) */
PyObject *native_ledger_wait(PyObject *self, PyObject *args) {
    PyObject *timeout, *mark_object = Py_None;
    uint64_t ns;
    if (!PyArg_ParseTuple(args, "O|O", &timeout, &mark_object) || !native_seconds(timeout, "timeout", &ns)) return NULL;
    unsigned long long mark = mark_object == Py_None ? 0 : PyLong_AsUnsignedLongLong(mark_object);
    if (PyErr_Occurred()) return NULL;
    ml_ledger *core = ((LedgerObject *)self)->core;
    Py_BEGIN_ALLOW_THREADS;
    if (mark_object == Py_None)
        ml_ledger_wait(core, ns);
    else
        ml_ledger_wait_from(core, mark, ns);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyObject *native_ledger_wake_mark(PyObject *self, PyObject *unused) {
    uint64_t mark;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS;
    mark = ml_ledger_wake_mark(((LedgerObject *)self)->core);
    Py_END_ALLOW_THREADS;
    return PyLong_FromUnsignedLongLong(mark);
}

PyObject *native_ledger_wake(PyObject *self, PyObject *unused) {
    (void)unused;
    Py_BEGIN_ALLOW_THREADS;
    ml_ledger_wake(((LedgerObject *)self)->core);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyObject *native_ledger_tick(PyObject *self, PyObject *unused) {
    ml_tick tick;
    int status;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_ledger_tick(((LedgerObject *)self)->core, &tick);
    Py_END_ALLOW_THREADS;
    if (status != ML_OK) return native_raise(status, "tick");
    return Py_BuildValue("(KdN)", (unsigned long long)tick.due_pools, (double)tick.next_ns / 1e9,
                         PyBool_FromLong((long)tick.changed));
}

PyObject *native_ledger_set_reader(PyObject *self, PyObject *args) {
    unsigned pool;
    int can_read;
    if (!PyArg_ParseTuple(args, "Ip", &pool, &can_read)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    ml_ledger_set_reader(((LedgerObject *)self)->core, pool, can_read != 0);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyObject *native_ledger_set_foreign_layout(PyObject *self, PyObject *present) {
    int truth = PyObject_IsTrue(present);
    if (truth < 0) return NULL;
    ml_ledger_set_foreign_layout(((LedgerObject *)self)->core, truth != 0);
    Py_RETURN_NONE;
}

PyObject *native_ledger_snapshot(PyObject *self, PyObject *pool_object) {
    unsigned long pool = PyLong_AsUnsignedLong(pool_object);
    int status;
    if (pool == (unsigned long)-1 && PyErr_Occurred()) return NULL;
    if (!native_is_joined((LedgerObject *)self)) return NULL;
    ml_snapshot *snapshot = malloc(sizeof *snapshot);
    if (!snapshot) return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS;
    status = ml_pool_snapshot(((LedgerObject *)self)->core, (unsigned)pool, snapshot);
    Py_END_ALLOW_THREADS;
    PyObject *result = status == ML_OK ? native_snapshot_dict(((LedgerObject *)self)->state, snapshot)
                                       : native_raise(status, "snapshot");
    free(snapshot);
    return result;
}

static PyObject *members_of(PyObject *self, unsigned (*list)(ml_ledger *, ml_member *, unsigned)) {
    unsigned count;
    if (!native_is_joined((LedgerObject *)self)) return NULL;
    ml_member *members = malloc(ML_SLOTS_MAX * sizeof *members);
    if (!members) return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS;
    count = list(((LedgerObject *)self)->core, members, ML_SLOTS_MAX);
    Py_END_ALLOW_THREADS;
    PyObject *result = native_members_list(members, count);
    free(members);
    return result;
}

PyObject *native_ledger_members(PyObject *self, PyObject *unused) {
    (void)unused;
    return members_of(self, ml_ledger_members);
}

PyObject *native_ledger_hosts(PyObject *self, PyObject *unused) {
    (void)unused;
    return members_of(self, ml_ledger_hosts);
}

#define FINDINGS_MAX 256

PyObject *native_ledger_check(PyObject *self, PyObject *unused) {
    unsigned count;
    (void)unused;
    ml_finding *findings = malloc(FINDINGS_MAX * sizeof *findings);
    if (!findings) return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS;
    count = ml_ledger_check(((LedgerObject *)self)->core, findings, FINDINGS_MAX);
    Py_END_ALLOW_THREADS;
    PyObject *list = native_findings_list(findings, count, FINDINGS_MAX);
    free(findings);
    return list;
}

/* ---- Device and Claim: what may block ---- */

PyObject *native_claim_slow(PyObject *self, uint64_t bytes, uint64_t replacing, PyObject *ttl) {
    return PyObject_CallMethod(self, "_claim_slow", "KKO", (unsigned long long)bytes, (unsigned long long)replacing,
                               ttl ? ttl : Py_None);
}

/* Runs Python's signal handlers, which otherwise wait for the end of the call, in the main thread. True: one raised.
 * context: the saved thread state. */
static bool handler_raised(void *context) {
    PyThreadState **saved = context;
    PyEval_RestoreThread(*saved);
    bool raised = PyErr_CheckSignals() != 0;
    *saved = PyEval_SaveThread();
    return raised;
}

/* _claim_run(nbytes, replacing, ttl_s, timeout_s) -> (status, Claim | None, free) */
PyObject *native_account_claim_run(PyObject *self_object, PyObject *args) {
    AccountObject *self = (AccountObject *)self_object;
    PyObject *bytes_object, *replacing_object, *ttl, *timeout;
    ml_claim_request request = {0};
    if (!PyArg_ParseTuple(args, "OOOO", &bytes_object, &replacing_object, &ttl, &timeout)) return NULL;
    if (!native_bytes(bytes_object, "nbytes", &request.bytes) ||
        !native_bytes(replacing_object, "replacing", &request.replacing) ||
        !native_seconds(timeout, "timeout", &request.timeout_ns))
        return NULL;
    if (ttl != Py_None && !native_seconds(ttl, "ttl", &request.ttl_ns)) return NULL;
    if (ttl != Py_None && request.ttl_ns == 0) request.ttl_ns = 1; /* 0 s is over at once, not never */
    if (!native_is_joined(self->ledger)) return NULL;
    ml_amounts own;
    ml_account_get(self->account, &own);
    if (request.replacing > own.held)
        return raise_figure(PyUnicode_FromFormat("replacing: expected at most the own held %llu, got %llu",
                                                 (unsigned long long)own.held, (unsigned long long)request.replacing));
    ClaimObject *claim = native_claim_new(self);
    if (!claim) return NULL;
    uint64_t free_bytes = 0;
    int status;
    PyThreadState *saved = PyEval_SaveThread();
    request.stop = (ml_stop){handler_raised, &saved};
    status = ml_claim_wait_run(self->account, &request, &claim->claim, &free_bytes);
    PyEval_RestoreThread(saved);
    if (PyErr_Occurred()) {
        Py_DECREF(claim);
        return NULL;
    }
    if (status < 0) {
        Py_DECREF(claim);
        return native_raise(status, "claim");
    }
    if (status == ML_OK) return Py_BuildValue("(iNO)", status, (PyObject *)claim, Py_None);
    Py_DECREF(claim);
    return Py_BuildValue("(iOK)", status, Py_None, (unsigned long long)free_bytes);
}

static PyObject *device_set_param(PyObject *self_object, PyObject *value, const char *name,
                                  int (*set)(ml_device *, uint64_t)) {
    DeviceObject *self = (DeviceObject *)self_object;
    uint64_t bytes = UINT64_MAX;
    int status;
    if (value != Py_None && !native_bytes(value, name, &bytes)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = set(self->device, bytes);
    Py_END_ALLOW_THREADS;
    if (status != ML_OK) return native_raise(status, name);
    Py_RETURN_NONE;
}

PyObject *native_device_set_headroom(PyObject *self, PyObject *value) {
    return device_set_param(self, value, "headroom", ml_device_set_headroom);
}
PyObject *native_device_set_limit(PyObject *self, PyObject *value) {
    return device_set_param(self, value, "limit", ml_device_set_limit);
}

PyObject *native_device_pools(PyObject *self_object, PyObject *unused) {
    const ml_device *device = ((DeviceObject *)self_object)->device;
    unsigned count = ml_device_level_count(device);
    (void)unused;
    PyObject *tuple = PyTuple_New(count);
    for (unsigned l = 0; tuple && l < count; l++)
        PyTuple_SetItem(tuple, l, PyLong_FromUnsignedLong(ml_device_pool(device, l)));
    return tuple;
}

/* _move(device): from now on this object is that device, with all that was published and claimed through it. */
PyObject *native_device_move(PyObject *self_object, PyObject *to_object) {
    DeviceObject *self = (DeviceObject *)self_object;
    if (!PyObject_TypeCheck(to_object, self->base.ledger->state->device_type)) {
        PyErr_SetString(PyExc_TypeError, "expected a Device");
        return NULL;
    }
    ml_device *from = self->device, *to = ((DeviceObject *)to_object)->device;
    int status;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_device_move(from, to);
    Py_END_ALLOW_THREADS;
    if (status != ML_OK) return native_raise(status, "move");
    self->device = to;
    self->base.account = ml_device_account(to);
    memset(self->cache.tag, 0, sizeof self->cache.tag); /* computed on the old chain */
    self->free_bytes = UINT64_MAX;
    Py_CLEAR(self->free_object); /* the old chain's */
    Py_RETURN_NONE;
}

/* _rebind(device): after its device has moved, an account object points to the account of the same name there. */
PyObject *native_account_rebind(PyObject *self_object, PyObject *device_object) {
    AccountObject *self = (AccountObject *)self_object;
    if (!PyObject_TypeCheck(device_object, self->ledger->state->device_type)) {
        PyErr_SetString(PyExc_TypeError, "expected a Device");
        return NULL;
    }
    ml_account *account = NULL;
    int status = ml_account_open(((DeviceObject *)device_object)->device, self->account->name, &account);
    if (status != ML_OK) return native_raise(status, "account");
    self->account = account;
    Py_RETURN_NONE;
}

PyObject *native_account_amounts(PyObject *self_object, void *unused) {
    ml_amounts a;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS;
    ml_account_get(((AccountObject *)self_object)->account, &a);
    Py_END_ALLOW_THREADS;
    if (!native_note_fork(((AccountObject *)self_object)->ledger)) return NULL;
    return Py_BuildValue("(KKK)", (unsigned long long)a.held, (unsigned long long)a.releasable,
                         (unsigned long long)a.pinned);
}

/* ClaimRefused, made in Python, where members have names. */
static PyObject *refuse(AccountObject *owner, uint64_t bytes, int status) {
    return PyObject_CallMethod((PyObject *)owner, "_refuse", "Ki", (unsigned long long)bytes, status);
}

PyObject *native_claim_resize(PyObject *self_object, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"nbytes", "timeout", NULL};
    ClaimObject *self = (ClaimObject *)self_object;
    PyObject *bytes_object, *timeout = NULL;
    uint64_t bytes, timeout_ns = 0;
    int status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O", names, &bytes_object, &timeout)) return NULL;
    if (!native_bytes(bytes_object, "nbytes", &bytes)) return NULL;
    if (timeout && !native_seconds(timeout, "timeout", &timeout_ns)) return NULL;
    status = ml_claim_resize(&self->claim, bytes);
    if (status == ML_REFUSED || status == ML_WAITING || status == ML_BUSY || status >= ML_SLOW_LOCK) {
        PyThreadState *saved = PyEval_SaveThread();
        status = ml_claim_resize_wait(&self->claim, bytes, timeout_ns, (ml_stop){handler_raised, &saved});
        PyEval_RestoreThread(saved);
        if (PyErr_Occurred()) return NULL;
    }
    if (status < 0) return native_raise(status, "resize");
    if (status != ML_OK) return refuse(self->owner, bytes, status);
    Py_RETURN_NONE;
}

PyObject *native_claim_renew(PyObject *self_object, PyObject *ttl) {
    ClaimObject *self = (ClaimObject *)self_object;
    uint64_t ns = 0;
    int status;
    if (ttl != Py_None && !native_seconds(ttl, "ttl", &ns)) return NULL;
    if (ttl != Py_None && ns == 0) ns = 1;
    for (;;) {
        status = ml_claim_renew(&self->claim, ns);
        if (status < ML_SLOW_LOCK) break;
        if (!native_recover(self->owner->ledger, status)) return NULL;
    }
    if (status < 0) return native_raise(status, "renew");
    if (status != ML_OK) return refuse(self->owner, self->claim.size_bytes, status);
    Py_RETURN_NONE;
}

/* ---- module functions ---- */

static PyObject *image_parts(module_state *state, ml_image *image) {
    ml_snapshot *snapshot = malloc(sizeof *snapshot);
    ml_member *members = malloc(ML_SLOTS_MAX * sizeof *members);
    ml_finding *findings = malloc(FINDINGS_MAX * sizeof *findings);
    PyObject *pools = PyList_New(0), *result = NULL;
    if (!snapshot || !members || !findings || !pools) {
        PyErr_NoMemory();
        goto done;
    }
    uint64_t used = ml_image_pools(image);
    for (unsigned p = 0; p < ML_POOLS_MAX; p++) {
        if (!(used >> p & 1) || ml_image_snapshot(image, p, snapshot) != ML_OK) continue;
        PyObject *pool = native_snapshot_dict(state, snapshot);
        int failed = !pool || PyList_Append(pools, pool) != 0;
        Py_XDECREF(pool);
        if (failed) goto done;
    }
    unsigned member_count, finding_count;
    Py_BEGIN_ALLOW_THREADS;
    member_count = ml_image_members(image, members, ML_SLOTS_MAX);
    finding_count = ml_image_check(image, findings, FINDINGS_MAX);
    Py_END_ALLOW_THREADS;
    result = Py_BuildValue("{s:O,s:N,s:N}", "pools", pools, "members", native_members_list(members, member_count),
                           "findings", native_findings_list(findings, finding_count, FINDINGS_MAX));
done:
    Py_XDECREF(pools);
    free(snapshot);
    free(members);
    free(findings);
    return result;
}

/* A converter for "O&": a path, or None, which leaves *out NULL. */
int native_optional_path(PyObject *object, void *out) {
    return object == Py_None ? 1 : PyUnicode_FSConverter(object, out);
}

/* read_image(path) -> (info, {pools, members, findings} | None) */
PyObject *native_module_read_image(PyObject *module, PyObject *args) {
    PyObject *path = NULL;
    ml_image *image;
    ml_ledger_info info;
    int status;
    if (!PyArg_ParseTuple(args, "|O&", native_optional_path, &path)) return NULL;
    const char *text = path ? PyBytes_AsString(path) : NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_image_open(text, &image, &info);
    Py_END_ALLOW_THREADS;
    Py_XDECREF(path);
    if (status != ML_OK) return Py_BuildValue("(NO)", native_info_dict(&info), Py_None);
    PyObject *parts = image_parts(PyModule_GetState(module), image);
    ml_image_close(image);
    return parts ? Py_BuildValue("(NN)", native_info_dict(&info), parts) : NULL;
}

/* Is any slot's lock of the segment file at `path` held? True, False, or None where it cannot be told. */
PyObject *native_module_has_live_members(PyObject *module, PyObject *args) {
    PyObject *path = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "O&", PyUnicode_FSConverter, &path)) return NULL;
    int answer;
    Py_BEGIN_ALLOW_THREADS;
    answer = ml_path_has_owners(PyBytes_AsString(path));
    Py_END_ALLOW_THREADS;
    Py_DECREF(path);
    if (answer < 0) Py_RETURN_NONE;
    return PyBool_FromLong(answer);
}

PyObject *native_module_default_path(PyObject *module, PyObject *unused) {
    char path[OS_PATH_BYTES];
    (void)module;
    (void)unused;
    if (os_segment_default_path(path, ML_LAYOUT_MAJOR) != OS_OK) Py_RETURN_NONE;
    return PyUnicode_DecodeFSDefault(path);
}

PyObject *native_module_unlink(PyObject *module, PyObject *args) {
    PyObject *path = NULL;
    os_error error = {0, ""};
    (void)module;
    if (!PyArg_ParseTuple(args, "O&", PyUnicode_FSConverter, &path)) return NULL;
    os_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = os_segment_unlink(PyBytes_AsString(path), &error);
    Py_END_ALLOW_THREADS;
    Py_DECREF(path);
    return Py_BuildValue("(iis)", (int)status, error.code, error.call ? error.call : "");
}
