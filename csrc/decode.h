/* Split-KV decode: the forward pass of a GQA group with at most MAX_DECODE_ROWS rows.
 *
 *   for each split of the keys (in parallel), each block of BLOCK_N keys, each row:
 *     S = q K^T over the row's visible keys, K read where it is; soft cap and bias
 *     m, alpha, P, l, acc as in forward.h; each (acc, m, l) is a partial result
 *   merge the splits: m = max m_i, acc = sum acc_i * exp2((m_i - m) * score_base), l likewise
 *   out = acc / (l + exp(sink - m)), lse = m + log(l)
 *
 * Each key is read once per row, so packing would not pay. Rows are computed one by one, so a masked
 * cell is never read. */
#ifndef MASKWRIGHT_DECODE_H
#define MASKWRIGHT_DECODE_H

#include "dropout.h"
#include "microkernel.h"
#include "pack.h"
#include "scores.h"
#include "softmax.h"
#include "threads.h"

typedef struct {
    Run runs[BLOCK_N];
    int64_t cursor[MAX_DECODE_ROWS];
    const float *bias[MAX_DECODE_ROWS][MW_MAX_TERMS]; /* the row of each term of the bias */
    uint64_t keep[BLOCK_WORDS + 1];                   /* dropout: bit per key that is kept */
    float p[BLOCK_N + W] __attribute__((aligned(64)));
    float k[W][MW_MAX_HEAD_DIM] __attribute__((aligned(64)));
    float q[MAX_DECODE_ROWS][MW_MAX_HEAD_DIM] __attribute__((aligned(64))); /* times score_factor */
    float v[] __attribute__((aligned(64))); /* [BLOCK_N][width], if V is converted */
} DecodeScratch;

/* One row of a partial result. */
typedef struct {
    float *acc, *m, *l;
} DecodeRow;

#define SKIPPED (-1.0f) /* l of a split without a visible key */

INLINE int decode_v_in_place(const mw_args *args) {
    return args->dtype == MW_FLOAT32 && args->v_head_dim % W == 0;
}

static size_t decode_scratch(const mw_args *args) {
    int64_t floats = decode_v_in_place(args) ? 0 : BLOCK_N * v_width(args);
    return sizeof(DecodeScratch) + sizeof(float) * (size_t)floats;
}

/* acc of all rows, then m and l of all rows. */
static int64_t decode_partial_floats(const mw_args *args) {
    return round_up(MAX_DECODE_ROWS * (v_width(args) + 2), 16);
}

INLINE DecodeRow decode_row(float *partial, int64_t width, int64_t n) {
    float *m = partial + MAX_DECODE_ROWS * width;
    return (DecodeRow){partial + n * width, m + n, m + MAX_DECODE_ROWS + n};
}

/* Scores of W keys from `key` on, of which only the first `count` are read. */
INLINE vec decode_scores(const mw_args *args, const GqaGroup *group, const float *q, int64_t key,
                         int64_t count, float converted[W][MW_MAX_HEAD_DIM]) {
    const int64_t width = round_up(args->head_dim, W);
    const int64_t size = dtype_size(args->dtype), stride = args->k.row_stride * size;
    const char *first = tensor_row(&args->k, args->dtype, group->batch, group->kv_head, key);
    const float *rows[W];
    for (int i = 0; i < W; i++) {
        rows[i] = (const float *)(first + min_i64(i, count - 1) * stride);
        if (args->dtype != MW_FLOAT32 || width != args->head_dim) {
            read_padded(converted[i], rows[i], args->dtype, args->head_dim, width);
            rows[i] = converted[i];
        }
    }
    if (key + 3 * W <= args->kv_len)
        for (int i = 0; i < W; i++)
            prefetch_row(first + (2 * W + i) * stride, args->head_dim * size);
    vec acc[W];
    UNROLL(16, int i = 0; i < W; i++) acc[i] = (vec){0};
    for (int64_t d = 0; d < width; d += W) {
        vec x = load(q + d);
        UNROLL(16, int i = 0; i < W; i++) acc[i] += x * load(rows[i] + d);
    }
    return reduce_each(acc);
}

/* The visible keys of a row among start ... end - 1, counted from `start`. */
static int decode_runs(const mw_args *args, const GqaGroup *group, int64_t row, int64_t start,
                       int64_t end, int64_t *cursor, Run *runs) {
    const mw_spans *spans = &args->spans;
    int count = 0;
    int64_t i = *cursor, stop = group->offsets[row + 1];
    while (i < stop && spans->stops[i] <= start) i++;
    *cursor = i;
    for (; i < stop && spans->starts[i] < end; i++)
        runs[count++] = (Run){max_i64(spans->starts[i], start) - start,
                              min_i64(spans->stops[i], end) - start};
    return count;
}

/* Keep bits of W keys from any key of the block on. */
INLINE uint32_t keep_bits_at(const uint64_t *keep, int64_t key) {
    uint64_t low = keep[key / 64] >> (key % 64);
    return (uint32_t)(low | (key % 64 ? keep[key / 64 + 1] << (64 - key % 64) : 0));
}

/* V of the block's visible keys, and its stride. */
INLINE Operand decode_values(const mw_args *args, const GqaGroup *group, int64_t start, int count,
                             DecodeScratch *s) {
    const int64_t width = v_width(args);
    if (decode_v_in_place(args))
        return (Operand){tensor_row(&args->v, args->dtype, group->batch, group->kv_head, start),
                         args->v.row_stride, s->runs, count};
    const int64_t size = dtype_size(args->dtype), stride = args->v.row_stride * size;
    const char *first = tensor_row(&args->v, args->dtype, group->batch, group->kv_head, start);
    for (int n = 0; n < count; n++)
        for (int64_t key = s->runs[n].start; key < s->runs[n].stop; key++) {
            if (start + key + 12 < args->kv_len)
                prefetch_row(first + (key + 12) * stride, args->v_head_dim * size);
            read_padded(s->v + key * width, first + key * stride, args->dtype, args->v_head_dim,
                        width);
        }
    return (Operand){s->v, width, s->runs, count};
}

/* m of a row that sees +inf; s->p holds the scores. */
static float check_inf_row(const DecodeScratch *s, int count, float m_before, float l_before) {
    int block_has_nan = 0;
    for (int n = 0; n < count; n++)
        for (int64_t key = s->runs[n].start; key < s->runs[n].stop; key++)
            block_has_nan |= isnan(s->p[key]);
    return max_with_inf(m_before, l_before, block_has_nan);
}

/* acc = acc * alpha + p V for one row, with as many accumulators as there are columns. */
static NOINLINE void gemm_row(const float *p, Operand v, float alpha, float *acc, int64_t width) {
    int64_t c = 0;
    for (; c + 8 * W <= width; c += 8 * W) gemm_pv_tile(1, 8, BLOCK_N, p, v, c, &alpha, acc, width);
    for (; c + 4 * W <= width; c += 4 * W) gemm_pv_tile(1, 4, BLOCK_N, p, v, c, &alpha, acc, width);
    for (; c < width; c += W) gemm_pv_tile(1, 1, BLOCK_N, p, v, c, &alpha, acc, width);
}

/* Soft cap and bias of W scores. */
static NOINLINE void change_decode_scores(const mw_args *args, const float *const *bias,
                                          int64_t key, float *s) {
    const mw_scores *scores = args->scores;
    vec x = load(s);
    if (scores->softcap > 0) {
        tanh_vec(&x, 1);
        x *= (float)scores->softcap;
    }
    for (int64_t i = 0; i < scores->num_terms; i++)
        x += term_values(&scores->terms[i], bias[i], key, args->kv_len);
    store(s, x);
}

/* Row n and one key block. */
static void decode_step(const mw_args *args, const GqaGroup *group, int64_t row_index,
                        int64_t start, int count, const DecodeRow *row, DecodeScratch *s) {
    const float *q = s->q[row_index], base = score_base(args);
    const int dropout = args->dropout.p > 0;
    const int64_t width = v_width(args);
    vec row_max = broadcast(-INFINITY), sum = {0};
    for (int n = 0; n < count; n++)
        for (int64_t key = s->runs[n].start; key < s->runs[n].stop; key += W) {
            int64_t left = s->runs[n].stop - key;
            vec x = decode_scores(args, group, q, start + key, min_i64(left, W), s->k);
            if (args->scores) {
                store(s->p + key, x);
                change_decode_scores(args, s->bias[row_index], start + key, s->p + key);
                x = load(s->p + key);
            }
            if (left < W)
                x = blend(lane_mask(((uint32_t)1 << left) - 1, 0), x, broadcast(-INFINITY));
            store(s->p + key, x);
            row_max = max_vec(row_max, x);
        }
    float before = *row->m, now = reduce_max(row_max);
    now = now > before ? now : before;
    if (now == INFINITY || isnan(before)) now = check_inf_row(s, count, before, *row->l);
    const vec shift = broadcast(softmax_shift(now));
    for (int n = 0; n < count; n++)
        for (int64_t key = s->runs[n].start; key < s->runs[n].stop; key += W) {
            /* The scores of the next run may follow: only the run's own lanes are written. */
            int64_t left = s->runs[n].stop - key;
            vec given = load(s->p + key), x[1];
            ivec own = left < W ? lane_mask(((uint32_t)1 << left) - 1, 0) : ~(ivec){0};
            x[0] = (blend(own, given, broadcast(-INFINITY)) - shift) * base;
            exp2_vec(x, 1);
            sum += x[0];
            if (dropout) x[0] = (vec)((ivec)x[0] & lane_mask(keep_bits_at(s->keep, key), 0));
            store(s->p + key, blend(own, x[0], given));
        }
    float alpha = before == now ? 1.0f : exp2f((before - now) * base);
    *row->l = *row->l * alpha + reduce_sum(sum);
    *row->m = now;
    Operand v = decode_values(args, group, start, count, s);
    gemm_row(s->p, v, alpha, row->acc, width);
}

/* Set each row's cursor to its first interval that ends after first_key. Is a key before last_key in
 * one of them? */
static int find_cursors(const mw_args *args, const GqaGroup *group, int64_t first_key,
                        int64_t last_key, DecodeScratch *s) {
    int found = 0;
    for (int64_t n = 0; n < args->q_len * group->heads; n++) {
        const int64_t row = n / group->heads, stop = group->offsets[row + 1];
        int64_t i = group->offsets[row];
        while (i < stop && args->spans.stops[i] <= first_key) i++;
        s->cursor[n] = i;
        found |= i < stop && args->spans.starts[i] < last_key;
    }
    return found;
}

/* All rows of a GQA group over the keys first_key ... last_key - 1. If no row attends to one of them,
 * l is SKIPPED and nothing else is written. */
static void decode_split(const mw_args *args, const GqaGroup *group, int64_t first_key,
                         int64_t last_key, float *partial, void *scratch) {
    DecodeScratch *s = scratch;
    const int64_t width = v_width(args), rows = args->q_len * group->heads;
    const float factor = score_factor(args);
    const DropoutState dropout = dropout_state(args, group->batch);
    if (!find_cursors(args, group, first_key, last_key, s)) {
        for (int64_t n = 0; n < rows; n++) *decode_row(partial, width, n).l = SKIPPED;
        return;
    }
    memset(partial, 0, sizeof(float) * (size_t)(rows * width));
    for (int64_t n = 0; n < rows; n++) {
        int64_t row = n / group->heads, head = group->first_head + n % group->heads;
        DecodeRow result = decode_row(partial, width, n);
        *result.m = -INFINITY;
        *result.l = 0.0f;
        for (int i = 0; args->scores && i < args->scores->num_terms; i++)
            s->bias[n][i] = term_row(&args->scores->terms[i], group->batch, head, row);
        if (group->offsets[row] == group->offsets[row + 1]) continue;
        read_padded(s->q[n], tensor_row(&args->q, args->dtype, group->batch, head, row),
                    args->dtype, args->head_dim, round_up(args->head_dim, W));
        for (int64_t d = 0; d < args->head_dim; d++) s->q[n][d] *= factor;
    }
    for (int64_t start = first_key; start < last_key; start += BLOCK_N) {
        if (cancelled()) return;
        for (int64_t n = 0; n < rows; n++) {
            int count = decode_runs(args, group, n / group->heads, start,
                                    min_i64(start + BLOCK_N, last_key), &s->cursor[n], s->runs);
            if (!count) continue;
            if (args->dropout.p > 0)
                for (int64_t w = 0; w < ceil_div(s->runs[count - 1].stop, 64); w++)
                    s->keep[w] = keep_bits(&dropout, n / group->heads,
                                           group->first_head + n % group->heads, start + w * 64);
            DecodeRow result = decode_row(partial, width, n);
            decode_step(args, group, n, start, count, &result, s);
        }
    }
}

/* m of two partial results. */
INLINE float merged_max(float m, float l, float other_m, float other_l) {
    float larger = other_m > m ? other_m : m;
    if (isnan(m) || isnan(other_m)) return NAN;
    if (larger == INFINITY &&
        ((m != INFINITY && isnan(l)) || (other_m != INFINITY && isnan(other_l))))
        return NAN;
    return larger;
}

/* Merge the splits' partial results into the first that has one, and write the output. */
static void decode_merge(const mw_args *args, const GqaGroup *group, float *partials,
                         int64_t splits) {
    const int64_t width = v_width(args), stride = decode_partial_floats(args);
    const float base = score_base(args);
    for (int64_t n = 0; n < args->q_len * group->heads; n++) {
        int64_t split = 0;
        while (split < splits - 1 && *decode_row(partials + split * stride, width, n).l == SKIPPED)
            split++;
        DecodeRow own = decode_row(partials + split * stride, width, n);
        if (*own.l == SKIPPED) { /* the row is fully masked */
            memset(own.acc, 0, sizeof(float) * (size_t)width);
            *own.m = -INFINITY;
            *own.l = 0.0f;
        }
        while (++split < splits) {
            DecodeRow other = decode_row(partials + split * stride, width, n);
            if (*other.l == SKIPPED) continue;
            float m = merged_max(*own.m, *own.l, *other.m, *other.l), shift = softmax_shift(m);
            float scale_own = exp2f((*own.m - shift) * base);
            float scale_other = exp2f((*other.m - shift) * base);
            for (int64_t d = 0; d < width; d++)
                own.acc[d] = own.acc[d] * scale_own + other.acc[d] * scale_other;
            *own.l = *own.l * scale_own + *other.l * scale_other;
            *own.m = m;
        }
        int64_t row = n / group->heads, head = group->first_head + n % group->heads;
        write_output(args, group->batch, head, row, own.acc, *own.m, *own.l);
    }
}

#endif
