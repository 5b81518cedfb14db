/* The extension module: `forward` and `backward`, which Python calls with tensors, and Python's
 * signal handlers during a long call. The other functions of the library are called through ctypes.
 * Both release the GIL. No header of PyTorch is included: tensors are read by their attributes. */
#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* -- tensors --------------------------------------------------------------------------------- */

/* DLPack's tensor and table of functions, version 1. With it a tensor is read by one call. */
typedef struct {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t type_code, type_bits;
    uint16_t type_lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;

typedef struct {
    uint32_t major, minor;
    void *previous, *allocate, *export, *import;
    int (*read)(PyObject *x, DLTensor *to); /* may be NULL; valid until the next call of Python */
    void *stream;
} DLPackApi;

static const DLPackApi *dlpack; /* NULL if this version of PyTorch has none */

/* Given once by `set_types`: torch.Tensor, torch.strided, torch.empty_like, `empty_out` of layout.py,
 * and the dtypes by their codes. */
static PyObject *tensor_type, *strided, *empty_like, *empty_out, *dtypes[FLOAT16 + 1];

enum { IS_CPU, LAYOUT, DTYPE, SHAPE, IS_NEG, DATA_PTR, STRIDE, NUM_NAMES };
static PyObject *names[NUM_NAMES];

/* Below, an address may be the offset in a storage that was freed. */
#define MIN_ADDRESS ((uintptr_t)1 << 40)

/* set_types(torch.Tensor, torch.strided, torch.empty_like, empty_out, (float32, bfloat16, float16),
 * capsule of DLPack or None) */
static PyObject *set_types(PyObject *module, PyObject *args) {
    static const char *const texts[] = {"is_cpu", "layout",   "dtype", "shape",
                                        "is_neg", "data_ptr", "stride"};
    PyObject *capsule;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOO(OOO)O", &tensor_type, &strided, &empty_like, &empty_out,
                          &dtypes[FLOAT32], &dtypes[BFLOAT16], &dtypes[FLOAT16], &capsule))
        return NULL;
    Py_INCREF(tensor_type); /* for as long as the process runs, as the module itself */
    Py_INCREF(strided);
    Py_INCREF(empty_like);
    Py_INCREF(empty_out);
    for (int i = 0; i <= FLOAT16; i++) Py_INCREF(dtypes[i]);
    for (int i = 0; i < NUM_NAMES; i++)
        if (!names[i] && !(names[i] = PyUnicode_InternFromString(texts[i]))) return NULL;
    dlpack = capsule == Py_None ? NULL : PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (PyErr_Occurred()) return NULL;
    if (dlpack && (dlpack->major != 1 || !dlpack->read)) dlpack = NULL;
    Py_INCREF(Py_None);
    return Py_None;
}

/* The integers of a tuple of this length, whose reference is taken; 0 if it is something else. */
static int read_ints(PyObject *tuple, int64_t *to, Py_ssize_t count) {
    int found = tuple && PyTuple_Check(tuple) && PyTuple_Size(tuple) == count;
    for (Py_ssize_t i = 0; found && i < count; i++) {
        to[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        found = to[i] != -1 || !PyErr_Occurred();
    }
    Py_XDECREF(tuple);
    return found;
}

static int attribute_is(PyObject *x, int name, PyObject *expected) {
    PyObject *found = PyObject_GetAttr(x, names[name]);
    Py_XDECREF(found);
    return found == expected;
}

static PyObject *call(PyObject *x, int name) {
    return PyObject_CallMethodObjArgs(x, names[name], NULL);
}

/* Has the tensor no memory, as a zero of autograd, or after `resize_(0)` of its storage? */
static int is_freed(PyObject *x) {
    PyObject *zero = PyObject_CallMethod(x, "_is_zerotensor", NULL);
    Py_XDECREF(zero);
    if (zero != Py_False) return 1;
    PyObject *storage = PyObject_CallMethod(x, "untyped_storage", NULL);
    PyObject *address = storage ? PyObject_CallMethod(storage, "data_ptr", NULL) : NULL;
    int found = !address || !PyObject_IsTrue(address);
    Py_XDECREF(storage);
    Py_XDECREF(address);
    return found;
}

/* A dense tensor of `dims` dimensions and the dtype, in the memory of the CPU. */
static int read_memory(PyObject *x, int64_t dtype, int64_t dims, int64_t *shape, void **data,
                       int64_t *strides) {
    if (dlpack) {
        DLTensor t;
        if (dlpack->read(x, &t) || t.device_type != 1 || t.ndim != dims || t.type_lanes != 1 ||
            t.type_code != (dtype == BFLOAT16 ? 4 : 2) || t.type_bits != 8 * dtype_size(dtype) ||
            !t.strides)
            return 0;
        memcpy(shape, t.shape, (size_t)dims * sizeof *shape);
        memcpy(strides, t.strides, (size_t)dims * sizeof *strides);
        *data = (char *)t.data + t.byte_offset;
    } else {
        if (!attribute_is(x, IS_CPU, Py_True) || !attribute_is(x, DTYPE, dtypes[dtype])) return 0;
        PyObject *address = call(x, DATA_PTR);
        if (!address) return 0;
        *data = PyLong_AsVoidPtr(address);
        Py_DECREF(address);
        if (!read_ints(PyObject_GetAttr(x, names[SHAPE]), shape, dims) ||
            !read_ints(call(x, STRIDE), strides, dims))
            return 0;
    }
    return (uintptr_t)*data >= MIN_ADDRESS || !is_freed(x);
}

/* The same, if it is no subclass and has no lazy negation. DLPack reads strided tensors only. */
static int read_plain(PyObject *x, int64_t dtype, int64_t dims, int64_t *shape, void **data,
                      int64_t *strides) {
    if ((PyObject *)Py_TYPE(x) != tensor_type) return 0;
    if (!dlpack && !attribute_is(x, LAYOUT, strided)) return 0;
    PyObject *negative = call(x, IS_NEG);
    Py_XDECREF(negative);
    return negative == Py_False && read_memory(x, dtype, dims, shape, data, strides);
}

static int read_4d(PyObject *x, int64_t dtype, int64_t shape[4], Tensor *t) {
    return read_plain(x, dtype, 4, shape, &t->data, &t->batch_stride);
}

/* -- arguments ------------------------------------------------------------------------------- */

/* The spans of a mask, as Python packs them. If the addresses are NULL, the arrays of a decode step
 * follow: offsets, starts, stops. */
typedef struct {
    int64_t q_len, kv_len;
    Spans spans;
} PackedSpans;

/* Sizes, dtype, and q, k and v, which have to match each other. */
static int read_qkv(PyObject *const *qkv, KernelArgs *args) {
    int64_t q[4], k[4], v[4];
    if (!tensor_type || (PyObject *)Py_TYPE(qkv[0]) != tensor_type) return 0;
    while (args->dtype <= FLOAT16 && !attribute_is(qkv[0], DTYPE, dtypes[args->dtype]))
        args->dtype++;
    if (args->dtype > FLOAT16 || !read_4d(qkv[0], args->dtype, q, &args->q) ||
        !read_4d(qkv[1], args->dtype, k, &args->k) || !read_4d(qkv[2], args->dtype, v, &args->v))
        return 0;
    if (q[0] != k[0] || q[0] != v[0] || k[1] != v[1] || k[2] != v[2] || q[3] != k[3]) return 0;
    args->batch = q[0];
    args->heads = q[1];
    args->kv_heads = k[1];
    args->q_len = q[2];
    args->kv_len = k[2];
    args->head_dim = q[3];
    args->v_head_dim = v[3];
    args->dropout.q_stride = args->dropout.k_stride = 1;
    return 1;
}

static int read_bytes(PyObject *bytes, void *to, Py_ssize_t size) {
    char *from;
    Py_ssize_t found;
    if (PyBytes_AsStringAndSize(bytes, &from, &found) || found != size) return 0;
    memcpy(to, from, (size_t)size);
    return 1;
}

/* The arrays that follow the structure, of which there are `count` integers in all. */
static int read_row_spans(const int64_t *ints, int64_t count, const PackedSpans *packed,
                          Spans *spans) {
    const int64_t planes = spans->batch * spans->heads;
    if (packed->q_len != 1 || spans->batch < 1 || spans->heads < 1 || count < planes + 1) return 0;
    const int64_t size = ints[planes];
    spans->offsets = ints;
    spans->starts = ints + planes + 1;
    spans->stops = spans->starts + size;
    int valid = ints[0] == 0 && size >= 0 && count == planes + 1 + 2 * size;
    for (int64_t n = 0; valid && n < planes; n++) valid = ints[n] <= ints[n + 1];
    for (int64_t i = 0; valid && i < size; i++)
        valid = spans->starts[i] >= 0 && spans->starts[i] < spans->stops[i] &&
                spans->stops[i] <= packed->kv_len;
    return valid;
}

/* The caller keeps the bytes, and the mask. */
static int read_spans(PyObject *bytes, KernelArgs *args) {
    PackedSpans packed;
    char *from;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(bytes, &from, &size) || size < (Py_ssize_t)sizeof packed) return 0;
    memcpy(&packed, from, sizeof packed);
    args->spans = packed.spans;
    if (args->q_len != packed.q_len || args->kv_len != packed.kv_len) return 0;
    if (packed.spans.offsets) return size == sizeof packed;
    return read_row_spans((const int64_t *)(from + sizeof packed),
                          (int64_t)((size_t)size - sizeof packed) / 8, &packed, &args->spans);
}

/* (threads, scale or None, enable_gqa) */
static int read_settings(PyObject *settings, KernelArgs *args) {
    if (!PyTuple_Check(settings) || PyTuple_Size(settings) != 3) return 0;
    PyObject *scale = PyTuple_GetItem(settings, 1);
    args->threads = PyLong_AsLongLong(PyTuple_GetItem(settings, 0));
    if (scale == Py_None)
        args->scale = 1.0 / sqrt((double)args->head_dim);
    else if (PyFloat_Check(scale) || PyLong_Check(scale))
        args->scale = PyFloat_AsDouble(scale);
    else
        return 0;
    const int gqa = PyObject_IsTrue(PyTuple_GetItem(settings, 2));
    return !PyErr_Occurred() && isfinite(args->scale) && (gqa || args->heads == args->kv_heads);
}

/* The output or its gradient. */
static int read_out(PyObject *x, const KernelArgs *args, Tensor *t) {
    int64_t shape[4];
    return read_4d(x, args->dtype, shape, t) && shape[0] == args->batch &&
           shape[1] == args->heads && shape[2] == args->q_len && shape[3] == args->v_head_dim;
}

/* A float32 tensor (batch, heads, rows). */
static int read_rows(PyObject *x, const KernelArgs *args, RowTensor *t) {
    int64_t shape[3];
    return read_plain(x, FLOAT32, 3, shape, (void **)&t->data, &t->batch_stride) &&
           shape[0] == args->batch && shape[1] == args->heads && shape[2] == args->q_len;
}

/* What the function returns for x and an argument that may be NULL: a tensor without values. NULL if
 * it cannot be read. */
static PyObject *new_tensor(PyObject *function, PyObject *x, PyObject *arg, int64_t dtype,
                            Tensor *t) {
    int64_t shape[4];
    PyObject *tensor = PyObject_CallFunctionObjArgs(function, x, arg, NULL);
    if (tensor && read_memory(tensor, dtype, 4, shape, &t->data, &t->batch_stride)) return tensor;
    Py_XDECREF(tensor);
    return NULL;
}

/* The output, (batch, heads, q_len, v_head_dim), in the memory layout of q; NULL if it cannot be
 * made. This is `empty_out` of layout.py, without a call of Python for what is usual. */
static PyObject *new_out(PyObject *q, const KernelArgs *args, Tensor *t) {
    PyObject *out, *dim;
    if (args->v_head_dim == args->head_dim) {
        out = new_tensor(empty_like, q, NULL, args->dtype, t);
        if (!out || t->dim_stride == 1 || args->head_dim == 1) return out;
        Py_DECREF(out);
    }
    if (!(dim = PyLong_FromLongLong(args->v_head_dim))) return NULL;
    out = new_tensor(empty_out, q, dim, args->dtype, t);
    Py_DECREF(dim);
    return out;
}

static void set_dense_lse(KernelArgs *args, void *data) {
    args->lse.data = data;
    args->lse.row_stride = 1;
    args->lse.head_stride = args->q_len;
    args->lse.batch_stride = args->heads * args->q_len;
}

/* The logsumexp: a tensor, or a bytearray of float32 (batch, heads, rows). */
static int read_lse(PyObject *lse, KernelArgs *args) {
    if (!PyByteArray_Check(lse)) return read_rows(lse, args, &args->lse);
    set_dense_lse(args, PyByteArray_AsString(lse));
    return PyByteArray_Size(lse) == 4 * args->batch * args->heads * args->q_len;
}

/* Clear the error of arguments that cannot be read. 0 for one that is no Exception, such as the
 * KeyboardInterrupt of a signal handler, which is kept. */
static int clear_error(void) {
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return 0;
    PyErr_Clear();
    return 1;
}

/* -1: the arguments are not those of a plain call. */
static PyObject *declined(void) {
    return clear_error() ? PyLong_FromLong(-1) : NULL;
}

/* plain(q, k, v) -> (sizes of the scores, arguments of `forward`), or None if the tensors are not
 * plain. */
static PyObject *plain(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    KernelArgs args = {0};
    (void)module;
    if (count != 3 || !read_qkv(given, &args)) {
        if (!clear_error()) return NULL;
        Py_INCREF(Py_None);
        return Py_None;
    }
    return Py_BuildValue("(LLLL)y#", args.batch, args.heads, args.q_len, args.kv_len,
                         (const char *)&args, (Py_ssize_t)sizeof args);
}

/* forward(arguments, spans, settings, lse or None, q) -> output, or code. The caller keeps q, k and
 * v. */
static PyObject *forward(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    KernelArgs args;
    float *scratch = NULL;
    PyObject *out;
    int64_t code;
    (void)module;
    if (count != 5 || !read_bytes(given[0], &args, sizeof args) || !read_spans(given[1], &args) ||
        !read_settings(given[2], &args) || (given[3] != Py_None && !read_lse(given[3], &args)) ||
        !(out = new_out(given[4], &args, &args.out)))
        return declined();
    if (given[3] == Py_None && args.batch > 0 && args.heads > 0 && args.q_len > 0) {
        scratch = malloc((size_t)(args.batch * args.heads * args.q_len) * sizeof *scratch);
        if (!scratch) {
            Py_DECREF(out);
            return PyLong_FromLong(ERR_NO_MEMORY);
        }
        set_dense_lse(&args, scratch);
    }
    Py_BEGIN_ALLOW_THREADS
    code = maskwright_forward(&args);
    free(scratch);
    Py_END_ALLOW_THREADS
    if (code == OK) return out;
    Py_DECREF(out);
    return PyLong_FromLongLong(code);
}

/* backward(spans, settings, lse, (q, k, v, out, ...), dout, dlse or None) -> (dq, dk, dv, None), or
 * code. The saved tensors may be others than those of `forward`. */
static PyObject *backward(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    KernelArgs args = {0};
    PyObject *saved[4], *grads[3] = {0}, *result;
    Tensor *const to[3] = {&args.dq, &args.dk, &args.dv};
    int64_t code = -1;
    (void)module;
    if (count != 6 || !PyTuple_Check(given[3]) || PyTuple_Size(given[3]) < 4) return declined();
    for (int i = 0; i < 4; i++) saved[i] = PyTuple_GetItem(given[3], i);
    int valid = read_qkv(saved, &args) && read_spans(given[0], &args) &&
                read_settings(given[1], &args) && read_lse(given[2], &args) &&
                read_out(saved[3], &args, &args.out) && read_out(given[4], &args, &args.dout) &&
                (given[5] == Py_None || read_rows(given[5], &args, &args.dlse));
    for (int i = 0; valid && i < 3; i++)
        valid = (grads[i] = new_tensor(empty_like, saved[i], NULL, args.dtype, to[i])) != NULL;
    if (valid) {
        Py_BEGIN_ALLOW_THREADS
        code = maskwright_backward(&args);
        Py_END_ALLOW_THREADS
    }
    result = !clear_error() ? NULL
             : code == OK   ? PyTuple_Pack(4, grads[0], grads[1], grads[2], Py_None)
                            : PyLong_FromLongLong(code);
    for (int i = 0; i < 3; i++) Py_XDECREF(grads[i]);
    return result;
}

static PyMethodDef methods[] = {
    {"set_types", set_types, METH_VARARGS, NULL},
    {"plain", (PyCFunction)(void (*)(void))plain, METH_FASTCALL, NULL},
    {"forward", (PyCFunction)(void (*)(void))forward, METH_FASTCALL, NULL},
    {"backward", (PyCFunction)(void (*)(void))backward, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_kernel", NULL, 0, methods, NULL,
                                        NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&definition); }
