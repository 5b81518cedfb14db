/* The arguments of one kernel call, as Python passes them.
 *
 * `KernelArgs` in bindings.py is the same structure in ctypes. Both sides compare the name, offset
 * and size of every field when the library is loaded (maskwright_field in api.c), so a field that
 * is added or moved here must be added or moved there. */
#ifndef MASKWRIGHT_KERNEL_ARGS_H
#define MASKWRIGHT_KERNEL_ARGS_H

#include <stddef.h>
#include <stdint.h>

enum { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2 };
enum { MAX_HEAD_DIM = 256 };
enum { MAX_TERMS = 4 };    /* of a bias */
#define MAX_SCALE 1e30    /* of the scores; validate.py has the same limit */

#define LOG2E 1.4426950408889634
#define LN2 0.6931471805599453

/* Return codes. From ERR_SHAPE on, each is one invalid argument; api.c has a text for each. */
enum {
    OK = 0,
    ERR_NO_MEMORY = 1,
    ERR_INTERRUPTED = 2,
    ERR_UNKNOWN_ISA = 3,
    ERR_SHAPE = 16,
    ERR_KV_HEADS,
    ERR_HEAD_DIM,
    ERR_V_HEAD_DIM,
    ERR_DTYPE,
    ERR_THREADS,
    ERR_SPANS,
    ERR_SPANS_POINTER,
    ERR_DROPOUT,
    ERR_SCALE,
    ERR_Q,
    ERR_K,
    ERR_V,
    ERR_OUT,
    ERR_LSE,
    ERR_DOUT,
    ERR_DQ,
    ERR_DK,
    ERR_DV,
    ERR_DLSE,
    ERR_SCORES,
    ERR_COUNT, /* one past the last */
};

/* A tensor (batch, heads, rows, dim). Strides are in elements; dim_stride is 1, or dim is 1. */
typedef struct {
    void *data;
    int64_t batch_stride, head_stride, row_stride, dim_stride;
} Tensor;

/* float32 numbers (batch, heads, rows): the logsumexp or its gradient. */
typedef struct {
    float *data;
    int64_t batch_stride, head_stride, row_stride;
} RowTensor;

/* The bound mask. Row r of plane p attends to the keys starts[i] ... stops[i] - 1 for
 * offsets[n] <= i < offsets[n + 1], n = p * q_len + r. Planes are (batch, heads), each 1 if shared. */
typedef struct {
    int64_t batch, heads;
    const int64_t *offsets, *starts, *stops;
} Spans;

/* Dropout of the softmax weights; see dropout.h. Row r of this call is query
 * q_offset + r * q_stride of the whole attention call, and likewise for keys. */
typedef struct {
    uint64_t seed;
    double p;
    int64_t q_offset, q_stride, k_offset, k_stride;
} Dropout;

/* One term of the bias. Row r and key k of a (batch, head) have the value at
 *
 *   data[batch * batch_stride + head * head_stride + origin + row(r) + key(k)]
 *
 * where row(r) is r * row_stride, or -rows[r] if there are coordinates, and key(k) is k * key_stride,
 * or keys[k]. Coordinates are strictly ascending. So one value per distance is row_stride -1 and
 * key_stride 1, and one per distance in a 2-D grid has coordinates.
 *
 * With grad_length 0, the gradient of a cell is added at grad[batch * grad_batch_stride + head *
 * grad_head_stride + r * grad_row_stride + k]. Otherwise cells of several rows and keys share a
 * value, and the gradient of a (batch, head) is grad_length floats that are indexed like data. */
typedef struct {
    const float *data;
    int64_t batch_stride, head_stride, row_stride, key_stride, origin;
    const int32_t *rows, *keys; /* coordinates, both or neither */
    float *grad;                /* NULL if there is no gradient */
    int64_t grad_batch_stride, grad_head_stride, grad_row_stride, grad_length;
} Term;

/* What changes the scores: softcap * tanh(score / softcap), then the terms of the bias, then a sink
 * of each head in the denominator of the softmax. */
typedef struct {
    double softcap; /* 0 for none */
    int64_t num_terms;
    int64_t in_order;   /* units share cells of a gradient: they must be processed in order */
    const float *sinks; /* [heads], or NULL */
    RowTensor dsinks;   /* gradient of the sink by row; data may be NULL */
    Term terms[MAX_TERMS];
} ScoreArgs;

typedef struct {
    int64_t batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim;
    int64_t dtype, threads;
    double scale;
    Spans spans;
    Dropout dropout;
    const ScoreArgs *scores; /* NULL if nothing changes the scores */
    Tensor q, k, v, out;
    RowTensor lse; /* natural logarithm, without sinks; -inf for a fully masked row */
    /* Backward pass only. */
    Tensor dout, dq, dk, dv;
    RowTensor dlse; /* data is NULL if the logsumexp has no gradient */
} KernelArgs;

static inline int64_t round_up(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}
static inline int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }
static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

static inline double softcap_of(const KernelArgs *args) {
    return args->scores ? args->scores->softcap : 0.0;
}

/* Is there a soft cap or a bias? */
static inline int changes_scores(const KernelArgs *args) {
    return args->scores && (args->scores->softcap > 0 || args->scores->num_terms);
}

/* Scores of weights are 2^(score * score_base): scores are in base 2, but natural if there is a soft
 * cap or a bias, since a large bias times log2(e) is not finite. */
static inline float score_base(const KernelArgs *args) {
    return changes_scores(args) ? (float)LOG2E : 1.0f;
}

/* The factor of q k: to the score, or to its quotient by the soft cap. The limits of scale and soft
 * cap allow a larger quotient, of which tanh is 1. */
static inline float score_factor(const KernelArgs *args) {
    const double cap = softcap_of(args), max_factor = 1e32;
    double factor = cap > 0 ? args->scale / cap : args->scale;
    if (!changes_scores(args)) factor *= LOG2E;
    return (float)(factor > max_factor ? max_factor : factor < -max_factor ? -max_factor : factor);
}

static inline int64_t dtype_size(int64_t dtype) { return dtype == FLOAT32 ? 4 : 2; }

static inline void *tensor_row(const Tensor *t, int64_t dtype, int64_t batch, int64_t head,
                               int64_t row) {
    int64_t index = batch * t->batch_stride + head * t->head_stride + row * t->row_stride;
    return (char *)t->data + index * dtype_size(dtype);
}

static inline float *row_element(const RowTensor *t, int64_t batch, int64_t head, int64_t row) {
    return t->data + batch * t->batch_stride + head * t->head_stride + row * t->row_stride;
}

#endif
