/* Groups, asks, windows and pins for Python: cold, the GIL is given up round what may block. */
#include "py/native.h"

#include <string.h>

const char *const native_outcome_names[5] = {"none", "done", "partial", "refused", "busy"};

static ml_ledger *core_of(PyObject *self) {
    return ((LedgerObject *)self)->core;
}

/* _follow(slot | None, generation) */
PyObject *native_ledger_follow(PyObject *self, PyObject *args) {
    PyObject *slot_object;
    unsigned long long generation;
    if (!PyArg_ParseTuple(args, "OK", &slot_object, &generation)) return NULL;
    unsigned long slot = slot_object == Py_None ? ML_SLOTS_MAX : PyLong_AsUnsignedLong(slot_object);
    if (PyErr_Occurred()) return NULL;
    int status;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_group_follow(core_of(self), (unsigned)slot, generation);
    Py_END_ALLOW_THREADS;
    return status == ML_OK ? Py_NewRef(Py_None) : native_raise(status, "follow");
}

/* (slot, generation) of the leader, or None */
PyObject *native_ledger_leader(PyObject *self, PyObject *unused) {
    if (!native_is_joined((LedgerObject *)self)) return NULL;
    uint64_t generation = 0;
    (void)unused;
    unsigned slot;
    Py_BEGIN_ALLOW_THREADS;
    slot = ml_group_leader(core_of(self), &generation);
    Py_END_ALLOW_THREADS;
    if (slot >= ML_SLOTS_MAX) Py_RETURN_NONE;
    return Py_BuildValue("(IK)", slot, (unsigned long long)generation);
}

static PyObject *led(int status, const char *what) {
    if (status < 0) return native_raise(status, what);
    return PyBool_FromLong(status == ML_OK);
}

PyObject *native_ledger_prompt_begin(PyObject *self, PyObject *id_object) {
    if (!native_is_joined((LedgerObject *)self)) return NULL;
    const char *id = PyUnicode_AsUTF8AndSize(id_object, NULL);
    if (!id) return NULL;
    int status;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_prompt_begin(core_of(self), id);
    Py_END_ALLOW_THREADS;
    return led(status, "prompt_begin");
}

PyObject *native_ledger_prompt_end(PyObject *self, PyObject *unused) {
    if (!native_is_joined((LedgerObject *)self)) return NULL;
    int status;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_prompt_end(core_of(self));
    Py_END_ALLOW_THREADS;
    return led(status, "prompt_end");
}

/* (sequence, id, active) or None */
PyObject *native_ledger_prompt(PyObject *self, PyObject *unused) {
    if (!native_is_joined((LedgerObject *)self)) return NULL;
    ml_prompt prompt;
    (void)unused;
    if (ml_prompt_get(core_of(self), &prompt) != ML_OK) Py_RETURN_NONE;
    PyObject *id = PyUnicode_DecodeUTF8(prompt.id, (Py_ssize_t)strlen(prompt.id), "replace");
    return Py_BuildValue("(KNN)", (unsigned long long)prompt.sequence, id, PyBool_FromLong(prompt.active));
}

/* _request_free(flags, all) -> bool: False where there is no group */
PyObject *native_ledger_request_free(PyObject *self, PyObject *args) {
    if (!native_is_joined((LedgerObject *)self)) return NULL;
    unsigned flags;
    int all, status;
    if (!PyArg_ParseTuple(args, "Ip", &flags, &all)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_free_request(core_of(self), flags, all != 0);
    Py_END_ALLOW_THREADS;
    return led(status, "request_free");
}

PyObject *native_ledger_free_epoch(PyObject *self, PyObject *unused) {
    if (!native_is_joined((LedgerObject *)self)) return NULL;
    unsigned flags = 0;
    (void)unused;
    uint64_t epoch = ml_free_epoch(core_of(self), &flags);
    return Py_BuildValue("(KI)", (unsigned long long)epoch, flags);
}

PyObject *native_ledger_count(PyObject *self, PyObject *args) {
    if (!native_is_joined((LedgerObject *)self)) return NULL;
    unsigned counter;
    unsigned long long n = 1;
    if (!PyArg_ParseTuple(args, "I|K", &counter, &n)) return NULL;
    int status;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_ledger_count(core_of(self), counter, n);
    Py_END_ALLOW_THREADS;
    return status == ML_OK ? Py_NewRef(Py_None) : native_raise(status, "count");
}

/* ---- asks ---- */

/* _asking(True) -> ticket; _asking(False) */
PyObject *native_ledger_asking(PyObject *self, PyObject *begin) {
    if (!native_is_joined((LedgerObject *)self)) return NULL;
    int truth = PyObject_IsTrue(begin);
    if (truth < 0) return NULL;
    uint64_t ticket = 0;
    Py_BEGIN_ALLOW_THREADS;
    if (truth)
        ticket = ml_asking_begin(core_of(self));
    else
        ml_asking_end(core_of(self));
    Py_END_ALLOW_THREADS;
    return PyLong_FromUnsignedLongLong(ticket);
}

/* _ask_send(pool, victim, nbytes) -> (status, ask as opaque bytes) */
PyObject *native_ledger_ask_send(PyObject *self, PyObject *args) {
    if (!native_is_joined((LedgerObject *)self)) return NULL;
    unsigned pool, victim;
    PyObject *bytes_object;
    uint64_t bytes;
    ml_ask ask = {0};
    if (!PyArg_ParseTuple(args, "IIO", &pool, &victim, &bytes_object)) return NULL;
    if (!native_bytes(bytes_object, "nbytes", &bytes)) return NULL;
    int status;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_ask_send(core_of(self), pool, victim, bytes, &ask);
    Py_END_ALLOW_THREADS;
    if (status < 0) return native_raise(status, "ask");
    return Py_BuildValue("(iy#)", status, (const char *)&ask, (Py_ssize_t)sizeof ask);
}

static bool ask_from(PyObject *object, void *out, size_t size) {
    char *bytes;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(object, &bytes, &length) != 0) return false;
    if (length != (Py_ssize_t)size) {
        PyErr_SetString(PyExc_ValueError, "expected what _ask_send() or _request_next() returned");
        return false;
    }
    memcpy(out, bytes, size);
    return true;
}

/* _ask_poll(ask) -> (status, outcome, bytes) */
PyObject *native_ledger_ask_poll(PyObject *self, PyObject *object) {
    if (!native_is_joined((LedgerObject *)self)) return NULL;
    ml_ask ask;
    int status, outcome = 0;
    uint64_t bytes = 0;
    if (!ask_from(object, &ask, sizeof ask)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_ask_poll(core_of(self), &ask, &outcome, &bytes);
    Py_END_ALLOW_THREADS;
    if (status < 0) return native_raise(status, "ask");
    return Py_BuildValue("(isK)", status, native_outcome_names[outcome], (unsigned long long)bytes);
}

PyObject *native_ledger_ask_withdraw(PyObject *self, PyObject *object) {
    if (!native_is_joined((LedgerObject *)self)) return NULL;
    ml_ask ask;
    int status;
    if (!ask_from(object, &ask, sizeof ask)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_ask_withdraw(core_of(self), &ask);
    Py_END_ALLOW_THREADS;
    if (status < 0) return native_raise(status, "ask");
    return PyBool_FromLong(status == ML_OK);
}

/* _request_next() -> (request as opaque bytes, pool, nbytes, asker) or None */
PyObject *native_ledger_request_next(PyObject *self, PyObject *unused) {
    if (!native_is_joined((LedgerObject *)self)) return NULL;
    ml_request request;
    int status;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_request_next(core_of(self), &request);
    Py_END_ALLOW_THREADS;
    if (status < 0) return native_raise(status, "serve");
    if (status != ML_OK) Py_RETURN_NONE;
    return Py_BuildValue("(y#IKI)", (const char *)&request, (Py_ssize_t)sizeof request, request.pool,
                         (unsigned long long)request.bytes, request.asker);
}

/* _request_answer(request, outcome, nbytes) -> bool: False when the ask was taken back */
PyObject *native_ledger_request_answer(PyObject *self, PyObject *args) {
    if (!native_is_joined((LedgerObject *)self)) return NULL;
    PyObject *object, *bytes_object;
    const char *outcome_name;
    ml_request request;
    uint64_t bytes;
    int status, outcome = 0;
    if (!PyArg_ParseTuple(args, "OsO", &object, &outcome_name, &bytes_object)) return NULL;
    if (!ask_from(object, &request, sizeof request) || !native_bytes(bytes_object, "nbytes", &bytes)) return NULL;
    for (int i = 1; i <= ML_ANSWER_BUSY; i++)
        if (strcmp(native_outcome_names[i], outcome_name) == 0) outcome = i;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_request_answer(core_of(self), &request, outcome, bytes);
    Py_END_ALLOW_THREADS;
    if (status < 0) return native_raise(status, "serve");
    return PyBool_FromLong(status == ML_OK);
}

/* _victims(pool) -> [(slot, generation, held, releasable, asking, window, prompt)] */
PyObject *native_ledger_victims(PyObject *self, PyObject *pool_object) {
    if (!native_is_joined((LedgerObject *)self)) return NULL;
    ml_victim victims[ML_SLOTS_MAX];
    unsigned long pool = PyLong_AsUnsignedLong(pool_object);
    if (pool == (unsigned long)-1 && PyErr_Occurred()) return NULL;
    unsigned count;
    Py_BEGIN_ALLOW_THREADS;
    count = ml_ask_victims(core_of(self), (unsigned)pool, victims, ML_SLOTS_MAX);
    Py_END_ALLOW_THREADS;
    PyObject *list = PyList_New(0);
    for (unsigned i = 0; list && i < count; i++) {
        const ml_victim *v = &victims[i];
        PyObject *item =
            Py_BuildValue("(IKKKKNN)", v->slot, (unsigned long long)v->generation, (unsigned long long)v->held,
                          (unsigned long long)v->releasable, (unsigned long long)v->asking, PyBool_FromLong(v->window),
                          PyBool_FromLong(v->prompt));
        if (!item || PyList_Append(list, item) != 0) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

/* ---- windows and pins ---- */

/* _window_open(max_s) -> seconds waited, or None when others kept opening */
PyObject *native_device_window_open(PyObject *self, PyObject *seconds) {
    if (!native_is_joined(((DeviceObject *)self)->base.ledger)) return NULL;
    uint64_t max_ns, waited_ns = 0;
    int status;
    if (!native_seconds(seconds, "max_s", &max_ns)) return NULL;
    ml_device *device = ((DeviceObject *)self)->device;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_window_open(device, max_ns, &waited_ns);
    Py_END_ALLOW_THREADS;
    if (status < 0) return native_raise(status, "window");
    if (status != ML_OK) Py_RETURN_NONE;
    return PyFloat_FromDouble((double)waited_ns / 1e9);
}

PyObject *native_device_window_close(PyObject *self, PyObject *unused) {
    if (!native_is_joined(((DeviceObject *)self)->base.ledger)) return NULL;
    ml_device *device = ((DeviceObject *)self)->device;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS;
    ml_window_close(device);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyObject *native_device_wait_clear(PyObject *self, PyObject *seconds) {
    if (!native_is_joined(((DeviceObject *)self)->base.ledger)) return NULL;
    uint64_t ns;
    int status;
    if (!native_seconds(seconds, "timeout", &ns)) return NULL;
    ml_device *device = ((DeviceObject *)self)->device;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_window_wait_clear(device, ns);
    Py_END_ALLOW_THREADS;
    return PyBool_FromLong(status == ML_OK);
}

PyObject *native_device_pin_room(PyObject *self, PyObject *unused) {
    if (!native_is_joined(((DeviceObject *)self)->base.ledger)) return NULL;
    uint64_t bytes = 0;
    int status;
    (void)unused;
    ml_device *device = ((DeviceObject *)self)->device;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_device_pin_room(device, &bytes);
    Py_END_ALLOW_THREADS;
    if (status < 0) return native_raise(status, "pin_room");
    if (status != ML_OK) Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(bytes);
}

PyObject *native_device_set_floor(PyObject *self, PyObject *value) {
    if (!native_is_joined(((DeviceObject *)self)->base.ledger)) return NULL;
    uint64_t bytes;
    int status;
    if (!native_bytes(value, "floor", &bytes)) return NULL;
    ml_device *device = ((DeviceObject *)self)->device;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_device_set_floor(device, bytes);
    Py_END_ALLOW_THREADS;
    return status == ML_OK ? Py_NewRef(Py_None) : native_raise(status, "floor");
}

/* _set_level_limit(level, nbytes | None) */
PyObject *native_device_set_level_limit(PyObject *self, PyObject *args) {
    if (!native_is_joined(((DeviceObject *)self)->base.ledger)) return NULL;
    unsigned level;
    PyObject *value;
    uint64_t bytes = UINT64_MAX;
    int status;
    if (!PyArg_ParseTuple(args, "IO", &level, &value)) return NULL;
    if (value != Py_None && !native_bytes(value, "limit", &bytes)) return NULL;
    ml_device *device = ((DeviceObject *)self)->device;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_device_set_level_limit(device, level, bytes);
    Py_END_ALLOW_THREADS;
    return status == ML_OK ? Py_NewRef(Py_None) : native_raise(status, "limit");
}

/* ---- jobs ---- */

PyObject *native_job_interrupt(PyObject *self_object, PyObject *unused) {
    JobObject *self = (JobObject *)self_object;
    int status;
    (void)unused;
    if (ml_is_forked(self->ledger->core) && !native_recover(self->ledger, ML_SLOW_FORK)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_group_interrupt(self->ledger->core, self->key);
    Py_END_ALLOW_THREADS;
    return led(status, "interrupt");
}

PyObject *native_module_job_key(PyObject *module, PyObject *id_object) {
    const char *id = PyUnicode_AsUTF8AndSize(id_object, NULL);
    (void)module;
    return id ? PyLong_FromUnsignedLongLong(ml_job_key(id)) : NULL;
}
