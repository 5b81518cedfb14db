/* Attention under scattered masks: neighbouring rows share too few keys for the tiles of forward.h
 * and backward.h, as in 2-D neighbourhoods and trees.
 *
 * Each row is computed over its own keys only, W at a time. Up to SCATTERED_ROWS rows take their keys
 * in turn, so that keys which they share stay in the L1 cache. K and V are rows of floats, and a
 * masked cell is never read.
 *
 *   forward:  S = q K^T, m, P = exp2(S - m), l, acc = acc * alpha + P V
 *   backward: P = exp2(q K^T - lse), dS = P * (dO V^T - delta),
 *             dQ += dS K, dK += dS^T Q, dV += P^T dO; one thread computes a whole unit, in order */
#ifndef MASKWRIGHT_SCATTERED_H
#define MASKWRIGHT_SCATTERED_H

#include "backward.h"
#include "microkernel.h"
#include "pack.h"
#include "softmax.h"
#include "threads.h"

enum { SCATTERED_ROWS = 4, SCATTERED_KEYS = BLOCK_N };

/* The keys of a row that are left. */
typedef struct {
    int64_t span, stop; /* intervals */
    int64_t key;        /* the next key of interval `span` */
} KeyCursor;

INLINE KeyCursor key_cursor(const mw_spans *spans, int64_t span, int64_t stop) {
    return (KeyCursor){span, stop, span < stop ? spans->starts[span] : 0};
}

/* Up to SCATTERED_KEYS next keys of a row; the last is repeated up to a multiple of W. `index` has
 * space for W more. */
static int64_t next_keys(const mw_spans *spans, KeyCursor *c, int32_t *index) {
    const ivec lane = LANES;
    int64_t count = 0;
    while (c->span < c->stop && count < SCATTERED_KEYS) {
        const int64_t end = min_i64(spans->stops[c->span], c->key + SCATTERED_KEYS - count);
        for (int64_t key = c->key; key < end; key += W)
            store_int(index + count + (key - c->key), lane + (int32_t)key);
        count += end - c->key;
        c->key = end;
        if (end == spans->stops[c->span] && ++c->span < c->stop) c->key = spans->starts[c->span];
    }
    if (count) store_int(index + count, (ivec){0} + index[count - 1]);
    return count;
}

/* x times W rows of a matrix. `nv` is the number of vectors of a row. */
INLINE vec dot_rows(const float *x, const float *rows, int64_t stride, const int32_t *index,
                    const int nv) {
    vec acc[W];
    UNROLL(16, int i = 0; i < W; i++) {
        const float *row = rows + index[i] * stride;
        acc[i] = load(x) * load(row);
        UNROLL(8, int n = 1; n < nv; n++) acc[i] += load(x + n * W) * load(row + n * W);
    }
    return reduce_each(acc);
}

/* acc += sum over `count` rows i of weights[i] * rows[index[i]], for `tile` vectors of columns. */
INLINE void add_rows_tile(const float *weights, const float *rows, int64_t stride,
                          const int32_t *index, int64_t count, float *acc, const int tile) {
    vec sum[8];
    UNROLL(8, int n = 0; n < tile; n++) sum[n] = load(acc + n * W);
    for (int64_t i = 0; i < count; i++) {
        const float *row = rows + index[i] * stride;
        const vec weight = broadcast(weights[i]);
        UNROLL(8, int n = 0; n < tile; n++) sum[n] += weight * load(row + n * W);
    }
    UNROLL(8, int n = 0; n < tile; n++) store(acc + n * W, sum[n]);
}

/* The same for all `nv` vectors of columns. */
INLINE void add_rows(const float *weights, const float *rows, int64_t stride, const int32_t *index,
                     int64_t count, float *acc, const int nv) {
    int n = 0;
    for (; n + 8 <= nv; n += 8)
        add_rows_tile(weights, rows + n * W, stride, index, count, acc + n * W, 8);
    for (; n + 4 <= nv; n += 4)
        add_rows_tile(weights, rows + n * W, stride, index, count, acc + n * W, 4);
    for (; n < nv; n++) add_rows_tile(weights, rows + n * W, stride, index, count, acc + n * W, 1);
}

/* rows[index[i]] += weights[i] * x for `count` rows. */
INLINE void add_to_rows(const float *weights, const float *x, const int32_t *index, int64_t count,
                        float *rows, int64_t stride, const int nv) {
    for (int64_t i = 0; i < count; i++) {
        float *row = rows + index[i] * stride;
        const vec weight = broadcast(weights[i]);
        UNROLL(8, int n = 0; n < nv; n++)
            store(row + n * W, load(row + n * W) + weight * load(x + n * W));
    }
}

/* K and V of the visible keys of some panels as rows of floats. */
static void pack_rows(const mw_args *args, const uint64_t *visible, int64_t batch, int64_t kv_head,
                      int64_t first_panel, int64_t last_panel, PackedKV *kv) {
    const PackSource k = {&args->k, visible,      args->dtype,   batch,
                          kv_head,  args->kv_len, args->head_dim};
    PackSource v = k;
    v.tensor = &args->v;
    v.dim = args->v_head_dim;
    const int64_t begin = phase_begin();
    pack_keys(&k, first_panel * NR, last_panel * NR, kv->panels, round_up(args->head_dim, W));
    if (!v_in_place(args))
        pack_keys(&v, first_panel * NR, last_panel * NR, (float *)kv->v, kv->v_stride);
    phase_end(PHASE_PACK, begin);
}

/* -- forward --------------------------------------------------------------------------------- */

typedef struct {
    KeyCursor cursor;
    int64_t count; /* keys of the current block */
    float m, l, alpha;
    int32_t index[SCATTERED_KEYS + W];
    float p[SCATTERED_KEYS + W] __attribute__((aligned(64)));
    float q[MW_MAX_HEAD_DIM] __attribute__((aligned(64))); /* times scale and log2(e) */
    float acc[MW_MAX_HEAD_DIM] __attribute__((aligned(64)));
} ScatteredRow;

typedef struct {
    ScatteredRow rows[SCATTERED_ROWS];
    PrefetchQueue queue;
} ScatteredScratch;

static size_t scattered_scratch(const mw_args *args) {
    (void)args;
    return sizeof(ScatteredScratch);
}

/* Two vectors of scores from score i on, -inf after the last. */
INLINE void load_scores(const ScatteredRow *row, int64_t i, vec x[2]) {
    const int64_t left = row->count - i;
    x[0] = load(row->p + i);
    x[1] = load(row->p + i + W);
    if (left >= 2 * W) return;
    const ivec lane = LANES;
    x[0] = blend(lane < (int32_t)left, x[0], broadcast(-INFINITY));
    x[1] = blend(lane < (int32_t)(left - W), x[1], broadcast(-INFINITY));
}

/* m and alpha of a row whose scores are in p. */
INLINE void scattered_max(ScatteredRow *row) {
    vec x[2], row_max = broadcast(-INFINITY);
    for (int64_t i = 0; i < row->count; i += 2 * W) {
        load_scores(row, i, x);
        row_max = max_vec(row_max, max_vec(x[0], x[1]));
    }
    float before = row->m, now = reduce_max(row_max);
    now = now > before ? now : before;
    if (now == INFINITY || isnan(before)) {
        int has_nan = 0;
        for (int64_t i = 0; i < row->count; i++) has_nan |= isnan(row->p[i]);
        now = max_with_inf(before, row->l, has_nan);
    }
    row->alpha = before == now ? 1.0f : before == -INFINITY ? 0.0f : exp2f(before - now);
    row->m = now;
}

/* P and l of a row whose scores are in p. */
INLINE void scattered_exp(ScatteredRow *row) {
    vec x[2], sum = {0};
    const vec shift = broadcast(softmax_shift(row->m));
    for (int64_t i = 0; i < row->count; i += 2 * W) {
        load_scores(row, i, x);
        x[0] -= shift;
        x[1] -= shift;
        exp2_vec(x, 2);
        sum += x[0] + x[1];
        store(row->p + i, x[0]);
        store(row->p + i + W, x[1]);
    }
    row->l = row->l * row->alpha + reduce_sum(sum);
}

/* The next keys of some rows. */
INLINE void scattered_step(ScatteredScratch *s, int rows, const PackedKV *kv, int64_t k_stride,
                           const int k_nv, const int v_nv) {
    int64_t max_count = 0;
    for (int r = 0; r < rows; r++) max_count = max_i64(max_count, s->rows[r].count);
    for (int64_t i = 0; i < max_count; i += W)
        for (int r = 0; r < rows; r++)
            if (i < s->rows[r].count) {
                store(s->rows[r].p + i,
                      dot_rows(s->rows[r].q, kv->panels, k_stride, s->rows[r].index + i, k_nv));
                prefetch_queued(&s->queue, 1);
            }
    for (int r = 0; r < rows; r++)
        if (s->rows[r].count) scattered_max(&s->rows[r]);
    for (int r = 0; r < rows; r++) {
        ScatteredRow *row = &s->rows[r];
        if (!row->count) continue;
        scattered_exp(row);
        for (int n = 0; row->alpha != 1.0f && n < v_nv; n++)
            store(row->acc + n * W, load(row->acc + n * W) * row->alpha);
    }
    for (int64_t i = 0; i < max_count; i += W)
        for (int r = 0; r < rows; r++) {
            add_rows(s->rows[r].p + i, kv->v, kv->v_stride, s->rows[r].index + i,
                     min_i64(s->rows[r].count - i, W), s->rows[r].acc, v_nv);
            prefetch_queued(&s->queue, 1);
        }
    prefetch_queued(&s->queue, PREFETCH_QUEUE);
}

typedef void ScatteredStep(ScatteredScratch *s, int rows, const PackedKV *kv, int64_t k_stride,
                           int k_nv, int v_nv);

static NOINLINE void scattered_step_4(ScatteredScratch *s, int rows, const PackedKV *kv,
                                      int64_t k_stride, int k_nv, int v_nv) {
    (void)k_stride, (void)k_nv, (void)v_nv;
    scattered_step(s, rows, kv, 4 * W, 4, 4);
}

static NOINLINE void scattered_step_8(ScatteredScratch *s, int rows, const PackedKV *kv,
                                      int64_t k_stride, int k_nv, int v_nv) {
    (void)k_stride, (void)k_nv, (void)v_nv;
    scattered_step(s, rows, kv, 8 * W, 8, 8);
}

static NOINLINE void scattered_step_any(ScatteredScratch *s, int rows, const PackedKV *kv,
                                        int64_t k_stride, int k_nv, int v_nv) {
    scattered_step(s, rows, kv, k_stride, k_nv, v_nv);
}

/* Rows of a GQA group, like forward in forward.h; kv has rows of K in place of panels. */
static void scattered_forward(const mw_args *args, const GqaGroup *group, const PackedKV *kv,
                              int64_t first_row, int64_t last_row, void *scratch) {
    ScatteredScratch *s = scratch;
    const int64_t k_stride = round_up(args->head_dim, W), width = v_width(args);
    const int k_nv = (int)(k_stride / W), v_nv = (int)(width / W);
    const float factor = score_factor(args);
    ScatteredStep *step = k_nv == 4 && v_nv == 4   ? scattered_step_4
                          : k_nv == 8 && v_nv == 8 ? scattered_step_8
                                                   : scattered_step_any;
    s->queue.count = 0;
    for (int64_t first = first_row; first < last_row; first += SCATTERED_ROWS) {
        const int rows = (int)min_i64(SCATTERED_ROWS, last_row - first);
        if (cancelled()) return;
        int64_t begin = phase_begin();
        queue_next(args, group, kv, (first - first_row) / SCATTERED_ROWS,
                   ceil_div(last_row - first_row, SCATTERED_ROWS), &s->queue);
        int64_t left = 0;
        for (int r = 0; r < rows; r++) {
            ScatteredRow *row = &s->rows[r];
            const int64_t n = (first + r) / group->heads;
            const int64_t head = group->first_head + (first + r) % group->heads;
            row->cursor = key_cursor(&args->spans, group->offsets[n], group->offsets[n + 1]);
            row->m = -INFINITY;
            row->l = 0.0f;
            memset(row->acc, 0, sizeof(float) * (size_t)width);
            if (row->cursor.span == row->cursor.stop) continue;
            left = 1;
            if (n + PREFETCH_ROWS < args->q_len)
                prefetch_later(
                    &s->queue,
                    tensor_row(&args->q, args->dtype, group->batch, head, n + PREFETCH_ROWS),
                    args->head_dim * dtype_size(args->dtype), 0);
            prefetch_later(&s->queue, tensor_row(&args->out, args->dtype, group->batch, head, n),
                           args->v_head_dim * dtype_size(args->dtype), 1);
            const float *q = tensor_row(&args->q, args->dtype, group->batch, head, n);
            if (args->dtype != MW_FLOAT32 || args->head_dim != k_stride) {
                read_padded(row->q, q, args->dtype, args->head_dim, k_stride);
                q = row->q;
            }
            for (int64_t d = 0; d < k_stride; d += W) store(row->q + d, load(q + d) * factor);
        }
        while (left) {
            left = 0;
            for (int r = 0; r < rows; r++) {
                ScatteredRow *row = &s->rows[r];
                row->count = next_keys(&args->spans, &row->cursor, row->index);
                left |= row->cursor.span < row->cursor.stop;
            }
            step(s, rows, kv, k_stride, k_nv, v_nv);
        }
        begin = phase_end(PHASE_ROWS, begin);
        for (int r = 0; r < rows; r++)
            write_output(args, group->batch, group->first_head + (first + r) % group->heads,
                         (first + r) / group->heads, s->rows[r].acc, s->rows[r].m, s->rows[r].l);
        phase_end(PHASE_OUTPUT, begin);
    }
}

/* -- backward -------------------------------------------------------------------------------- */

typedef struct {
    KeyCursor cursor;
    int64_t count;
    int32_t index[SCATTERED_KEYS + W];
    float scaled_q[MW_MAX_HEAD_DIM] __attribute__((aligned(64)));
} ScatteredBwdRow;

/* The arrays of a unit and of a thread. */
typedef struct {
    BackwardUnit unit; /* of SCATTERED_ROWS rows */
    ScatteredBwdRow rows[SCATTERED_ROWS];
    uint64_t *visible;
    float *k, *v, *dk, *dv; /* [kv_len][d or dv] */
} ScatteredBwd;

static int64_t layout_scattered(const mw_args *args, char *memory, ScatteredBwd *s) {
    int64_t used = round_up(sizeof *s, 64);
    const int64_t d = round_up(args->head_dim, W), dv = round_up(args->v_head_dim, W);
    BackwardUnit *u = &s->unit;
    u->d = d;
    u->dv = dv;
    u->q = carve(memory, &used, SCATTERED_ROWS * d * 4);
    u->dout = carve(memory, &used, SCATTERED_ROWS * dv * 4);
    u->dq = carve(memory, &used, SCATTERED_ROWS * d * 4);
    u->lse = carve(memory, &used, SCATTERED_ROWS * 4);
    u->delta = carve(memory, &used, SCATTERED_ROWS * 4);
    u->span = carve(memory, &used, SCATTERED_ROWS * 8);
    u->span_stop = carve(memory, &used, SCATTERED_ROWS * 8);
    s->visible = carve(memory, &used, (int64_t)visible_size(args));
    s->k = carve(memory, &used, args->kv_len * d * 4);
    s->v = carve(memory, &used, args->kv_len * dv * 4);
    s->dk = carve(memory, &used, args->kv_len * d * 4);
    s->dv = carve(memory, &used, args->kv_len * dv * 4);
    return used;
}

static size_t scattered_backward_size(const mw_args *args) {
    ScatteredBwd s;
    return (size_t)layout_scattered(args, NULL, &s);
}

/* The next keys of some rows, W at a time. */
INLINE void scattered_backward_step(ScatteredBwd *s, int rows, const int k_nv, const int v_nv) {
    const BackwardUnit *u = &s->unit;
    const int64_t d = u->d, dv = u->dv;
    int64_t max_count = 0;
    for (int r = 0; r < rows; r++) max_count = max_i64(max_count, s->rows[r].count);
    for (int64_t i = 0; i < max_count; i += W)
        for (int r = 0; r < rows; r++) {
            const ScatteredBwdRow *row = &s->rows[r];
            const int64_t count = min_i64(row->count - i, W);
            if (count <= 0) continue;
            const int32_t *index = row->index + i;
            const float *dout = u->dout + r * dv;
            float p[W], ds[W];
            vec x[1] = {dot_rows(row->scaled_q, s->k, d, index, k_nv) - u->lse[r]};
            exp2_vec(x, 1);
            store(p, x[0]);
            store(ds, x[0] * (dot_rows(dout, s->v, dv, index, v_nv) - u->delta[r]));
            add_rows(ds, s->k, d, index, count, u->dq + r * d, k_nv);
            add_to_rows(ds, u->q + r * d, index, count, s->dk, d, k_nv);
            add_to_rows(p, dout, index, count, s->dv, dv, v_nv);
        }
}

typedef void ScatteredBackwardStep(ScatteredBwd *s, int rows, int k_nv, int v_nv);

static NOINLINE void scattered_backward_step_4(ScatteredBwd *s, int rows, int k_nv, int v_nv) {
    (void)k_nv, (void)v_nv;
    scattered_backward_step(s, rows, 4, 4);
}

static NOINLINE void scattered_backward_step_8(ScatteredBwd *s, int rows, int k_nv, int v_nv) {
    (void)k_nv, (void)v_nv;
    scattered_backward_step(s, rows, 8, 8);
}

static NOINLINE void scattered_backward_step_any(ScatteredBwd *s, int rows, int k_nv, int v_nv) {
    scattered_backward_step(s, rows, k_nv, v_nv);
}

/* The rows first ... first + rows - 1 of a GQA group. */
static void scattered_backward_rows(const mw_args *args, ScatteredBwd *s, const GqaGroup *group,
                                    int64_t first, int rows) {
    BackwardUnit *u = &s->unit;
    const int k_nv = (int)(u->d / W), v_nv = (int)(u->dv / W);
    const BlockRows block = {*group, first, rows};
    const float factor = score_factor(args);
    ScatteredBackwardStep *step = k_nv == 4 && v_nv == 4   ? scattered_backward_step_4
                                  : k_nv == 8 && v_nv == 8 ? scattered_backward_step_8
                                                           : scattered_backward_step_any;
    int64_t left = 0;
    memset(u->dq, 0, (size_t)(SCATTERED_ROWS * u->d) * 4);
    for (int r = 0; r < rows; r++) {
        if (block.first + r + PREFETCH_ROWS < args->q_len * group->heads) {
            const int64_t next = r + PREFETCH_ROWS;
            prefetch_block_row_l2(args, u, &block, next);
            prefetch_dq(args, u, query_head(&block, next), query_row(&block, next));
        }
        prepare_row(args, u, r, group->offsets, query_head(&block, r), query_row(&block, r));
        for (int64_t d = 0; d < u->d; d += W)
            store(s->rows[r].scaled_q + d, load(u->q + r * u->d + d) * factor);
        s->rows[r].cursor = key_cursor(&args->spans, u->span[r], u->span_stop[r]);
        left |= u->span[r] < u->span_stop[r];
    }
    while (left) {
        left = 0;
        for (int r = 0; r < rows; r++) {
            s->rows[r].count = next_keys(&args->spans, &s->rows[r].cursor, s->rows[r].index);
            left |= s->rows[r].cursor.span < s->rows[r].cursor.stop;
        }
        step(s, rows, k_nv, v_nv);
    }
    for (int r = 0; r < rows; r++)
        write_row(&args->dq, args->dtype, u->batch, query_head(&block, r), query_row(&block, r),
                  u->dq + r * u->d, (float)args->scale, args->head_dim);
}

static void scattered_backward(const mw_args *args, int64_t unit, void *scratch) {
    ScatteredBwd *s = scratch;
    layout_scattered(args, scratch, s);
    BackwardUnit *u = &s->unit;
    u->batch = unit / args->kv_heads;
    u->kv_head = unit % args->kv_heads;
    int64_t begin = phase_begin();
    find_visible(args, unit, s->visible);
    PackSource source = {&args->k,   s->visible,   args->dtype,   u->batch,
                         u->kv_head, args->kv_len, args->head_dim};
    pack_keys(&source, 0, args->kv_len, s->k, u->d);
    source.tensor = &args->v;
    source.dim = args->v_head_dim;
    pack_keys(&source, 0, args->kv_len, s->v, u->dv);
    memset(s->dk, 0, (size_t)(args->kv_len * u->d) * 4);
    memset(s->dv, 0, (size_t)(args->kv_len * u->dv) * 4);
    begin = phase_end(PHASE_PACK, begin);
    for (int64_t n = 0; n < groups_per_kv_head(args); n++) {
        const GqaGroup group = gqa_group(args, unit, n);
        const int64_t rows = args->q_len * group.heads;
        for (int64_t first = 0; first < rows; first += SCATTERED_ROWS) {
            if (cancelled()) return;
            scattered_backward_rows(args, s, &group, first,
                                    (int)min_i64(SCATTERED_ROWS, rows - first));
        }
    }
    begin = phase_end(PHASE_ROWS, begin);
    for (int64_t key = 0; key < args->kv_len; key++) {
        if (key + PREFETCH_ROWS < args->kv_len) prefetch_dk_dv(args, u, key + PREFETCH_ROWS);
        write_row(&args->dk, args->dtype, u->batch, u->kv_head, key, s->dk + key * u->d,
                  (float)args->scale, args->head_dim);
        write_row(&args->dv, args->dtype, u->batch, u->kv_head, key, s->dv + key * u->dv, 1.0f,
                  args->v_head_dim);
    }
    phase_end(PHASE_OUTPUT, begin);
}

#endif
