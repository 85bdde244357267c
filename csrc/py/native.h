/* Shared by the files of memledger._native. Hot methods (native_hot.c) never give up the GIL, enter the kernel, run
 * Python code or allocate more than their result; when they cannot go on they hand over to native_cold.c, whose
 * functions always give the GIL up round what may block. */
#ifndef ML_PY_NATIVE_H
#define ML_PY_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "core/claim.h"
#include "core/hot.h"
#include "core/snapshot.h"
#include "include/memledger.h"

typedef struct module_state {
    PyTypeObject *job_type;
    PyTypeObject *ledger_type, *device_type, *account_type, *claim_type, *figures_type;
    PyObject *amount_names[3]; /* interned "held", "releasable", "pinned" */
} module_state;

typedef struct LedgerObject {
    PyObject_HEAD ml_ledger *core;
    module_state *state;
    uint64_t fork_count; /* as last seen: a change means that this is a forked child */
} LedgerObject;

/* The figures of a device as last computed, with the objects made from them. Guarded by the GIL. */
typedef struct figures_cache {
    uint64_t tag[ML_LEVELS_MAX];
    ml_figures figures;
    int status;
    PyObject *available, *budget, *claimed_by_others, *total, *tuple;
} figures_cache;

/* First in Device and Account, so that their methods share one implementation. */
typedef struct AccountObject {
    PyObject_HEAD ml_account *account;
    LedgerObject *ledger;
} AccountObject;

typedef struct DeviceObject {
    AccountObject base;
    ml_device *device;
    uint64_t free_bytes; /* what free_object says */
    PyObject *free_object;
    figures_cache cache;
} DeviceObject;

typedef struct ClaimObject {
    PyObject_HEAD AccountObject *owner;
    ml_claim claim;
} ClaimObject;

/* A job of the group, by the key of its id. */
typedef struct JobObject {
    PyObject_HEAD LedgerObject *ledger;
    uint64_t key;
} JobObject;

/* ---- native_cold.c ---- */

/* Resolves an ML_SLOW_* answer without the GIL, and tells the Python side when this turned out to be a forked child.
 * False: an exception is set. */
bool native_recover(LedgerObject *ledger, int status);
/* Sets the exception for a status; returns NULL. */
PyObject *native_raise(int status, const char *what);
/* The argument as bytes, 0..ML_BYTES_MAX, for what the fast path does not take. False: an exception is set. */
bool native_bytes_slow(PyObject *object, const char *name, uint64_t *out);
bool native_difference_slow(PyObject *object, const char *name, int64_t *out);
PyObject *native_releasable_above_held(const ml_amounts *amounts);
PyObject *native_bad_argument(const char *method, PyObject *name);
/* native_views.c */
uint32_t native_scope_index(const char *name);
uint32_t native_reason_index(const char *name);
PyObject *native_reading_dict(const ml_reading *reading);
PyObject *native_snapshot_dict(module_state *state, const ml_snapshot *snapshot);
PyObject *native_members_list(const ml_member *members, unsigned count);
PyObject *native_findings_list(const ml_finding *findings, unsigned count, unsigned capacity);
PyObject *native_info_dict(const ml_ledger_info *info);
PyObject *native_figures_object(module_state *state, const ml_figures *figures, int status);
/* try_claim where the hot path could not decide: readings due, the dead to sweep, waiters. */
PyObject *native_claim_slow(PyObject *self, uint64_t bytes, uint64_t replacing, PyObject *ttl);
ClaimObject *native_claim_new(AccountObject *owner);
/* Methods; native_types.c puts them into tables. */
PyObject *native_ledger_info(PyObject *self, PyObject *argument);
PyObject *native_ledger_leave(PyObject *self, PyObject *argument);
PyObject *native_ledger_wait(PyObject *self, PyObject *args);
PyObject *native_ledger_wake_mark(PyObject *self, PyObject *argument);
PyObject *native_ledger_wake(PyObject *self, PyObject *argument);
PyObject *native_ledger_tick(PyObject *self, PyObject *argument);
PyObject *native_ledger_set_reader(PyObject *self, PyObject *argument);
PyObject *native_ledger_set_foreign_layout(PyObject *self, PyObject *argument);
PyObject *native_ledger_reading(PyObject *self, PyObject *argument);
PyObject *native_ledger_reading_begin(PyObject *self, PyObject *argument);
PyObject *native_ledger_reading_end(PyObject *self, PyObject *argument);
PyObject *native_ledger_reading_settle(PyObject *self, PyObject *begun);
PyObject *native_ledger_reading_local(PyObject *self, PyObject *argument);
PyObject *native_ledger_sweep_begin(PyObject *self, PyObject *argument);
PyObject *native_ledger_sweep_commit(PyObject *self, PyObject *argument);
PyObject *native_ledger_snapshot(PyObject *self, PyObject *argument);
PyObject *native_ledger_members(PyObject *self, PyObject *argument);
PyObject *native_ledger_check(PyObject *self, PyObject *argument);
PyObject *native_account_claim_run(PyObject *self, PyObject *argument);
PyObject *native_device_set_headroom(PyObject *self, PyObject *argument);
PyObject *native_device_set_limit(PyObject *self, PyObject *argument);
PyObject *native_device_pools(PyObject *self, PyObject *argument);
PyObject *native_claim_renew(PyObject *self, PyObject *argument);
PyObject *native_claim_resize(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *native_account_amounts(PyObject *self, void *unused);
PyObject *native_module_read_image(PyObject *module, PyObject *argument);
int native_optional_path(PyObject *object, void *out);
PyObject *native_module_has_live_members(PyObject *module, PyObject *argument);
PyObject *native_module_default_path(PyObject *module, PyObject *argument);
PyObject *native_module_unlink(PyObject *module, PyObject *argument);
/* raise LedgerError subclasses by name; steals `argument` (NULL: none). */
PyObject *native_raise_named(const char *name, PyObject *argument);
/* Has this process been forked since the ledger last looked? Then tell its Python side. False: an exception is set. */
bool native_note_fork(LedgerObject *ledger);
/* In a forked child the process joins anew, and its Python side hears of it. False: an exception is set. */
bool native_is_joined(LedgerObject *ledger);
bool native_add_types(PyObject *module);
extern PyMethodDef native_module_methods[];
/* native_group.c */
extern const char *const native_outcome_names[5];
PyObject *native_ledger_hosts(PyObject *self, PyObject *unused);
PyObject *native_ledger_follow(PyObject *self, PyObject *args);
PyObject *native_ledger_leader(PyObject *self, PyObject *unused);
PyObject *native_ledger_prompt_begin(PyObject *self, PyObject *id);
PyObject *native_ledger_prompt_end(PyObject *self, PyObject *unused);
PyObject *native_ledger_prompt(PyObject *self, PyObject *unused);
PyObject *native_ledger_request_free(PyObject *self, PyObject *args);
PyObject *native_ledger_free_epoch(PyObject *self, PyObject *unused);
PyObject *native_ledger_count(PyObject *self, PyObject *args);
PyObject *native_ledger_asking(PyObject *self, PyObject *begin);
PyObject *native_ledger_ask_send(PyObject *self, PyObject *args);
PyObject *native_ledger_ask_poll(PyObject *self, PyObject *ask);
PyObject *native_ledger_ask_withdraw(PyObject *self, PyObject *ask);
PyObject *native_ledger_request_next(PyObject *self, PyObject *unused);
PyObject *native_ledger_request_answer(PyObject *self, PyObject *args);
PyObject *native_ledger_victims(PyObject *self, PyObject *pool);
PyObject *native_device_move(PyObject *self, PyObject *to);
PyObject *native_account_rebind(PyObject *self, PyObject *device);
PyObject *native_device_window_open(PyObject *self, PyObject *seconds);
PyObject *native_device_window_close(PyObject *self, PyObject *unused);
PyObject *native_device_wait_clear(PyObject *self, PyObject *seconds);
PyObject *native_device_pin_room(PyObject *self, PyObject *unused);
PyObject *native_device_set_floor(PyObject *self, PyObject *value);
PyObject *native_device_set_level_limit(PyObject *self, PyObject *args);
PyObject *native_job_interrupt(PyObject *self, PyObject *unused);
PyObject *native_module_job_key(PyObject *module, PyObject *id);
/* Seconds >= 0 as nanoseconds. False: an exception is set. */
bool native_seconds(PyObject *object, const char *name, uint64_t *out);

/* ---- native_hot.c ---- */

PyObject *native_device_free(PyObject *self, PyObject *unused);
PyObject *native_device_available(PyObject *self, PyObject *unused);
PyObject *native_device_budget(PyObject *self, PyObject *unused);
PyObject *native_device_total(PyObject *self, PyObject *unused);
PyObject *native_device_claimed_by_others(PyObject *self, PyObject *unused);
PyObject *native_device_figures(PyObject *self, PyObject *unused);
PyObject *native_device_empty(PyObject *self, PyObject *unused);
PyObject *native_claim_cancel(PyObject *self, PyObject *unused);
PyObject *native_claim_enter(PyObject *self, PyObject *unused);
PyObject *native_account_publish(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *native_account_add(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *native_account_try_claim(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *native_claim_publish(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *native_claim_settle(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *native_ledger_pending(PyObject *self, PyObject *unused);
PyObject *native_ledger_interrupted(PyObject *self, PyObject *unused);
PyObject *native_job_interrupted(PyObject *self, PyObject *unused);
PyObject *native_claim_exit(PyObject *self, PyObject *const *args, Py_ssize_t count);

static inline bool native_bytes(PyObject *object, const char *name, uint64_t *out) {
    if (PyLong_CheckExact(object)) {
        long long value = PyLong_AsLongLong(object);
        if (ML_LIKELY(value >= 0)) return *out = (uint64_t)value, true;
        if (PyErr_Occurred()) PyErr_Clear();
    }
    return native_bytes_slow(object, name, out);
}

#endif
