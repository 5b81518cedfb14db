/* The extension module `maskwright.engine.native._kernel`.
 *
 * `forward` and `backward` take addresses, of tensors or arrays. `plain_forward` and `plain_backward`
 * read PyTorch's tensors by themselves and decline what is not plain. All release the GIL. No header
 * of PyTorch is included: tensors are read by their attributes, or through DLPack. */
#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "profile.h"

/* -- signals and errors ---------------------------------------------------------------------- */

/* The exception of a signal handler, such as KeyboardInterrupt, until the pass has returned. */
static _Thread_local PyObject *pending_exception[3];

/* Run Python's pending signal handlers; 1 if one raised. */
static int check_signals(void) {
    PyGILState_STATE state = PyGILState_Ensure();
    int failed = PyErr_CheckSignals();
    if (failed) PyErr_Fetch(&pending_exception[0], &pending_exception[1], &pending_exception[2]);
    PyGILState_Release(state);
    return failed != 0;
}

/* Raise the exception of a return code that is not MW_OK. */
static void raise_code(const char *pass, int64_t code) {
    if (code == MW_ERR_INTERRUPTED) {
        /* takes the references */
        PyErr_Restore(pending_exception[0], pending_exception[1], pending_exception[2]);
        pending_exception[0] = pending_exception[1] = pending_exception[2] = NULL;
        if (!PyErr_Occurred()) PyErr_SetNone(PyExc_KeyboardInterrupt);
    } else if (code == MW_ERR_NO_MEMORY) {
        PyErr_Format(PyExc_MemoryError,
                     "attention: not enough memory for the scratch buffers of the %s pass. Pass "
                     "fewer sequences or heads at a time.",
                     pass);
    } else {
        PyErr_Format(PyExc_RuntimeError, "Internal error of the %s kernel: %s.", pass,
                     mw_error(code));
    }
}

static PyObject *none(void) {
    Py_INCREF(Py_None);
    return Py_None;
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
static PyObject *tensor_type, *strided, *empty_like, *empty_out, *dtypes[MW_FLOAT16 + 1];

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
                          &dtypes[MW_FLOAT32], &dtypes[MW_BFLOAT16], &dtypes[MW_FLOAT16], &capsule))
        return NULL;
    Py_INCREF(tensor_type); /* for as long as the process runs, as the module itself */
    Py_INCREF(strided);
    Py_INCREF(empty_like);
    Py_INCREF(empty_out);
    for (int i = 0; i <= MW_FLOAT16; i++) Py_INCREF(dtypes[i]);
    for (int i = 0; i < NUM_NAMES; i++)
        if (!names[i] && !(names[i] = PyUnicode_InternFromString(texts[i]))) return NULL;
    dlpack = capsule == Py_None ? NULL : PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (PyErr_Occurred()) return NULL;
    if (dlpack && (dlpack->major != 1 || !dlpack->read)) dlpack = NULL;
    return none();
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
            t.type_code != (dtype == MW_BFLOAT16 ? 4 : 2) || t.type_bits != 8 * dtype_size(dtype) ||
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

static int read_4d(PyObject *x, int64_t dtype, int64_t shape[4], mw_tensor *t) {
    return read_plain(x, dtype, 4, shape, &t->data, &t->batch_stride);
}

/* -- arguments ------------------------------------------------------------------------------- */

/* The spans of a mask, as Python packs them. If the addresses are NULL, the arrays of a decode step
 * follow: offsets, starts, stops. */
typedef struct {
    int64_t q_len, kv_len;
    mw_spans spans;
} PackedSpans;

/* Sizes, dtype, and q, k and v, which have to match each other. */
static int read_qkv(PyObject *const *qkv, mw_args *args) {
    int64_t q[4], k[4], v[4];
    if (!tensor_type || (PyObject *)Py_TYPE(qkv[0]) != tensor_type) return 0;
    while (args->dtype <= MW_FLOAT16 && !attribute_is(qkv[0], DTYPE, dtypes[args->dtype]))
        args->dtype++;
    if (args->dtype > MW_FLOAT16 || !read_4d(qkv[0], args->dtype, q, &args->q) ||
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
                          mw_spans *spans) {
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
static int read_spans(PyObject *bytes, mw_args *args) {
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
static int read_settings(PyObject *settings, mw_args *args) {
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
static int read_out(PyObject *x, const mw_args *args, mw_tensor *t) {
    int64_t shape[4];
    return read_4d(x, args->dtype, shape, t) && shape[0] == args->batch &&
           shape[1] == args->heads && shape[2] == args->q_len && shape[3] == args->v_head_dim;
}

/* A float32 tensor (batch, heads, rows). */
static int read_rows(PyObject *x, const mw_args *args, mw_rows *t) {
    int64_t shape[3];
    return read_plain(x, MW_FLOAT32, 3, shape, (void **)&t->data, &t->batch_stride) &&
           shape[0] == args->batch && shape[1] == args->heads && shape[2] == args->q_len;
}

/* What the function returns for x and an argument that may be NULL: a tensor without values. NULL if
 * it cannot be read. */
static PyObject *new_tensor(PyObject *function, PyObject *x, PyObject *arg, int64_t dtype,
                            mw_tensor *t) {
    int64_t shape[4];
    PyObject *tensor = PyObject_CallFunctionObjArgs(function, x, arg, NULL);
    if (tensor && read_memory(tensor, dtype, 4, shape, &t->data, &t->batch_stride)) return tensor;
    Py_XDECREF(tensor);
    return NULL;
}

/* The output, (batch, heads, q_len, v_head_dim), in the memory layout of q; NULL if it cannot be
 * made. This is `empty_out` of layout.py, without a call of Python for what is usual. */
static PyObject *new_out(PyObject *q, const mw_args *args, mw_tensor *t) {
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

static void set_dense_lse(mw_args *args, void *data) {
    args->lse.data = data;
    args->lse.row_stride = 1;
    args->lse.head_stride = args->q_len;
    args->lse.batch_stride = args->heads * args->q_len;
}

/* The logsumexp: a tensor, or a bytearray of float32 (batch, heads, rows). */
static int read_lse(PyObject *lse, mw_args *args) {
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

/* None: the arguments are not those of a plain call. */
static PyObject *declined(void) { return clear_error() ? none() : NULL; }

/* The same after a pass, unless its error is one that the general path would have too. */
static PyObject *failed(const char *pass, int64_t code) {
    if (code != MW_ERR_INTERRUPTED && code != MW_ERR_NO_MEMORY) return declined();
    raise_code(pass, code);
    return NULL;
}

/* parse_qkv(q, k, v) -> (sizes of the scores, arguments of `plain_forward`), or None if the tensors
 * are not plain. */
static PyObject *parse_qkv(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    mw_args args = MW_ARGS;
    (void)module;
    if (count != 3 || !read_qkv(given, &args)) return declined();
    return Py_BuildValue("(LLLL)y#", args.batch, args.heads, args.q_len, args.kv_len,
                         (const char *)&args, (Py_ssize_t)sizeof args);
}

/* plain_forward(arguments, spans, settings, lse or None, q) -> output, or None. The caller keeps q, k
 * and v. */
static PyObject *plain_forward(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    mw_args args;
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
            return failed("forward", MW_ERR_NO_MEMORY);
        }
        set_dense_lse(&args, scratch);
    }
    Py_BEGIN_ALLOW_THREADS code = mw_forward(&args);
    free(scratch);
    Py_END_ALLOW_THREADS if (code == MW_OK) return out;
    Py_DECREF(out);
    return failed("forward", code);
}

/* plain_backward(spans, settings, lse, (q, k, v, out, ...), dout, dlse or None) -> (dq, dk, dv, None),
 * or None. The saved tensors may be others than those of `plain_forward`. */
static PyObject *plain_backward(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    mw_args args = MW_ARGS;
    PyObject *saved[4], *grads[3] = {0}, *result = NULL;
    mw_tensor *const to[3] = {&args.dq, &args.dk, &args.dv};
    int64_t code = MW_ERR_SHAPE;
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
        Py_BEGIN_ALLOW_THREADS code = mw_backward(&args);
        Py_END_ALLOW_THREADS
    }
    result = code == MW_OK ? PyTuple_Pack(4, grads[0], grads[1], grads[2], Py_None)
                           : failed("backward", code);
    for (int i = 0; i < 3; i++) Py_XDECREF(grads[i]);
    return result;
}

/* -- calls with addresses -------------------------------------------------------------------- */

/* PyArg_ParseTuple of what may be no tuple. */
static int parse(PyObject *x, const char *format, ...) {
    va_list targets;
    if (!PyTuple_Check(x)) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple");
        return 0;
    }
    va_start(targets, format);
    int valid = PyArg_VaParse(x, format, targets);
    va_end(targets);
    return valid;
}

/* A tuple of an address and `count` integers. None gives NULL. */
static int read_strided(PyObject *tuple, void **address, int64_t *ints, Py_ssize_t count) {
    if (tuple == Py_None) return 1;
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != count + 1) {
        PyErr_Format(PyExc_TypeError, "expected an address and %zd integers", count);
        return 0;
    }
    *address = PyLong_AsVoidPtr(PyTuple_GetItem(tuple, 0));
    for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); i++)
        ints[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i + 1));
    return !PyErr_Occurred();
}

static int read_tensor(PyObject *tuple, mw_tensor *t) {
    return read_strided(tuple, &t->data, &t->batch_stride, 4);
}

static int read_row_tensor(PyObject *tuple, mw_rows *t) {
    void *data = NULL;
    if (!read_strided(tuple, &data, &t->batch_stride, 3)) return 0;
    t->data = data;
    return 1;
}

/* (values with strides and origin, addresses of the coordinates or None, gradient or None) */
static int read_term(PyObject *term, mw_term *t) {
    PyObject *values, *coordinates, *grad;
    void *data = NULL, *rows = NULL, *gradient = NULL;
    int64_t keys = 0;
    if (!parse(term, "OOO", &values, &coordinates, &grad) ||
        !read_strided(values, &data, &t->batch_stride, 5) ||
        !read_strided(coordinates, &rows, &keys, 1) ||
        !read_strided(grad, &gradient, &t->grad_batch_stride, 4))
        return 0;
    t->data = data;
    t->rows = rows;
    t->keys = (const int32_t *)(intptr_t)keys;
    t->grad = gradient;
    return 1;
}

/* (soft cap or 0, whether units are processed in order, address of the sinks or 0, their gradient or
 * None, terms) */
static int read_scores(PyObject *scores, mw_scores *s) {
    PyObject *sinks, *dsinks, *terms;
    int in_order;
    if (!parse(scores, "dpOOO!", &s->softcap, &in_order, &sinks, &dsinks, &PyTuple_Type, &terms))
        return 0;
    s->in_order = in_order;
    s->sinks = PyLong_AsVoidPtr(sinks);
    s->num_terms = PyTuple_Size(terms);
    if (s->num_terms > MW_MAX_TERMS) PyErr_SetString(PyExc_ValueError, "too many terms");
    int valid = !PyErr_Occurred() && read_row_tensor(dsinks, &s->dsinks);
    for (Py_ssize_t i = 0; valid && i < s->num_terms; i++)
        valid = read_term(PyTuple_GetItem(terms, i), &s->terms[i]);
    return valid;
}

/* (planes of batch and heads, addresses of offsets, starts and stops) */
static int read_span_arrays(PyObject *tuple, mw_spans *spans) {
    PyObject *offsets, *starts, *stops;
    if (!parse(tuple, "LLOOO", &spans->batch, &spans->heads, &offsets, &starts, &stops)) return 0;
    spans->offsets = PyLong_AsVoidPtr(offsets);
    spans->starts = PyLong_AsVoidPtr(starts);
    spans->stops = PyLong_AsVoidPtr(stops);
    return !PyErr_Occurred();
}

enum { NUM_FORWARD = 10, NUM_BACKWARD = 15 };

/* The arguments of both passes, in the order of mw_args. */
static int read_args(PyObject *const *given, Py_ssize_t count, mw_args *args, mw_scores *scores) {
    mw_dropout *d = &args->dropout;
    if (count != NUM_FORWARD && count != NUM_BACKWARD) {
        PyErr_SetString(PyExc_TypeError, "a wrong number of arguments");
        return 0;
    }
    if (!parse(given[0], "LLLLLLL", &args->batch, &args->heads, &args->kv_heads, &args->q_len,
               &args->kv_len, &args->head_dim, &args->v_head_dim) ||
        !parse(given[1], "LLd", &args->dtype, &args->threads, &args->scale) ||
        !read_span_arrays(given[2], &args->spans) ||
        !parse(given[3], "KdLLLL", &d->seed, &d->p, &d->q_offset, &d->q_stride, &d->k_offset,
               &d->k_stride))
        return 0;
    if (given[4] != Py_None) {
        if (!read_scores(given[4], scores)) return 0;
        args->scores = scores;
    }
    mw_tensor *const forward[] = {&args->q, &args->k, &args->v, &args->out};
    mw_tensor *const backward[] = {&args->dout, &args->dq, &args->dk, &args->dv};
    int valid = 1;
    for (int i = 0; valid && i < 4; i++) valid = read_tensor(given[5 + i], forward[i]);
    valid = valid && read_row_tensor(given[9], &args->lse);
    if (count == NUM_FORWARD) return valid;
    for (int i = 0; valid && i < 4; i++) valid = read_tensor(given[10 + i], backward[i]);
    return valid && read_row_tensor(given[14], &args->dlse);
}

static PyObject *run(const char *pass, int64_t (*function)(const mw_args *), PyObject *const *given,
                     Py_ssize_t count) {
    mw_args args = MW_ARGS;
    mw_scores scores = {0};
    int64_t code;
    if (!read_args(given, count, &args, &scores)) return NULL;
    Py_BEGIN_ALLOW_THREADS code = function(&args);
    Py_END_ALLOW_THREADS if (code == MW_OK) return none();
    raise_code(pass, code);
    return NULL;
}

/* forward(sizes, (dtype, threads, scale), spans, dropout, scores or None, q, k, v, out, lse). Each is
 * a tuple, of a tensor its address and strides in elements. */
static PyObject *forward(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    (void)module;
    return run("forward", mw_forward, given, count);
}

/* backward(as forward ..., dout, dq, dk, dv, dlse or None) */
static PyObject *backward(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    (void)module;
    return run("backward", mw_backward, given, count);
}

/* -- settings -------------------------------------------------------------------------------- */

/* isas() -> names of the instruction sets that this processor and the library support, best first. */
static PyObject *isas(PyObject *module, PyObject *unused) {
    PyObject *list = PyList_New(0), *tuple;
    const char *name;
    (void)module;
    (void)unused;
    for (int64_t n = 0; list && (name = mw_isa_at(n)); n++) {
        PyObject *text = PyUnicode_FromString(name);
        if (!text || PyList_Append(list, text)) Py_CLEAR(list);
        Py_XDECREF(text);
    }
    tuple = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

static PyObject *isa(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyUnicode_FromString(mw_isa());
}

/* use_isa(name) -> whether it is supported. */
static PyObject *use_isa(PyObject *module, PyObject *args) {
    const char *name;
    (void)module;
    if (!PyArg_ParseTuple(args, "s", &name)) return NULL;
    return PyBool_FromLong(mw_use_isa(name) == MW_OK);
}

/* borrow_threads() -> whether passes run on PyTorch's OpenMP threads from now on. */
static PyObject *borrow_threads(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyBool_FromLong(mw_borrow_threads());
}

static PyObject *borrows_threads(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyBool_FromLong(mw_borrows_threads());
}

/* profile(on): start counting cycles from 0, or stop. */
static PyObject *profile(PyObject *module, PyObject *args) {
    int on;
    (void)module;
    if (!PyArg_ParseTuple(args, "p", &on)) return NULL;
    mw_profile(on);
    return none();
}

/* phases() -> {name: cycles} */
static PyObject *phases(PyObject *module, PyObject *unused) {
    PyObject *cycles_by_name = PyDict_New();
    const char *name;
    int64_t cycles;
    (void)module;
    (void)unused;
    for (int64_t n = 0; cycles_by_name && (name = mw_phase(n, &cycles)); n++) {
        PyObject *number = PyLong_FromLongLong(cycles);
        if (!number || PyDict_SetItemString(cycles_by_name, name, number)) Py_CLEAR(cycles_by_name);
        Py_XDECREF(number);
    }
    return cycles_by_name;
}

#define FAST(function) (PyCFunction)(void (*)(void)) function, METH_FASTCALL, NULL

static PyMethodDef methods[] = {
    {"set_types", set_types, METH_VARARGS, NULL},
    {"parse_qkv", FAST(parse_qkv)},
    {"plain_forward", FAST(plain_forward)},
    {"plain_backward", FAST(plain_backward)},
    {"forward", FAST(forward)},
    {"backward", FAST(backward)},
    {"isas", isas, METH_NOARGS, NULL},
    {"isa", isa, METH_NOARGS, NULL},
    {"use_isa", use_isa, METH_VARARGS, NULL},
    {"borrow_threads", borrow_threads, METH_NOARGS, NULL},
    {"borrows_threads", borrows_threads, METH_NOARGS, NULL},
    {"profile", profile, METH_VARARGS, NULL},
    {"phases", phases, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

/* Of the functions above, as Python calls them: grows when their names or arguments change. */
enum { INTERFACE = 2 };

static int start(PyObject *module) {
    mw_set_interrupt(check_signals);
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, start}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_kernel", NULL, 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&definition); }
