/* What makes the library an ordinary extension module, so that every build tool knows how to build
 * it. Its functions are called through ctypes. */
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_kernel", NULL, 0, NULL, NULL,
                                        NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&definition); }
