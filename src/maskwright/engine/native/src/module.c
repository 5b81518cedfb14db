/* Makes the library an extension module, so that build tools know how to build it, and runs Python's
 * signal handlers during a long call. The other functions are called through ctypes, which releases
 * the GIL. */
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include "threads.h"

/* The exception of a signal handler, such as KeyboardInterrupt, until the call has returned. */
static _Thread_local PyObject *raised[3];

int check_signals(void) {
    PyGILState_STATE state = PyGILState_Ensure();
    int failed = PyErr_CheckSignals();
    if (failed) PyErr_Fetch(&raised[0], &raised[1], &raised[2]);
    PyGILState_Release(state);
    return failed != 0;
}

/* Raise the kept exception. To be called through ctypes.PyDLL, with the GIL, after a pass has
 * returned ERR_INTERRUPTED. */
void maskwright_reraise(void) {
    PyErr_Restore(raised[0], raised[1], raised[2]);
    raised[0] = raised[1] = raised[2] = NULL;
}

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_kernel", NULL, 0, NULL, NULL,
                                        NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&definition); }
