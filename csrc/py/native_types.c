/* The types of memledger._native: how their objects are made and freed, and which method is which. */
#include "py/native.h"

#include <string.h>

#define FAST(f) ((PyCFunction)(void (*)(void))(f))
#define KEYWORDS (METH_FASTCALL | METH_KEYWORDS)

static void object_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc tp_free = (freefunc)PyType_GetSlot(type, Py_tp_free);
    tp_free(self);
    Py_DECREF(type);
}

static PyObject *object_new(PyTypeObject *type) {
    allocfunc tp_alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return tp_alloc(type, 0);
}

/* The state of the module that made `type` or one of its bases. */
static module_state *state_of(PyTypeObject *type) {
    while (type) {
        module_state *state = PyType_GetModuleState(type);
        if (state) return state;
        PyErr_Clear();
        type = (PyTypeObject *)PyType_GetSlot(type, Py_tp_base);
    }
    return NULL;
}

/* Ledger(path, label, role, program, version, slots) */
static PyObject *ledger_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"path", "label", "role", "program", "version", "slots", "group", NULL};
    PyObject *path = NULL;
    ml_join_options options = {0};
    unsigned long long group = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O&zizzIK", names, native_optional_path, &path, &options.label,
                                     &options.role, &options.program, &options.version, &options.slots, &group))
        return NULL;
    if (path) options.path = PyBytes_AsString(path);
    options.group = group;
    LedgerObject *self = (LedgerObject *)object_new(type);
    int status = ML_ERR_MEMORY;
    if (self) {
        self->state = state_of(type);
        Py_BEGIN_ALLOW_THREADS;
        status = ml_ledger_join(&options, &self->core);
        Py_END_ALLOW_THREADS;
    }
    Py_XDECREF(path);
    if (status == ML_OK) return (PyObject *)self;
    Py_XDECREF(self);
    if (status == ML_ERR_MEMORY) return PyErr_NoMemory();
    return PyErr_Format(PyExc_ValueError, "expected a path under %d bytes, a role of 0..2 and at most %d slots",
                        ML_PATH_BYTES, ML_SLOTS_MAX);
}

/* Unless it was left, the handle and its slot stay: objects are also dropped while the interpreter ends, and the driver
 * has this process's bytes until the very end. Who wants to leave calls leave(). */
static void ledger_dealloc(PyObject *self) {
    /* Devices, accounts, claims and calls on their way all hold a reference: nobody is left who could use it. */
    if (((LedgerObject *)self)->core) ml_ledger_free(((LedgerObject *)self)->core);
    object_free(self);
}

static bool parse_level(PyObject *item, ml_pool_spec *out) {
    PyObject *aliases;
    unsigned long long largest;
    memset(out, 0, sizeof *out);
    if (!PyArg_ParseTuple(item, "sOiK;a level is (key, aliases, kind, largest_bytes)", &out->key, &aliases, &out->kind,
                          &largest))
        return false;
    out->largest_bytes = largest;
    Py_ssize_t count = PyTuple_Size(aliases);
    if (count < 0 || count > ML_ALIASES_MAX) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "expected at most %d aliases, got %zd", ML_ALIASES_MAX, count);
        return false;
    }
    for (Py_ssize_t a = 0; a < count; a++) {
        /* Points into the str object, which the caller's tuple keeps alive. */
        out->aliases[a] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(aliases, a), NULL);
        if (!out->aliases[a]) return false;
    }
    return true;
}

/* Device(ledger, levels) */
static PyObject *device_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *ledger, *levels;
    ml_pool_spec specs[ML_LEVELS_MAX];
    module_state *state = state_of(type);
    (void)kwargs;
    if (!state || !PyArg_ParseTuple(args, "O!O", state->ledger_type, &ledger, &levels)) return NULL;
    Py_ssize_t count = PyTuple_Size(levels);
    if (count < 0) return NULL;
    if (count < 1 || count > ML_LEVELS_MAX)
        return PyErr_Format(PyExc_ValueError, "expected 1 to %d levels, got %zd", ML_LEVELS_MAX, count);
    for (Py_ssize_t l = 0; l < count; l++)
        if (!parse_level(PyTuple_GetItem(levels, l), &specs[l])) return NULL;
    ml_device *device = NULL;
    int status;
    ml_ledger *core = ((LedgerObject *)ledger)->core;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_device_open(core, specs, (unsigned)count, &device);
    Py_END_ALLOW_THREADS;
    if (status == ML_ERR_ARGUMENT)
        return PyErr_Format(
            PyExc_ValueError,
            "bad levels: keys of 1 to %d bytes without control characters, kinds of 0..4, no pool twice",
            ML_KEY_BYTES - 1);
    if (status == ML_FULL)
        return native_raise_named(
            "LedgerError",
            PyUnicode_FromFormat("this process has opened %d pools, and can open no more", ML_LOCAL_POOLS_MAX));
    if (status != ML_OK) return native_raise(status, "device");
    if (!native_note_fork((LedgerObject *)ledger)) return NULL;
    DeviceObject *self = (DeviceObject *)object_new(type);
    if (!self) return NULL;
    self->device = device;
    self->base.account = ml_device_account(device);
    Py_INCREF(ledger);
    self->base.ledger = (LedgerObject *)ledger;
    return (PyObject *)self;
}

static void device_dealloc(PyObject *self_object) {
    DeviceObject *self = (DeviceObject *)self_object;
    Py_XDECREF(self->free_object);
    Py_XDECREF(self->cache.available);
    Py_XDECREF(self->cache.budget);
    Py_XDECREF(self->cache.claimed_by_others);
    Py_XDECREF(self->cache.total);
    Py_XDECREF(self->cache.tuple);
    Py_XDECREF(self->base.ledger);
    object_free(self_object);
}

/* Account(device, name) */
static PyObject *account_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *device_object;
    const char *name;
    module_state *state = state_of(type);
    (void)kwargs;
    if (!state || !PyArg_ParseTuple(args, "O!s", state->device_type, &device_object, &name)) return NULL;
    DeviceObject *device = (DeviceObject *)device_object;
    ml_account *account = NULL;
    int status;
    Py_BEGIN_ALLOW_THREADS;
    status = ml_account_open(device->device, name, &account);
    Py_END_ALLOW_THREADS;
    if (status == ML_ERR_ARGUMENT)
        return PyErr_Format(PyExc_ValueError, "expected a name of 1 to 31 bytes, got '%s'", name);
    if (status != ML_OK) return native_raise(status, "account");
    AccountObject *self = (AccountObject *)object_new(type);
    if (!self) return NULL;
    self->account = account;
    Py_INCREF(device->base.ledger);
    self->ledger = device->base.ledger;
    return (PyObject *)self;
}

static void account_dealloc(PyObject *self) {
    Py_XDECREF(((AccountObject *)self)->ledger);
    object_free(self);
}

ClaimObject *native_claim_new(AccountObject *owner) {
    ClaimObject *claim = (ClaimObject *)object_new(owner->ledger->state->claim_type);
    if (!claim) return NULL;
    Py_INCREF(owner);
    claim->owner = owner;
    return claim;
}

/* A claim that nobody can settle any more is cancelled, or its bytes would stay promised for the life of the process.
 */
static void claim_dealloc(PyObject *self_object) {
    ClaimObject *self = (ClaimObject *)self_object;
    if (self->claim.link) {
        ml_ledger *core = self->owner->ledger->core;
        Py_BEGIN_ALLOW_THREADS;
        /* In a forked child the claim is the parent's: giving it back is not ours, and no reason to join. */
        int status = ml_is_forked(core) ? ML_OK : ML_SLOW_LOCK;
        for (int i = 0; i < 1000 && status >= ML_SLOW_LOCK; i++) {
            status = ml_claim_cancel(&self->claim);
            if (status >= ML_SLOW_LOCK) (void)ml_ledger_recover(core, status);
        }
        Py_END_ALLOW_THREADS;
    }
    /* Whatever came of it: the ledger must not point into freed memory, and housekeeping may be unlinking it just now.
     */
    if (self->claim.account) ml_claim_forget(&self->claim);
    Py_XDECREF(self->owner);
    object_free(self_object);
}

static PyObject *claim_get_checked(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong((long)((ClaimObject *)self)->claim.checked);
}
static PyObject *claim_get_expired(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong((long)((ClaimObject *)self)->claim.expired);
}
static PyObject *claim_get_size(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(((ClaimObject *)self)->claim.size_bytes);
}
static PyObject *claim_get_open(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(((ClaimObject *)self)->claim.open_bytes);
}
static PyObject *claim_get_ended(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(((ClaimObject *)self)->claim.link == NULL);
}

static PyObject *claim_repr(PyObject *self_object) {
    const ClaimObject *self = (const ClaimObject *)self_object;
    const char *state = self->claim.expired ? "expired" : self->claim.link ? "open" : "ended";
    return PyUnicode_FromFormat("<memledger.Claim on '%s' size=%llu open=%llu %s%s>",
                                self->owner->account->device->level[0]->key, (unsigned long long)self->claim.size_bytes,
                                (unsigned long long)self->claim.open_bytes, state,
                                self->claim.checked ? "" : " not checked");
}

static PyGetSetDef account_getset[] = {
    {"amounts", native_account_amounts, NULL, "(held, releasable, pinned) as published", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyGetSetDef claim_getset[] = {
    {"checked", claim_get_checked, NULL, "False: granted without a check, since there was nothing to check against",
     NULL},
    {"expired", claim_get_expired, NULL, "True: the ttl has passed and the rest was dropped", NULL},
    {"size", claim_get_size, NULL, "Bytes asked for", NULL},
    {"open", claim_get_open, NULL, "Bytes of those that have not landed", NULL},
    {"ended", claim_get_ended, NULL, "True once settled, cancelled or expired", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMethodDef ledger_methods[] = {
    {"_info", native_ledger_info, METH_NOARGS, NULL},
    {"_leave", native_ledger_leave, METH_NOARGS, NULL},
    {"_wait", native_ledger_wait, METH_VARARGS, NULL},
    {"_wake_mark", native_ledger_wake_mark, METH_NOARGS, NULL},
    {"_wake", native_ledger_wake, METH_NOARGS, NULL},
    {"_tick", native_ledger_tick, METH_NOARGS, NULL},
    {"_set_reader", native_ledger_set_reader, METH_VARARGS, NULL},
    {"_set_foreign_layout", native_ledger_set_foreign_layout, METH_O, NULL},
    {"_reading", native_ledger_reading, METH_O, NULL},
    {"_reading_begin", native_ledger_reading_begin, METH_VARARGS, NULL},
    {"_reading_end", native_ledger_reading_end, METH_VARARGS, NULL},
    {"_reading_settle", native_ledger_reading_settle, METH_O, NULL},
    {"_reading_local", native_ledger_reading_local, METH_VARARGS, NULL},
    {"_sweep_begin", native_ledger_sweep_begin, METH_O, NULL},
    {"_sweep_commit", native_ledger_sweep_commit, METH_O, NULL},
    {"_snapshot", native_ledger_snapshot, METH_O, NULL},
    {"_members", native_ledger_members, METH_NOARGS, NULL},
    {"_check", native_ledger_check, METH_NOARGS, NULL},
    {"_hosts", native_ledger_hosts, METH_NOARGS, NULL},
    {"_follow", native_ledger_follow, METH_VARARGS, NULL},
    {"_leader", native_ledger_leader, METH_NOARGS, NULL},
    {"_prompt_begin", native_ledger_prompt_begin, METH_O, NULL},
    {"_prompt_end", native_ledger_prompt_end, METH_NOARGS, NULL},
    {"_prompt", native_ledger_prompt, METH_NOARGS, NULL},
    {"_request_free", native_ledger_request_free, METH_VARARGS, NULL},
    {"_free_epoch", native_ledger_free_epoch, METH_NOARGS, NULL},
    {"_count", native_ledger_count, METH_VARARGS, NULL},
    {"_asking", native_ledger_asking, METH_O, NULL},
    {"_ask_send", native_ledger_ask_send, METH_VARARGS, NULL},
    {"_ask_poll", native_ledger_ask_poll, METH_O, NULL},
    {"_ask_withdraw", native_ledger_ask_withdraw, METH_O, NULL},
    {"_request_next", native_ledger_request_next, METH_NOARGS, NULL},
    {"_request_answer", native_ledger_request_answer, METH_VARARGS, NULL},
    {"_victims", native_ledger_victims, METH_O, NULL},
    {"pending", native_ledger_pending, METH_NOARGS,
     "pending() -> int\n\nFlags: ASK 1, INTERRUPT 2, FREE 4, PROMPT 8. 0: nothing wants attention. Hot."},
    {"interrupted", native_ledger_interrupted, METH_NOARGS,
     "interrupted() -> bool\n\nIs my group's current job interrupted? Not consumed by reading. Hot."},
    {NULL, NULL, 0, NULL}};

static PyMethodDef account_methods[] = {
    {"publish", FAST(native_account_publish), KEYWORDS,
     "publish(held, *, releasable=0, pinned=0)\n\nReplaces this account's three figures (bytes) in one visible step "
     "per level. Leaves claims alone. Raises InvalidFigure, and changes nothing, for releasable above held. Hot: about "
     "five empty calls."},
    {"add", FAST(native_account_add), KEYWORDS,
     "add(held=0, *, releasable=0, pinned=0)\n\nPublishes by signed difference (bytes). Raises InvalidFigure, and "
     "changes nothing, where a figure would fall below 0. Hot, as publish."},
    {"try_claim", FAST(native_account_try_claim), KEYWORDS,
     "try_claim(nbytes, *, replacing=0, ttl=None) -> Claim | None\n\nClaims nbytes at once or not at all: None when "
     "they do not fit, or earlier waiters have the room. replacing and ttl (seconds) as in claim(). Hot, unless a "
     "reading is due or it would be refused: then the source is asked and the dead are swept first."},
    {"_claim_run", native_account_claim_run, METH_VARARGS, NULL},
    {"_rebind", native_account_rebind, METH_O, NULL},
    {NULL, NULL, 0, NULL}};

static PyMethodDef device_methods[] = {
    {"free", native_device_free, METH_NOARGS,
     "free() -> int | None\n\nBytes that this process may take now; None when unknown (see figures().reason). Own open "
     "claims are not taken off. At most one unit (4 KiB) per member below the exact sum. Hot: an empty call and a few "
     "nanoseconds while nothing was published."},
    {"available", native_device_available, METH_NOARGS,
     "available() -> int | None\n\nBytes that there would be if every member gave back what it can; None when unknown. "
     "Hot."},
    {"budget", native_device_budget, METH_NOARGS,
     "budget() -> int | None\n\nBytes that this process may own in all: free and what it holds; None when unknown. "
     "Hot."},
    {"total", native_device_total, METH_NOARGS,
     "total() -> int | None\n\nBytes that can be used: the source's total less what it reserves and the headroom, or "
     "the configured total; None when unknown. Hot."},
    {"claimed_by_others", native_device_claimed_by_others, METH_NOARGS,
     "claimed_by_others() -> int\n\nBytes promised to other members and not yet landed. Hot."},
    {"figures", native_device_figures, METH_NOARGS,
     "figures() -> Figures\n\nEverything, from one scan of the members' records. Hot: tens of nanoseconds unchanged, "
     "else a cache line per publisher."},
    {"_empty", native_device_empty, METH_NOARGS, "Does nothing: the floor in benchmarks."},
    {"_set_headroom", native_device_set_headroom, METH_O, NULL},
    {"_set_limit", native_device_set_limit, METH_O, NULL},
    {"_pools", native_device_pools, METH_NOARGS, NULL},
    {"_move", native_device_move, METH_O, NULL},
    {"_window_open", native_device_window_open, METH_O, NULL},
    {"_window_close", native_device_window_close, METH_NOARGS, NULL},
    {"_wait_clear", native_device_wait_clear, METH_O, NULL},
    {"_pin_room", native_device_pin_room, METH_NOARGS, NULL},
    {"_set_floor", native_device_set_floor, METH_O, NULL},
    {"_set_level_limit", native_device_set_level_limit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};

static PyMethodDef claim_methods[] = {
    {"publish", FAST(native_claim_publish), KEYWORDS,
     "publish(held, *, releasable=..., pinned=...)\n\nAbsolute publish that this claim pays for: as held grows the "
     "claim shrinks, and the reverse. Bytes; what is not given stays as it is. Growth above the claim, or after its "
     "end, is published all the same: the memory exists. Hot."},
    {"settle", FAST(native_claim_settle), KEYWORDS,
     "settle(held, *, releasable=..., pinned=...)\n\nAs publish, and the rest of the claim is dropped; it has ended "
     "then. Hot."},
    {"cancel", native_claim_cancel, METH_NOARGS,
     "cancel()\n\nDrops what has not landed. Harmless when it has ended. Hot."},
    {"resize", FAST(native_claim_resize), METH_VARARGS | METH_KEYWORDS,
     "resize(nbytes, timeout=0)\n\nChanges the size to nbytes; growth is decided like a claim of the difference, with "
     "up to timeout seconds of waiting. Raises ClaimRefused, also once the claim has ended or expired, and then "
     "nothing has changed."},
    {"renew", native_claim_renew, METH_O,
     "renew(ttl)\n\nSeconds from now, or None for no end. Raises ClaimRefused once the claim has ended or expired."},
    {"__enter__", native_claim_enter, METH_NOARGS, NULL},
    {"__exit__", FAST(native_claim_exit), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL}};

static PyType_Slot ledger_slots[] = {{Py_tp_new, (void *)ledger_new},
                                     {Py_tp_dealloc, (void *)ledger_dealloc},
                                     {Py_tp_methods, ledger_methods},
                                     {Py_tp_doc, "A joined handle; memledger.join() makes it."},
                                     {0, NULL}};
static PyType_Slot account_slots[] = {{Py_tp_new, (void *)account_new},
                                      {Py_tp_dealloc, (void *)account_dealloc},
                                      {Py_tp_methods, account_methods},
                                      {Py_tp_getset, account_getset},
                                      {Py_tp_doc, "A named part of what this process publishes."},
                                      {0, NULL}};
static PyType_Slot device_slots[] = {{Py_tp_new, (void *)device_new},
                                     {Py_tp_dealloc, (void *)device_dealloc},
                                     {Py_tp_methods, device_methods},
                                     {Py_tp_doc, "A chain of pools; Ledger.device() makes it."},
                                     {0, NULL}};
static PyType_Slot claim_slots[] = {{Py_tp_dealloc, (void *)claim_dealloc},
                                    {Py_tp_repr, (void *)claim_repr},
                                    {Py_tp_methods, claim_methods},
                                    {Py_tp_getset, claim_getset},
                                    {Py_tp_doc, "Bytes promised before they are allocated."},
                                    {0, NULL}};

/* Job(ledger, id) */
static PyObject *job_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *ledger;
    const char *id;
    module_state *state = state_of(type);
    (void)kwargs;
    if (!state || !PyArg_ParseTuple(args, "O!s", state->ledger_type, &ledger, &id)) return NULL;
    JobObject *self = (JobObject *)object_new(type);
    if (!self) return NULL;
    Py_INCREF(ledger);
    self->ledger = (LedgerObject *)ledger;
    self->key = ml_job_key(id);
    return (PyObject *)self;
}

static void job_dealloc(PyObject *self) {
    Py_XDECREF(((JobObject *)self)->ledger);
    object_free(self);
}

static PyMethodDef job_methods[] = {
    {"interrupted", native_job_interrupted, METH_NOARGS,
     "interrupted() -> bool\n\nHas this job been interrupted? True until the next prompt begins or ends; not consumed "
     "by reading. Hot."},
    {"interrupt", native_job_interrupt, METH_NOARGS,
     "interrupt() -> bool\n\nInterrupts the job. False: another job runs (counted), or there is no group."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot job_slots[] = {{Py_tp_new, (void *)job_new},
                                  {Py_tp_dealloc, (void *)job_dealloc},
                                  {Py_tp_methods, job_methods},
                                  {Py_tp_doc, "A job of the group; Ledger.job(id) makes it."},
                                  {0, NULL}};

static PyStructSequence_Field figures_fields[] = {
    {"free", "bytes that this process may take now; None when unknown"},
    {"available", "bytes, if every member gave back what it can"},
    {"budget", "bytes that this process may own in all"},
    {"total", "bytes, as the source says"},
    {"held", "bytes held by all members"},
    {"releasable", "bytes of those that members could give back"},
    {"pinned", "bytes of those that cannot move"},
    {"claimed", "bytes promised and not landed"},
    {"own_held", "bytes held by this process"},
    {"own_claimed", "bytes promised to this process"},
    {"claimed_by_others", "bytes promised to the others"},
    {"headroom", "bytes that some member wants left alone"},
    {"unaccounted", "bytes in use that no member holds"},
    {"overcommit", "bytes by which held, claims and unaccounted exceed the usable total"},
    {"reserved", "bytes that the source itself sets apart"},
    {"complete", "False: private, no device-wide reading, or members of another layout exist"},
    {"source", "who was asked"},
    {"scope", "what the reading is about: none, device or process"},
    {"reason", "why there is no better figure; None: there is one"},
    {"level", "which level of the chain has the smallest free"},
    {NULL, NULL}};
static PyStructSequence_Desc figures_desc = {"memledger.Figures", "The figures of a device, from one scan.",
                                             figures_fields, 20};

static PyTypeObject *add_type(PyObject *module, const char *name, PyType_Spec *spec, PyObject *base) {
    PyObject *bases = base ? PyTuple_Pack(1, base) : NULL;
    PyObject *type = PyType_FromModuleAndSpec(module, spec, bases);
    Py_XDECREF(bases);
    if (type && PyModule_AddObject(module, name, Py_NewRef(type)) != 0) Py_CLEAR(type);
    return (PyTypeObject *)type;
}

bool native_add_types(PyObject *module) {
    module_state *s = PyModule_GetState(module);
    const unsigned flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE;
    PyType_Spec ledger = {"memledger._native.Ledger", sizeof(LedgerObject), 0, flags, ledger_slots};
    PyType_Spec account = {"memledger._native.Account", sizeof(AccountObject), 0, flags, account_slots};
    PyType_Spec device = {"memledger._native.Device", sizeof(DeviceObject), 0, flags, device_slots};
    PyType_Spec claim = {"memledger._native.Claim", sizeof(ClaimObject), 0, flags, claim_slots};
    const char *const names[3] = {"held", "releasable", "pinned"};
    for (int i = 0; i < 3; i++)
        if (!(s->amount_names[i] = PyUnicode_InternFromString(names[i]))) return false;
    s->ledger_type = add_type(module, "Ledger", &ledger, NULL);
    s->account_type = s->ledger_type ? add_type(module, "Account", &account, NULL) : NULL;
    s->device_type = s->account_type ? add_type(module, "Device", &device, (PyObject *)s->account_type) : NULL;
    s->claim_type = s->device_type ? add_type(module, "Claim", &claim, NULL) : NULL;
    PyType_Spec job = {"memledger._native.Job", sizeof(JobObject), 0, flags, job_slots};
    s->job_type = s->claim_type ? add_type(module, "Job", &job, NULL) : NULL;
    s->figures_type = s->job_type ? PyStructSequence_NewType(&figures_desc) : NULL;
    return s->figures_type && PyModule_AddObject(module, "Figures", Py_NewRef((PyObject *)s->figures_type)) == 0;
}

PyMethodDef native_module_methods[] = {
    {"read_image", native_module_read_image, METH_VARARGS,
     "read_image(path=None) -> (info, parts | None)\n\nLooks at a segment by reading its file; joins nothing."},
    {"has_live_members", native_module_has_live_members, METH_VARARGS,
     "has_live_members(path) -> bool | None\n\nDoes any process own a slot there? None: cannot tell."},
    {"job_key", native_module_job_key, METH_O, "job_key(id) -> int\n\nThe same in every process and version."},
    {"default_path", native_module_default_path, METH_NOARGS, "default_path() -> str | None"},
    {"unlink_segment", native_module_unlink, METH_VARARGS, "unlink_segment(path) -> (status, errno, call)"},
    {NULL, NULL, 0, NULL}};
