/* The interface between the schedulers (forward.c, backward.c) and the kernels, which are compiled
 * once per instruction set from kernel.h. */
#ifndef MASKWRIGHT_ISA_H
#define MASKWRIGHT_ISA_H

#include "args.h"

#include <stdatomic.h>

enum { MAX_DECODE_ROWS = 8 }; /* query rows of a GQA group up to which split-KV decode is used */

#define NO_KEY INT64_MAX /* no visible key follows */

/* Query heads that share a KV head and a plane of the mask. They are processed together: row n of
 * a group is query n / heads of head first_head + n % heads. */
typedef struct {
    int64_t batch, kv_head, first_head, heads;
    const int64_t *offsets; /* the plane's part of mw_spans.offsets */
} GqaGroup;

/* K and V of one (batch, kv_head) as the forward kernel reads them. */
typedef struct {
    float *panels;  /* [panel][head_dim][keys of a panel], times scale and log2(e); in scattered.h
                      * rows of K as they are, padded to whole vectors */
    const float *v; /* [key][v_stride] */
    int64_t v_stride;
    int64_t next_first, next_last; /* keys that are packed next: they are prefetched meanwhile */
} PackedKV;

/* The rows of a row block in the backward pass. */
enum RowsState { ROWS_UNREAD, ROWS_PREPARED, ROWS_WRITTEN };

/* The backward pass of one (batch, kv_head): what all threads share. Rows of all GQA groups stand
 * one after the other, each group padded to whole row blocks. */
typedef struct {
    int64_t batch, kv_head;
    int64_t rows, row_blocks, kv_blocks;
    int64_t d, dv;             /* head dims, rounded up to whole vectors */
    float *q, *dout, *dq;      /* [rows][d or dv] */
    float *lse, *delta;        /* [rows]; lse as the scores are */
    int64_t *span, *span_stop; /* [rows]: intervals of each row; none for masked rows */
    uint8_t *row_flags;        /* [rows]: q or dO holds NaN or Inf */
    uint8_t *block_flags;      /* [row_blocks]: some row of the block is flagged */
    uint8_t *states;           /* [row_blocks]: one of RowsState */
    uint64_t *tiles;           /* [row_blocks][tile_words]: key blocks with a visible cell */
    int64_t tile_words;
    _Atomic int32_t *next_kv_block; /* [row_blocks]: the key block whose dQ is to be added next */
    uint64_t *visible;              /* bit per key: some row attends to it */
    int64_t next_first, next_last;  /* row blocks that are prepared next: they are prefetched */
    _Atomic int64_t next_item;      /* the next key block to be started */
    _Atomic int64_t next_merge; /* the key block whose gradients of shared values are added next */
} BackwardUnit;

typedef struct {
    const char *name;
    int64_t panel_keys; /* keys of a panel */
    int64_t block_m;    /* rows of a forward work item */

    void (*tanh)(const float *from, float *to, int64_t n);
    int64_t (*v_in_place)(const mw_args *args); /* can V be read where it is? */
    int64_t (*v_width)(const mw_args *args);    /* floats of a row of packed V */
    void (*pack)(const mw_args *args, const uint64_t *visible, int64_t batch, int64_t kv_head,
                 int64_t first_panel, int64_t last_panel, PackedKV *kv);
    size_t (*forward_scratch)(const mw_args *args);
    void (*forward)(const mw_args *args, const GqaGroup *group, const PackedKV *kv,
                    int64_t first_row, int64_t last_row, void *scratch);

    size_t (*decode_scratch)(const mw_args *args);
    int64_t (*decode_partial_floats)(const mw_args *args); /* partial result of one split */
    void (*decode_split)(const mw_args *args, const GqaGroup *group, int64_t first_key,
                         int64_t last_key, float *partial, void *scratch);
    void (*decode_merge)(const mw_args *args, const GqaGroup *group, float *partials,
                         int64_t splits);

    int64_t bwd_block_m, bwd_block_n;
    size_t (*backward_unit_size)(const mw_args *args);
    void (*backward_unit)(const mw_args *args, int64_t batch, int64_t kv_head, char *memory,
                          BackwardUnit *unit);
    size_t (*backward_scratch)(const mw_args *args);
    void (*backward_tiles)(const mw_args *args, BackwardUnit *unit, int64_t first_block,
                           int64_t last_block);
    void (*backward_prepare)(const mw_args *args, BackwardUnit *unit, int64_t first_block,
                             int64_t last_block);
    void (*backward_kv_block)(const mw_args *args, BackwardUnit *unit, int64_t kv_block,
                              void *scratch);
    void (*backward_write_dq)(const mw_args *args, const BackwardUnit *unit, int64_t first_block,
                              int64_t last_block);

    /* For scattered masks; the first three are in place of pack, forward_scratch and forward. */
    void (*pack_rows)(const mw_args *args, const uint64_t *visible, int64_t batch, int64_t kv_head,
                      int64_t first_panel, int64_t last_panel, PackedKV *kv);
    size_t (*scattered_scratch)(const mw_args *args);
    void (*scattered_forward)(const mw_args *args, const GqaGroup *group, const PackedKV *kv,
                              int64_t first_row, int64_t last_row, void *scratch);
    size_t (*scattered_backward_size)(const mw_args *args);
    void (*scattered_backward)(const mw_args *args, int64_t unit, void *scratch);
} Isa;

extern const Isa isa_baseline;
#if defined(__x86_64__)
extern const Isa isa_avx2;
extern const Isa isa_avx512;
#endif

#endif
