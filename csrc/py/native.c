/* memledger._native: what a member needs, on the stable ABI, with no third-party package. */
#include "py/native.h"

static int module_exec(PyObject *module) {
    if (!native_add_types(module)) return -1;
    if (PyModule_AddIntConstant(module, "LAYOUT_MAJOR", ML_LAYOUT_MAJOR) != 0) return -1;
    if (PyModule_AddIntConstant(module, "LAYOUT_MINOR", ML_LAYOUT_MINOR) != 0) return -1;
    return 0;
}

/* No Py_mod_gil slot: the cached figures of native_hot.c are guarded by the GIL, so a free-threaded interpreter turns
 * it on again for this module. Nobody has built it there yet. */
static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void *)module_exec}, {0, NULL}};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "memledger._native",
    .m_doc = "The C core of memledger. Use the memledger package.",
    .m_size = sizeof(module_state),
    .m_methods = native_module_methods,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__native(void) {
    return PyModuleDef_Init(&module_def);
}
