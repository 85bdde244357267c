/* memledger._native: what a member needs, on the stable ABI, with no third-party package. */
#include "py/native.h"

static int module_exec(PyObject *module) {
    if (!native_add_types(module)) return -1;
    if (PyModule_AddIntConstant(module, "LAYOUT_MAJOR", ML_LAYOUT_MAJOR) != 0) return -1;
    if (PyModule_AddIntConstant(module, "LAYOUT_MINOR", ML_LAYOUT_MINOR) != 0) return -1;
    return 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void *)module_exec},
#ifdef Py_GIL_DISABLED
                                          /* Writers are serialised in C, and nothing mutable is file-scope. */
                                          {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
                                          {0, NULL}};

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
