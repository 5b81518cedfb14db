/* Attention under masks on the CPU: the public interface of the C library.
 *
 * A call is described by one mw_args. Begin with MW_ARGS and set the fields of the pass; what a
 * backward pass alone reads may stay zero in a forward pass. Every function may be called from any
 * thread. Nothing is kept after a call but scratch memory.
 *
 *     mw_args args = MW_ARGS;
 *     args.batch = 1;
 *     ...
 *     int64_t code = mw_forward(&args);
 *     if (code != MW_OK) fprintf(stderr, "%s\n", mw_error(code));
 */
#ifndef MASKWRIGHT_H
#define MASKWRIGHT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MW_VERSION = 1 }; /* of mw_args; it grows when a field changes its meaning or its place */

enum { MW_FLOAT32 = 0, MW_BFLOAT16 = 1, MW_FLOAT16 = 2 };
enum { MW_MAX_HEAD_DIM = 256 };
enum { MW_MAX_TERMS = 4 }; /* of a bias */
#define MW_MAX_SCALE 1e30  /* of the scores */

/* Return codes. From MW_ERR_VERSION on, each is one invalid argument. */
enum {
    MW_OK = 0,
    MW_ERR_NO_MEMORY = 1,   /* for scratch memory */
    MW_ERR_INTERRUPTED = 2, /* by the function of mw_set_interrupt; the results are incomplete */
    MW_ERR_UNKNOWN_ISA = 3, /* of mw_use_isa */
    MW_ERR_VERSION = 16,
    MW_ERR_SHAPE,
    MW_ERR_KV_HEADS,
    MW_ERR_HEAD_DIM,
    MW_ERR_V_HEAD_DIM,
    MW_ERR_DTYPE,
    MW_ERR_THREADS,
    MW_ERR_SPANS,
    MW_ERR_SPANS_POINTER,
    MW_ERR_DROPOUT,
    MW_ERR_SCALE,
    MW_ERR_Q,
    MW_ERR_K,
    MW_ERR_V,
    MW_ERR_OUT,
    MW_ERR_LSE,
    MW_ERR_DOUT,
    MW_ERR_DQ,
    MW_ERR_DK,
    MW_ERR_DV,
    MW_ERR_DLSE,
    MW_ERR_SCORES,
    MW_ERR_COUNT, /* one past the last */
};

/* A tensor (batch, heads, rows, dim). Strides are in elements; dim_stride is 1, or dim is 1. */
typedef struct {
    void *data;
    int64_t batch_stride, head_stride, row_stride, dim_stride;
} mw_tensor;

/* float32 numbers (batch, heads, rows): the logsumexp or its gradient. */
typedef struct {
    float *data;
    int64_t batch_stride, head_stride, row_stride;
} mw_rows;

/* The mask. Row r of plane p attends to the keys starts[i] ... stops[i] - 1 for offsets[n] <= i <
 * offsets[n + 1], n = p * q_len + r. Planes are (batch, heads), each 1 if shared. The intervals of a
 * row are ascending, not empty, and within the keys: that is not checked. */
typedef struct {
    int64_t batch, heads;
    const int64_t *offsets, *starts, *stops;
} mw_spans;

/* Dropout of the softmax weights. Row r of this call is query q_offset + r * q_stride of the whole
 * attention call, and likewise for keys. Strides are at least 1, also without dropout. */
typedef struct {
    uint64_t seed;
    double p; /* 0 for none */
    int64_t q_offset, q_stride, k_offset, k_stride;
} mw_dropout;

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
} mw_term;

/* What changes the scores: softcap * tanh(score / softcap), then the terms of the bias, then a sink
 * of each head in the denominator of the softmax. */
typedef struct {
    double softcap; /* 0 for none */
    int64_t num_terms;
    int64_t in_order;   /* units share cells of a gradient: they must be processed in order */
    const float *sinks; /* [heads], or NULL */
    mw_rows dsinks;     /* gradient of the sink by row; data may be NULL */
    mw_term terms[MW_MAX_TERMS];
} mw_scores;

typedef struct {
    uint64_t size;    /* sizeof(mw_args) where the caller was compiled */
    uint64_t version; /* MW_VERSION where the caller was compiled */
    int64_t batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim;
    int64_t dtype; /* of all mw_tensor */
    int64_t threads;
    double scale;
    mw_spans spans;
    mw_dropout dropout;
    const mw_scores *scores; /* NULL if nothing changes the scores */
    mw_tensor q, k, v, out;
    mw_rows lse; /* natural logarithm, without sinks; -inf for a fully masked row */
    /* Backward pass only. */
    mw_tensor dout, dq, dk, dv;
    mw_rows dlse; /* data is NULL if the logsumexp has no gradient */
} mw_args;

/* The initial value of mw_args, in C and C++20. */
#define MW_ARGS \
    {.size = sizeof(mw_args), .version = MW_VERSION, .dropout = {.q_stride = 1, .k_stride = 1}}

/* Compute out and lse. */
int64_t mw_forward(const mw_args *args);

/* Compute dq, dk, dv, and what scores asks for, from the inputs and results of the forward pass. */
int64_t mw_backward(const mw_args *args);

/* What a return code means. */
const char *mw_error(int64_t code);

/* The nth instruction set of this processor, best first; NULL past the last. */
const char *mw_isa_at(int64_t n);

/* The instruction set in use: the best one, or that of the last mw_use_isa. */
const char *mw_isa(void);
int64_t mw_use_isa(const char *name);

/* Call this function every 0.1 s, in the thread that called a pass. If it returns something else
 * than 0, the pass stops with MW_ERR_INTERRUPTED. NULL for none. */
void mw_set_interrupt(int (*is_interrupted)(void));

/* Run on the threads of the OpenMP library that PyTorch has loaded in this process, if there is one,
 * so that no second pool competes with it. 1 if there is. A child of fork() starts its own. */
int mw_borrow_threads(void);
int mw_borrows_threads(void);

#ifdef __cplusplus
}
#endif

#endif
