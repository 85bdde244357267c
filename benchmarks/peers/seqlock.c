/* A table of slots in a file, each behind a classic seqlock: its word is odd while the writer is inside. Called from
 * Python by METH_FASTCALL, as memledger is. One table per process. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct slot {
    _Alignas(64) _Atomic uint64_t word;
    _Atomic uint64_t figure[3];
} slot;

static struct {
    slot *slots;
    long members, me;
} table;

static PyObject *open_table(PyObject *module, PyObject *args) {
    const char *path;
    (void)module;
    if (!PyArg_ParseTuple(args, "sll", &path, &table.members, &table.me)) return NULL;
    int file = open(path, O_RDWR | O_CREAT, 0600);
    size_t size = (size_t)table.members * sizeof(slot);
    if (file < 0 || ftruncate(file, (off_t)size) != 0) return PyErr_SetFromErrno(PyExc_OSError);
    void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED) return PyErr_SetFromErrno(PyExc_OSError);
    table.slots = mapped;
    Py_RETURN_NONE;
}

static int figures(PyObject *const *args, Py_ssize_t count, uint64_t out[3]) {
    if (count != 3) return PyErr_SetString(PyExc_TypeError, "expected held, releasable, pinned"), -1;
    for (int i = 0; i < 3; i++) {
        out[i] = (uint64_t)PyLong_AsLongLong(args[i]);
        if (PyErr_Occurred()) return -1;
    }
    return 0;
}

static PyObject *publish(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    uint64_t f[3];
    (void)module;
    if (figures(args, count, f) != 0) return NULL;
    slot *own = &table.slots[table.me];
    uint64_t word = atomic_load_explicit(&own->word, memory_order_relaxed);
    atomic_store_explicit(&own->word, word + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    for (int i = 0; i < 3; i++) atomic_store_explicit(&own->figure[i], f[i], memory_order_relaxed);
    atomic_store_explicit(&own->word, word + 2, memory_order_release);
    Py_RETURN_NONE;
}

static PyObject *read_sums(PyObject *module, PyObject *unused) {
    uint64_t sum[3] = {0, 0, 0}, f[3], before, after;
    (void)module, (void)unused;
    for (long s = 0; s < table.members; s++) {
        slot *from = &table.slots[s];
        do {
            before = atomic_load_explicit(&from->word, memory_order_acquire);
            for (int i = 0; i < 3; i++) f[i] = atomic_load_explicit(&from->figure[i], memory_order_relaxed);
            atomic_thread_fence(memory_order_acquire);
            after = atomic_load_explicit(&from->word, memory_order_relaxed);
        } while ((before & 1) || before != after);
        for (int i = 0; i < 3; i++) sum[i] += f[i];
    }
    return Py_BuildValue("KKK", (unsigned long long)sum[0], (unsigned long long)sum[1], (unsigned long long)sum[2]);
}

/* Half of a publish. */
static PyObject *enter(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    uint64_t f[3];
    (void)module;
    if (figures(args, count, f) != 0) return NULL;
    atomic_fetch_add(&table.slots[table.me].word, 1);
    atomic_store(&table.slots[table.me].figure[0], f[0]);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"open", open_table, METH_VARARGS, NULL},
    {"publish", (PyCFunction)(void (*)(void))publish, METH_FASTCALL, NULL},
    {"read", read_sums, METH_NOARGS, NULL},
    {"enter", (PyCFunction)(void (*)(void))enter, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "peer_seqlock", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_peer_seqlock(void) {
    return PyModule_Create(&definition);
}
