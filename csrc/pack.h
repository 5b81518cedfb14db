/* Packing: K as panels [head_dim][NR], V as rows of floats. Keys that no row attends to are not
 * read; in a vector with other keys they are 0. */
#ifndef MASKWRIGHT_PACK_H
#define MASKWRIGHT_PACK_H

#include "bitmask.h"
#include "profile.h"

static int64_t v_width(const mw_args *args) { return round_up(args->v_head_dim, W); }

/* Can V be read where it is? Not if whole vectors would pass a row's end, nor if the row stride
 * maps the rows to few cache sets. */
static int64_t v_in_place(const mw_args *args) {
    int64_t stride = args->v.row_stride;
    return args->dtype == MW_FLOAT32 && args->v_head_dim % W == 0 &&
           (stride <= 2 * args->v_head_dim || stride * 4 % 512 != 0);
}

/* Prefetch a row of a tensor. With other heads in between, the hardware prefetcher does not help. */
INLINE void prefetch_row(const char *row, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at);
}

/* The same into the L2 cache, to be read or to be written. */
INLINE void prefetch_read(const char *row, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
}
INLINE void prefetch_write(const char *row, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 1, 2);
}

/* Rows that are prefetched into the L2 cache during a computation, some at a time: the processor has
 * few requests for memory under way, and waits if there are more. */
enum { PREFETCH_QUEUE = 64, PREFETCH_AT_ONCE = 4 };

typedef struct {
    struct {
        const char *row;
        int32_t bytes, write;
    } queued[PREFETCH_QUEUE];
    int count;
} PrefetchQueue;

INLINE void prefetch_later(PrefetchQueue *q, const char *row, int64_t bytes, int write) {
    if (q->count == PREFETCH_QUEUE) return;
    q->queued[q->count].row = row;
    q->queued[q->count].bytes = (int32_t)bytes;
    q->queued[q->count++].write = write;
}

/* Prefetch the `count` rows that were queued last. */
INLINE void prefetch_queued(PrefetchQueue *q, int count) {
    for (; count > 0 && q->count > 0; count--) {
        q->count--;
        if (q->queued[q->count].write)
            prefetch_write(q->queued[q->count].row, q->queued[q->count].bytes);
        else
            prefetch_read(q->queued[q->count].row, q->queued[q->count].bytes);
    }
}

/* Queue part `part` of `parts` of K and V of the keys that are packed next. */
INLINE void queue_next(const mw_args *args, const GqaGroup *group, const PackedKV *kv, int64_t part,
                       int64_t parts, PrefetchQueue *queue) {
    const int64_t count = kv->next_last - kv->next_first, size = dtype_size(args->dtype);
    for (int64_t key = kv->next_first + count * part / parts;
         key < kv->next_first + count * (part + 1) / parts; key++) {
        prefetch_later(queue, tensor_row(&args->k, args->dtype, group->batch, group->kv_head, key),
                       args->head_dim * size, 0);
        prefetch_later(queue, tensor_row(&args->v, args->dtype, group->batch, group->kv_head, key),
                       args->v_head_dim * size, 0);
    }
}

enum { PREFETCH_ROWS = 6 }; /* distance of the rows that are prefetched */

/* panel[d * NR + r] = rows[r][d] * factor for W rows. Meanwhile the rows after them, `ahead` bytes
 * further, are prefetched where the cache has lines that are not needed any more. */
INLINE void interleave(const float *const rows[W], int64_t dim, float factor, int64_t ahead,
                       float *panel) {
    int64_t d = 0;
    for (; d + W <= dim; d += W) {
        vec x[W];
        UNROLL(16, int r = 0; r < W; r++) x[r] = load(rows[r] + d) * factor;
        for (int r = 0; ahead && r < W; r++)
            __builtin_prefetch((const char *)(rows[r] + d) + ahead);
        transpose(x);
        UNROLL(16, int r = 0; r < W; r++) store(panel + (d + r) * NR, x[r]);
    }
    for (; d < dim; d++)
        for (int r = 0; r < W; r++) panel[d * NR + r] = rows[r][d] * factor;
}

/* K or V of one (batch, kv_head), to be packed. */
typedef struct {
    const mw_tensor *tensor;
    const uint64_t *visible;
    int64_t dtype, batch, kv_head, kv_len, dim;
} PackSource;

/* The keys first ... first + NR - 1 as one panel. A vector of keys of which none is visible is left
 * out: no row computes its scores. */
static void pack_panel(const PackSource *s, int64_t first, float factor, float *panel) {
    static const float zeros[MW_MAX_HEAD_DIM];
    float converted[W][MW_MAX_HEAD_DIM];
    for (int part = 0; part < NV; part++) {
        const float *rows[W];
        const int64_t begin = first + part * W;
        if (!(s->visible[begin / 64] >> (begin % 64) & VECTOR_BITS)) continue;
        for (int r = 0; r < W; r++) {
            int64_t key = begin + r;
            rows[r] = zeros;
            if (s->dtype != MW_FLOAT32 && key + W < s->kv_len)
                prefetch_row(tensor_row(s->tensor, s->dtype, s->batch, s->kv_head, key + W),
                             s->dim * dtype_size(s->dtype));
            if (key >= s->kv_len || !bit_is_set(s->visible, key)) continue;
            const void *row = tensor_row(s->tensor, s->dtype, s->batch, s->kv_head, key);
            if (s->dtype == MW_FLOAT32) {
                rows[r] = row;
            } else {
                read_floats(converted[r], row, s->dtype, s->dim);
                rows[r] = converted[r];
            }
        }
        const int in_place = s->dtype == MW_FLOAT32 && first + (part + 2) * W <= s->kv_len;
        interleave(rows, s->dim, factor, in_place ? s->tensor->row_stride * W * 4 : 0,
                   panel + part * W);
    }
}

/* The visible keys first ... last - 1 as rows of `stride` floats. */
static void pack_keys(const PackSource *s, int64_t first, int64_t last, float *rows,
                      int64_t stride) {
    for (int64_t key = first; key < min_i64(last, s->kv_len); key++) {
        if (key + PREFETCH_ROWS < s->kv_len)
            prefetch_row(tensor_row(s->tensor, s->dtype, s->batch, s->kv_head, key + PREFETCH_ROWS),
                         s->dim * dtype_size(s->dtype));
        if (bit_is_set(s->visible, key))
            read_padded(rows + key * stride,
                        tensor_row(s->tensor, s->dtype, s->batch, s->kv_head, key), s->dtype,
                        s->dim, stride);
    }
}

/* The panels first_panel ... last_panel - 1 of one (batch, kv_head), and V of their keys. */
static void pack(const mw_args *args, const uint64_t *visible, int64_t batch, int64_t kv_head,
                 int64_t first_panel, int64_t last_panel, PackedKV *kv) {
    const PackSource k = {&args->k, visible,      args->dtype,   batch,
                          kv_head,  args->kv_len, args->head_dim};
    const int64_t begin = phase_begin();
    for (int64_t panel = first_panel; panel < last_panel; panel++) {
        if (!(visible[panel * NR / 64] >> (panel * NR % 64) & PANEL_BITS)) continue;
        pack_panel(&k, panel * NR, score_factor(args), kv->panels + panel * NR * args->head_dim);
    }
    const PackSource v = {&args->v, visible,      args->dtype,     batch,
                          kv_head,  args->kv_len, args->v_head_dim};
    if (!v_in_place(args))
        pack_keys(&v, first_panel * NR, last_panel * NR, (float *)kv->v, kv->v_stride);
    phase_end(PHASE_PACK, begin);
}

#endif
