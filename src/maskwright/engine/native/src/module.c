/* The extension module: `forward` and `backward`, which Python calls with the addresses, sizes and
 * strides of tensors, and Python's signal handlers during a long call. The other functions of the
 * library are called through ctypes. Both release the GIL. No header of PyTorch is included. */
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include <math.h>
#include <stdlib.h>

#include "kernel_args.h"
#include "threads.h"

int64_t maskwright_forward(const KernelArgs *args);
int64_t maskwright_backward(const KernelArgs *args);

/* -- signals --------------------------------------------------------------------------------- */

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

/* -- arguments ------------------------------------------------------------------------------- */

/* The spans of a mask, as Python packs them. */
typedef struct {
    int64_t q_len, kv_len;
    Spans spans;
} PackedSpans;

/* The integers of a tuple of this length; 0 if it is something else. */
static int read_ints(PyObject *tuple, int64_t *to, Py_ssize_t count) {
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != count) return 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        to[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        if (to[i] == -1 && PyErr_Occurred()) return 0;
    }
    return 1;
}

/* A tensor is (address, strides). */
static int read_tensor(PyObject *pair, void **data, int64_t *strides, Py_ssize_t dims) {
    if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) return 0;
    *data = PyLong_AsVoidPtr(PyTuple_GetItem(pair, 0));
    return *data && read_ints(PyTuple_GetItem(pair, 1), strides, dims);
}

static int read_4d(PyObject *pair, Tensor *t) {
    return read_tensor(pair, &t->data, &t->batch_stride, 4);
}

static int read_3d(PyObject *pair, RowTensor *t) {
    return read_tensor(pair, (void **)&t->data, &t->batch_stride, 3);
}

/* (dtype, threads, scale or None, enable_gqa) */
static int read_settings(PyObject *settings, KernelArgs *args, int *gqa) {
    if (!PyTuple_Check(settings) || PyTuple_Size(settings) != 4) return 0;
    PyObject *scale = PyTuple_GetItem(settings, 2);
    args->dtype = PyLong_AsLongLong(PyTuple_GetItem(settings, 0));
    args->threads = PyLong_AsLongLong(PyTuple_GetItem(settings, 1));
    if (scale == Py_None)
        args->scale = 1.0 / sqrt((double)args->head_dim);
    else if (PyFloat_Check(scale) || PyLong_Check(scale))
        args->scale = PyFloat_AsDouble(scale);
    else
        return 0;
    *gqa = PyObject_IsTrue(PyTuple_GetItem(settings, 3));
    return !PyErr_Occurred() && isfinite(args->scale);
}

/* (shape of q, of k, of v), which have to match each other and the mask. */
static int read_shapes(PyObject *shapes, PyObject *spans, KernelArgs *args) {
    int64_t q[4], k[4], v[4];
    char *bytes;
    Py_ssize_t size;
    if (!PyTuple_Check(shapes) || PyTuple_Size(shapes) != 3 ||
        !read_ints(PyTuple_GetItem(shapes, 0), q, 4) ||
        !read_ints(PyTuple_GetItem(shapes, 1), k, 4) ||
        !read_ints(PyTuple_GetItem(shapes, 2), v, 4) ||
        PyBytes_AsStringAndSize(spans, &bytes, &size) || size != sizeof(PackedSpans))
        return 0;
    const PackedSpans *packed = (const PackedSpans *)bytes;
    if (q[0] != k[0] || q[0] != v[0] || k[1] != v[1] || k[2] != v[2] || q[3] != k[3] ||
        q[2] != packed->q_len || k[2] != packed->kv_len)
        return 0;
    args->batch = q[0];
    args->heads = q[1];
    args->kv_heads = k[1];
    args->q_len = q[2];
    args->kv_len = k[2];
    args->head_dim = q[3];
    args->v_head_dim = v[3];
    args->spans = packed->spans;
    return 1;
}

/* Read what both passes share: spans, shapes, settings, q, k, v, out. */
static int read_args(PyObject *const *given, KernelArgs *args) {
    int gqa;
    args->dropout.q_stride = args->dropout.k_stride = 1;
    return read_shapes(given[1], given[0], args) && read_settings(given[2], args, &gqa) &&
           (args->heads == args->kv_heads || gqa) && read_4d(given[3], &args->q) &&
           read_4d(given[4], &args->k) && read_4d(given[5], &args->v) &&
           read_4d(given[6], &args->out);
}

/* -1: the arguments are not those of a plain call. */
static PyObject *declined(void) {
    PyErr_Clear();
    return PyLong_FromLong(-1);
}

/* forward(spans, shapes, settings, q, k, v, out, lse or None) -> code */
static PyObject *forward(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    KernelArgs args = {0};
    float *scratch = NULL;
    int64_t code;
    (void)module;
    if (count != 8 || !read_args(given, &args)) return declined();
    if (given[7] != Py_None) {
        if (!read_3d(given[7], &args.lse)) return declined();
    } else if (args.batch > 0 && args.heads > 0 && args.q_len > 0) {
        args.lse.row_stride = 1;
        args.lse.head_stride = args.q_len;
        args.lse.batch_stride = args.heads * args.q_len;
        scratch = malloc((size_t)(args.batch * args.lse.batch_stride) * sizeof *scratch);
        if (!scratch) return PyLong_FromLong(ERR_NO_MEMORY);
        args.lse.data = scratch;
    }
    Py_BEGIN_ALLOW_THREADS
    code = maskwright_forward(&args);
    free(scratch);
    Py_END_ALLOW_THREADS
    return PyLong_FromLongLong(code);
}

/* backward(spans, shapes, settings, q, k, v, out, lse, dout, dq, dk, dv, dlse or None) -> code */
static PyObject *backward(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    KernelArgs args = {0};
    int64_t code;
    (void)module;
    if (count != 13 || !read_args(given, &args) || !read_3d(given[7], &args.lse) ||
        !read_4d(given[8], &args.dout) || !read_4d(given[9], &args.dq) ||
        !read_4d(given[10], &args.dk) || !read_4d(given[11], &args.dv) ||
        (given[12] != Py_None && !read_3d(given[12], &args.dlse)))
        return declined();
    Py_BEGIN_ALLOW_THREADS
    code = maskwright_backward(&args);
    Py_END_ALLOW_THREADS
    return PyLong_FromLongLong(code);
}

static PyMethodDef methods[] = {
    {"forward", (PyCFunction)(void (*)(void))forward, METH_FASTCALL, NULL},
    {"backward", (PyCFunction)(void (*)(void))backward, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_kernel", NULL, 0, methods, NULL,
                                        NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&definition); }
