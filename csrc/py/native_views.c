/* What the core says, as Python objects. Text from the segment may be anything and is decoded with care. */
#include "py/native.h"

#include <string.h>

static const char *const reason_names[] = {NULL,       "no_probe",    "probe_failed", "not_supported", "no_permission",
                                           "gpu_lost", "implausible", "suspended",    "stale",         "idle",
                                           "frozen",   "private"};
static const char *const scope_names[] = {"none", "device", "process"};
#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

static PyObject *text_or_none(const char *text) {
    if (!text || !*text) Py_RETURN_NONE;
    return PyUnicode_FromString(text);
}

static PyObject *source_name(uint64_t source) {
    char text[9] = {0};
    memcpy(text, &source, 8);
    for (char *c = text; *c; c++)
        if (*c < 0x20 || *c > 0x7e) *c = '?'; /* from the segment: nothing but printable ASCII leaves here */
    return text_or_none(text);
}

static PyObject *reason_name(uint32_t reason) {
    return text_or_none(reason < COUNT_OF(reason_names) ? reason_names[reason] : "unknown");
}

static PyObject *scope_name(uint32_t scope) {
    return PyUnicode_FromString(scope < COUNT_OF(scope_names) ? scope_names[scope] : "none");
}

/* Text from the segment: it may be anything, so what is no UTF-8 is replaced. */
static PyObject *foreign_text(const char *text) {
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

/* UINT64_MAX stands for "not known". */
static PyObject *bytes_or_none(uint64_t value) {
    if (value == UINT64_MAX) Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(value);
}

static int index_of(const char *const *names, size_t count, const char *name, int otherwise) {
    if (!name) return 0;
    for (size_t i = 0; i < count; i++)
        if (names[i] && strcmp(names[i], name) == 0) return (int)i;
    return otherwise;
}

uint32_t native_scope_index(const char *name) {
    return (uint32_t)index_of(scope_names, COUNT_OF(scope_names), name, ML_SCOPE_NONE);
}

uint32_t native_reason_index(const char *name) {
    return (uint32_t)index_of(reason_names, COUNT_OF(reason_names), name, ML_REASON_PROBE_FAILED);
}

PyObject *native_figures_object(module_state *state, const ml_figures *f, int status) {
    bool known = status == ML_OK;
    PyObject *tuple = PyStructSequence_New(state->figures_type);
    if (!tuple) return NULL;
    const uint64_t asked[4] = {f->free, f->available, f->budget, f->total};
    const uint64_t plain[8] = {f->held,        f->releasable,        f->pinned,  f->claimed, f->own_held,
                               f->own_claimed, f->claimed_by_others, f->headroom};
    const uint64_t derived[3] = {f->unaccounted, f->overcommit, f->reserved};
    Py_ssize_t at = 0;
    for (int i = 0; i < 4; i++) PyStructSequence_SetItem(tuple, at++, bytes_or_none(known ? asked[i] : UINT64_MAX));
    for (int i = 0; i < 8; i++) PyStructSequence_SetItem(tuple, at++, PyLong_FromUnsignedLongLong(plain[i]));
    for (int i = 0; i < 3; i++) PyStructSequence_SetItem(tuple, at++, bytes_or_none(known ? derived[i] : UINT64_MAX));
    PyStructSequence_SetItem(tuple, at++, PyBool_FromLong(f->flags & ML_FIGURES_COMPLETE));
    PyStructSequence_SetItem(tuple, at++, source_name(f->source));
    PyStructSequence_SetItem(tuple, at++, scope_name(f->scope));
    PyStructSequence_SetItem(tuple, at++, reason_name(f->reason));
    PyStructSequence_SetItem(tuple, at++, PyLong_FromUnsignedLong(f->level));
    if (PyErr_Occurred()) {
        Py_DECREF(tuple);
        return NULL;
    }
    return tuple;
}

PyObject *native_reading_dict(const ml_reading *r) {
    bool known = r->sequence && (r->reason == ML_REASON_NONE || r->reason == ML_REASON_FROZEN);
    return Py_BuildValue(
        "{s:N,s:N,s:N,s:N,s:N,s:N,s:N,s:N,s:I,s:N,s:d,s:N,s:K}", "total", bytes_or_none(known ? r->total : UINT64_MAX),
        "free", bytes_or_none(known ? r->free : UINT64_MAX), "reserved", bytes_or_none(known ? r->reserved : 0),
        "immediate", bytes_or_none(known ? r->immediate : UINT64_MAX), "soft_limit",
        bytes_or_none(known ? r->soft_limit : UINT64_MAX), "source", source_name(r->source), "scope",
        scope_name(known ? r->scope : ML_SCOPE_NONE), "reason", reason_name(r->reason), "flags", r->flags, "reader",
        r->sequence ? PyLong_FromUnsignedLong(r->reader) : Py_NewRef(Py_None), "age_s", (double)r->age_ns / 1e9,
        "unaccounted", bytes_or_none(known ? r->unaccounted : UINT64_MAX), "sequence", (unsigned long long)r->sequence);
}

static PyObject *account_bytes_tuple(const ml_row *r) {
    PyObject *tuple = PyTuple_New(ML_ACCOUNTS_MAX);
    for (Py_ssize_t a = 0; tuple && a < ML_ACCOUNTS_MAX; a++)
        PyTuple_SetItem(tuple, a, PyLong_FromUnsignedLongLong(r->account_held[a]));
    return tuple;
}

PyObject *native_snapshot_dict(module_state *state, const ml_snapshot *s) {
    PyObject *rows = PyList_New(0), *aliases = PyList_New(0);
    for (unsigned i = 0; rows && i < s->row_count; i++) {
        const ml_row *r = &s->rows[i];
        PyObject *row = Py_BuildValue(
            "{s:I,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:N,s:N}", "slot", r->slot, "generation",
            (unsigned long long)r->generation, "held", (unsigned long long)r->held, "releasable",
            (unsigned long long)r->releasable, "pinned", (unsigned long long)r->pinned, "claimed",
            (unsigned long long)r->claims, "pending", (unsigned long long)r->pending, "headroom",
            (unsigned long long)r->headroom, "limit", bytes_or_none(r->limit), "account_held", account_bytes_tuple(r));
        if (!row || PyList_Append(rows, row) != 0) {
            Py_XDECREF(row);
            Py_CLEAR(rows);
            break;
        }
        Py_DECREF(row);
    }
    for (unsigned a = 0; aliases && a < ML_ALIASES_MAX; a++) {
        if (!s->aliases[a][0]) continue;
        PyObject *alias = foreign_text(s->aliases[a]);
        if (!alias || PyList_Append(aliases, alias) != 0) Py_CLEAR(aliases);
        Py_XDECREF(alias);
    }
    if (!rows || !aliases) {
        Py_XDECREF(rows);
        Py_XDECREF(aliases);
        return NULL;
    }
    return Py_BuildValue(
        "{s:N,s:N,s:i,s:I,s:K,s:N,s:N,s:N,s:N}", "key", foreign_text(s->key), "aliases", aliases, "kind", s->kind,
        "shift", s->shift, "generation", (unsigned long long)s->generation, "coherent", PyBool_FromLong(s->coherent),
        "figures",
        native_figures_object(state, &s->figures, s->figures.flags & ML_FIGURES_KNOWN ? ML_OK : ML_NOT_READY),
        "reading", native_reading_dict(&s->reading), "rows", rows);
}

static PyObject *counters_tuple(const ml_member *m) {
    PyObject *tuple = PyTuple_New(ML_COUNTERS);
    for (Py_ssize_t c = 0; tuple && c < ML_COUNTERS; c++)
        PyTuple_SetItem(tuple, c, PyLong_FromUnsignedLongLong(m->counter[c]));
    return tuple;
}

static PyObject *names_tuple(const ml_member *m) {
    PyObject *tuple = PyTuple_New(ML_ACCOUNTS_MAX);
    for (Py_ssize_t a = 0; tuple && a < ML_ACCOUNTS_MAX; a++) PyTuple_SetItem(tuple, a, foreign_text(m->account[a]));
    return tuple;
}

PyObject *native_members_list(const ml_member *members, unsigned count) {
    static const char *const states[] = {"free", "joining", "live", "dead", "unverified"};
    static const char *const roles[] = {"other", "host", "worker"};
    PyObject *list = PyList_New(0);
    for (unsigned i = 0; list && i < count; i++) {
        const ml_member *m = &members[i];
        PyObject *member = Py_BuildValue(
            "{s:I,s:s,s:s,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:N,s:N,s:N,s:N,s:K,s:N,s:N}", "slot", m->slot, "state",
            states[m->state], "role", roles[m->role], "generation", (unsigned long long)m->generation, "pid",
            (unsigned long long)m->pid, "parent_pid", (unsigned long long)m->parent_pid, "pid_namespace",
            (unsigned long long)m->pid_namespace, "start_ticks", (unsigned long long)m->start_ticks, "token",
            (unsigned long long)m->token, "joined_ns", (unsigned long long)m->joined_ns, "label",
            foreign_text(m->label), "program", foreign_text(m->program), "version", foreign_text(m->version), "leader",
            m->leader < ML_SLOTS_MAX ? PyLong_FromUnsignedLongLong(m->leader) : Py_NewRef(Py_None), "group",
            (unsigned long long)m->group, "counters", counters_tuple(m), "accounts", names_tuple(m));
        if (!member || PyList_Append(list, member) != 0) Py_CLEAR(list);
        Py_XDECREF(member);
    }
    return list;
}

PyObject *native_findings_list(const ml_finding *findings, unsigned count, unsigned capacity) {
    PyObject *list = PyList_New(0);
    for (unsigned i = 0; list && i < count && i < capacity; i++) {
        const ml_finding *f = &findings[i];
        PyObject *item = Py_BuildValue("{s:I,s:I,s:I,s:K,s:K,s:s}", "invariant", f->invariant, "pool", f->pool, "slot",
                                       f->slot, "expected", (unsigned long long)f->expected, "actual",
                                       (unsigned long long)f->actual, "text", f->text);
        if (!item || PyList_Append(list, item) != 0) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

PyObject *native_info_dict(const ml_ledger_info *i) {
    return Py_BuildValue("{s:i,s:i,s:i,s:s,s:I,s:K,s:N,s:(II),s:K,s:K,s:K,s:K,s:K,s:K,s:i}", "mode", i->mode, "status",
                         i->degraded_status, "system_code", i->system_code, "system_call", i->system_call, "slot",
                         i->slot, "generation", (unsigned long long)i->generation, "path",
                         PyUnicode_DecodeFSDefault(i->path), "layout", i->layout_major, i->layout_minor, "rejoin_count",
                         (unsigned long long)i->rejoin_count, "period_ns", (unsigned long long)i->period_ns,
                         "file_device", (unsigned long long)i->file_device, "file_id", (unsigned long long)i->file_id,
                         "overflow_count", (unsigned long long)i->overflow_count, "sweep_count",
                         (unsigned long long)i->sweep_count, "lock_kind", i->lock_kind);
}
