/* What Python hands over: sizes, pointers, strides in elements, and spans; and what each
 * instruction set gives back: how large its tiles are, and the work on one item. */
#ifndef MASKWRIGHT_ATTEND_H
#define MASKWRIGHT_ATTEND_H

#include <stddef.h>
#include <stdint.h>

enum { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2 };
enum { FEW_ROWS = 8 }; /* of a team, up to which keys are not packed */
enum { DONE = 0, NO_MEMORY = 1, NO_SUCH_ISA = 2 };

/* (batch, heads, rows) of a tensor whose last axis has no gaps. */
typedef struct {
    void *data;
    int64_t batch, head, row;
} Tensor;

/* Row r of plane p sees the keys starts[i] … stops[i] - 1 for offsets[n] <= i < offsets[n + 1],
 * where n = p * rows + r. A plane serves one batch row and head, or all of them. */
typedef struct {
    int64_t batch, heads;
    const int64_t *offsets, *starts, *stops;
} Spans;

typedef struct {
    int64_t batch, heads, key_heads, rows, keys, dim, value_dim;
    int64_t dtype, threads;
    double scale;
    Spans spans;
    Tensor q, k, v, out;
    float *lse; /* (batch, heads, rows), without gaps; natural, or as `binary` says */
    /* Of the backward pass alone. */
    Tensor grad, dq, dk, dv;
    const float *grad_lse; /* as lse, or NULL */
    /* Of both passes: lse is in powers of 2, and scores are summed alike, so that the backward pass
     * has the very weights of the forward pass again. */
    int64_t binary;
} Attention;

/* The keys and values of one batch row and key head as the kernel reads them. */
typedef struct {
    float *panels;       /* [panel][dim][keys of a panel], times scale and log2(e) */
    const float *values; /* [key][value_stride] */
    int64_t value_stride;
} Keys;

/* Query heads that share a key head and a plane; row n of a team is row n / heads of head
 * first_head + n % heads. */
typedef struct {
    int64_t batch, key_head, first_head, heads;
    const int64_t *offsets;
} Team;

/* One instruction set's kernel. The backward pass of a unit is done in parts, which take its blocks
 * of keys in turn; each adds up a dq of its own, and write_dq writes their sum; where there is but
 * one part, and dq is NULL, it writes it itself. */
typedef struct {
    const char *name;
    int64_t panel_keys, block_rows;
    int64_t (*values_as_given)(const Attention *a);
    int64_t (*values_width)(const Attention *a);
    size_t (*forward_space)(const Attention *a);
    void (*pack)(const Attention *a, const uint64_t *seen, int64_t batch, int64_t key_head,
                 int64_t first, int64_t stop, Keys *keys);
    void (*forward)(const Attention *a, const Team *team, const Keys *keys, int64_t first,
                    int64_t stop, void *space);
    /* Few rows: no packing. Each part of the keys leaves few_floats floats, which are merged. */
    size_t (*few_space)(const Attention *a);
    int64_t (*few_floats)(const Attention *a);
    void (*few)(const Attention *a, const Team *team, int64_t first, int64_t stop, float *found,
                void *space);
    void (*few_merge)(const Attention *a, const Team *team, float *found, int64_t parts);
    int64_t back_keys; /* in a block of the backward pass */
    size_t (*backward_space)(const Attention *a);
    void (*backward)(const Attention *a, const uint64_t *seen, int64_t batch, int64_t key_head,
                     int64_t part, int64_t parts, float *dq, void *space);
    int64_t (*dq_floats)(const Attention *a);
    void (*write_dq)(const Attention *a, int64_t batch, int64_t key_head, float *dq, int64_t parts,
                     int64_t apart);
} Isa;

extern const Isa isa_baseline;
#if defined(__x86_64__)
extern const Isa isa_avx2;
extern const Isa isa_avx512;
#endif

static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
