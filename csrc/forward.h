/* The forward pass for rows of a GQA group (FlashAttention-2).
 *
 *   for each block of BLOCK_M rows, each row group of MR rows, each block of BLOCK_N keys:
 *     S = Q K^T, soft cap and bias, -inf in masked cells (score_block)
 *     m, alpha = exp2((m_before - m) * base)        (update_max)
 *     P = exp2((S - m) * base), l = l * alpha + rowsum(P)    (exp_rows)
 *     drop weights of P                             (dropout only)
 *     acc = acc * alpha + P V                       (gemm_pv)
 *   out = acc / (l + exp(sink - m)), lse = m + log(l)
 *
 * where base is score_base.
 *
 * The row groups of a block take their key blocks in turn, so that K and V stay in the cache.
 *
 * gemm_pv multiplies a masked cell's weight of 0 by the value of a key that another row of the
 * group attends to. If that value is NaN or Inf, the product is NaN. Such row groups are found by
 * their result and computed again, each row with the values of its own keys only. */
#ifndef MASKWRIGHT_FORWARD_H
#define MASKWRIGHT_FORWARD_H

#include "dropout.h"
#include "microkernel.h"
#include "pack.h"
#include "profile.h"
#include "scores.h"
#include "softmax.h"
#include "threads.h"

enum { ROW_GROUPS = BLOCK_M / MR, MR_PADDED = (MR + W - 1) / W * W };

typedef struct {
    const float *q[MR];
    int64_t cursor[MR], stop[MR]; /* remaining intervals of each row */
    int64_t next_key;             /* start of the next key block, or NO_KEY */
    int64_t last_key;             /* the keys from here on are masked */
    float m[MR], l[MR];
    const float *bias[MW_MAX_TERMS][MR]; /* the rows of each term of the bias */
} RowGroup;

typedef struct {
    RowGroup groups[ROW_GROUPS];
    PrefetchQueue queue;
    BitMask mask;
    Run runs[MAX_RUNS];
    uint64_t keep[MR][BLOCK_WORDS]; /* dropout: bit per cell that is kept */
    float p[MR * BLOCK_N] __attribute__((aligned(64)));
    float rest[] __attribute__((aligned(64))); /* acc, [BLOCK_M][width], then q as floats */
} ForwardScratch;

/* What all steps of a call share. */
typedef struct {
    const mw_args *args;
    const GqaGroup *group;
    const PackedKV *kv;
    int64_t width; /* floats of a row of acc */
    int64_t align; /* of the first key of a block */
    DropoutState dropout;
} ForwardCall;

static size_t forward_scratch(const mw_args *args) {
    return sizeof(ForwardScratch) +
           sizeof(float) * (size_t)(BLOCK_M * (v_width(args) + args->head_dim));
}

/* Scores of `nv` vectors of keys from key `offset` of the block on, and each row's maximum. */
INLINE void score_vectors(const ForwardCall *c, const RowGroup *g, int64_t start, int offset,
                          ForwardScratch *scratch, vec row_max[MR], const int nv, const int level) {
    const BitMask *mask = &scratch->mask;
    const int64_t dim = c->args->head_dim;
    const float *panel = c->kv->panels + (start + offset / NR * NR) * dim + offset % NR;
    vec s[MR][NV];
    gemm_panel(g->q, panel, dim, s, nv);
    if (level)
        change_scores(c->args->scores, g->bias, start + offset, c->args->kv_len, s, nv, level);
    if (!mask->full && ~vector_bits(mask->every, offset, nv) << (32 - nv * W)) {
        UNROLL(16, int r = 0; r < MR; r++) {
            uint32_t bits = vector_bits(mask->row[r], offset, nv);
            UNROLL(4, int n = 0; n < nv; n++)
                s[r][n] = blend(lane_mask(bits, n), s[r][n], broadcast(-INFINITY));
        }
    }
    UNROLL(16, int r = 0; r < MR; r++)
        UNROLL(4, int n = 0; n < nv; n++) {
            store(scratch->p + r * BLOCK_N + offset + n * W, s[r][n]);
            row_max[r] = max_vec(row_max[r], s[r][n]);
        }
}

/* Scores of the vectors of keys with a visible cell, whose offsets are listed, and each row's
 * maximum; -inf in masked cells. Returns the number of vectors. */
INLINE int score_block(const ForwardCall *c, const RowGroup *g, int64_t start,
                       ForwardScratch *scratch, short *list, vec row_max[MR], const int level) {
    int count = 0;
    for (int r = 0; r < MR; r++) row_max[r] = broadcast(-INFINITY);
    for (int panel = 0; panel < scratch->mask.words * (64 / NR); panel++) {
        int vectors;
        const int offset = panel * NR + first_vector(&scratch->mask, panel, &vectors) * W;
        if (vectors == NV)
            score_vectors(c, g, start, offset, scratch, row_max, NV, level);
        else if (vectors)
            score_vectors(c, g, start, offset, scratch, row_max, 1, level);
        for (int n = 0; n < vectors; n++) list[count++] = (short)(offset + n * W);
        if (vectors) prefetch_queued(&scratch->queue, PREFETCH_AT_ONCE);
    }
    return count;
}

/* The new m, and alpha, the factor of what was accumulated against the old one. */
INLINE void update_max(RowGroup *g, const vec row_max[MR], float alpha[MR_PADDED],
                       const float base) {
    for (int r = 0; r < MR_PADDED; r++) alpha[r] = 0.0f;
    for (int r = 0; r < MR; r++) {
        float before = g->m[r], now = reduce_max(row_max[r]);
        now = now > before ? now : before;
        alpha[r] = before == now ? 0.0f : before - now;
        g->m[r] = now;
    }
    for (int r = 0; r < MR_PADDED; r += W) {
        vec x[1] = {load(alpha + r) * base};
        exp2_vec(x, 1);
        store(alpha + r, x[0]);
    }
}

/* P of two rows and `nv` listed vectors of keys, added to the rows' sums. */
INLINE void exp_vectors(ForwardScratch *s, int r, const short *list, const vec shift[2], vec sum[2],
                        const int nv, const int dropout, const int level) {
    float *p = s->p + r * BLOCK_N;
    vec x[2 * NV];
    UNROLL(8, int n = 0; n < 2 * nv; n++)
        x[n] = load(p + n / nv * BLOCK_N + list[n % nv]) - shift[n / nv];
    if (level)
        UNROLL(8, int n = 0; n < 2 * nv; n++) x[n] *= (float)LOG2E;
    exp2_vec(x, 2 * nv);
    UNROLL(8, int n = 0; n < 2 * nv; n++) {
        sum[n / nv] += x[n];
        if (dropout) {
            uint32_t bits = vector_bits(s->keep[r + n / nv], list[n % nv], 1);
            x[n] = (vec)((ivec)x[n] & lane_mask(bits, 0));
        }
        store(p + n / nv * BLOCK_N + list[n % nv], x[n]);
    }
}

/* P from scores, and l. With dropout, dropped weights count in l but are 0 in P. */
INLINE void exp_rows(RowGroup *g, ForwardScratch *s, const short *list, int count,
                     const float *alpha, const int dropout, const int level) {
    for (int r = 0; r < MR; r += 2) {
        vec shift[2], sum[2] = {{0}, {0}};
        for (int i = 0; i < 2; i++) shift[i] = broadcast(softmax_shift(g->m[r + i]));
        int i = 0;
        for (; i + NV <= count; i += NV)
            exp_vectors(s, r, list + i, shift, sum, NV, dropout, level);
        for (; i < count; i++) exp_vectors(s, r, list + i, shift, sum, 1, dropout, level);
        for (i = 0; i < 2; i++) g->l[r + i] = g->l[r + i] * alpha[r + i] + reduce_sum(sum[i]);
    }
}

/* Keep bits of the cells of a row group and key block. */
static void draw_keep_bits(const ForwardCall *c, int64_t first_row, int64_t start,
                           ForwardScratch *s) {
    const GqaGroup *group = c->group;
    for (int r = 0; r < MR; r++) {
        int64_t n = first_row + r;
        for (int w = 0; w < s->mask.words; w++) {
            if (!s->mask.full && !s->mask.any[w]) continue;
            s->keep[r][w] = keep_bits(&c->dropout, n / group->heads,
                                      group->first_head + n % group->heads, start + w * 64);
        }
    }
}

/* m of rows that see +inf; P holds the scores. */
static void check_inf_scores(RowGroup *g, const ForwardScratch *s, const float *m_before) {
    for (int r = 0; r < MR; r++) {
        if (!(g->m[r] == INFINITY || isnan(m_before[r]))) continue;
        int block_has_nan = 0;
        for (int j = 0; j < s->mask.words * 64; j++)
            if (s->mask.full || bit_is_set(s->mask.row[r], j))
                block_has_nan |= isnan(s->p[r * BLOCK_N + j]);
        g->m[r] = max_with_inf(m_before[r], g->l[r], block_has_nan);
    }
}

/* acc = acc * alpha + P V, for MR rows and for one. */
static NOINLINE void gemm_p_v(const float *p, Operand v, const float *alpha, float *acc,
                              int64_t width, PrefetchQueue *queue) {
    int64_t c = 0;
    for (; c + NV * W <= width; c += NV * W) {
        gemm_pv_tile(MR, NV, BLOCK_N, p, v, c, alpha, acc, width);
        prefetch_queued(queue, PREFETCH_AT_ONCE);
    }
    for (; c < width; c += W) gemm_pv_tile(MR, 1, BLOCK_N, p, v, c, alpha, acc, width);
}

static NOINLINE void gemm_p_v_row(const float *p, Operand v, const float *alpha, float *acc,
                                  int64_t width) {
    gemm_pv(1, NV, BLOCK_N, p, v, alpha, acc, width);
}

/* One key block for one row group. With `exact`, masked cells do not enter acc at all. */
INLINE void forward_step(const ForwardCall *c, RowGroup *g, int64_t first_row, float *acc,
                         ForwardScratch *s, const int dropout, const int exact, const int level) {
    const mw_args *args = c->args;
    const PackedKV *kv = c->kv;
    short list[BLOCK_N / W];
    float alpha[MR_PADDED], m_before[MR];
    vec row_max[MR];
    int64_t start = g->next_key, begin = phase_begin();
    const int64_t length = min_i64(BLOCK_N, round_up(g->last_key - start, 64));
    bitmask_build(&args->spans, start, length, g->cursor, g->stop, &s->mask);
    int count = score_block(c, g, start, s, list, row_max, level);
    prefetch_queued(&s->queue, PREFETCH_AT_ONCE);
    begin = phase_end(PHASE_SCORES, begin);
    if (exact) memcpy(m_before, g->m, sizeof m_before);
    update_max(g, row_max, alpha, level ? (float)LOG2E : 1.0f);
    if (exact) check_inf_scores(g, s, m_before);
    if (dropout) draw_keep_bits(c, first_row, start, s);
    exp_rows(g, s, list, count, alpha, dropout, level);
    prefetch_queued(&s->queue, PREFETCH_AT_ONCE);
    begin = phase_end(PHASE_SOFTMAX, begin);
    Operand v = {kv->v + start * kv->v_stride, kv->v_stride, s->runs, 0};
    if (!exact) {
        v.count = visible_runs(&s->mask, s->runs);
        gemm_p_v(s->p, v, alpha, acc, c->width, &s->queue);
    } else {
        for (int r = 0; r < MR; r++) {
            v.count = s->mask.full ? visible_runs(&s->mask, s->runs)
                                   : bit_runs(s->mask.row[r], length, s->runs);
            gemm_p_v_row(s->p + r * BLOCK_N, v, alpha + r, acc + r * c->width, c->width);
        }
    }
    prefetch_queued(&s->queue, PREFETCH_QUEUE);
    phase_end(PHASE_PV, begin);
    g->next_key = s->mask.next == NO_KEY ? NO_KEY : s->mask.next / c->align * c->align;
}

typedef void ForwardStep(const ForwardCall *c, RowGroup *g, int64_t first_row, float *acc,
                         ForwardScratch *s);

#define FORWARD_STEP(name, dropout, exact, level)                                               \
    static NOINLINE void name(const ForwardCall *c, RowGroup *g, int64_t first_row, float *acc, \
                              ForwardScratch *s) {                                              \
        forward_step(c, g, first_row, acc, s, dropout, exact, level);                           \
    }

FORWARD_STEP(forward_step_plain, 0, 0, PLAIN)
FORWARD_STEP(forward_step_bias, 0, 0, BIAS)
FORWARD_STEP(forward_step_softcap, 0, 0, SOFTCAP)
FORWARD_STEP(forward_step_dropout, 1, 0, PLAIN)
FORWARD_STEP(forward_step_dropout_scores, 1, 0, ANY_SCORES)
FORWARD_STEP(forward_step_exact, 0, 1, PLAIN)
FORWARD_STEP(forward_step_exact_scores, 0, 1, ANY_SCORES)
FORWARD_STEP(forward_step_exact_dropout, 1, 1, PLAIN)
FORWARD_STEP(forward_step_exact_dropout_scores, 1, 1, ANY_SCORES)

static ForwardStep *select_step(const mw_args *args, int exact) {
    const int scores = changes_scores(args);
    if (args->dropout.p > 0) {
        if (exact) return scores ? forward_step_exact_dropout_scores : forward_step_exact_dropout;
        return scores ? forward_step_dropout_scores : forward_step_dropout;
    }
    if (exact) return scores ? forward_step_exact_scores : forward_step_exact;
    if (!scores) return forward_step_plain;
    return args->scores->softcap > 0 ? forward_step_softcap : forward_step_bias;
}

/* Start a row group at row `first` of the GQA group; beyond `count` rows it repeats the first. A
 * fully masked row is not read: another row of the group takes its place. */
static void init_rows(const ForwardCall *c, RowGroup *g, int64_t first, int64_t count,
                      float *converted) {
    const mw_args *args = c->args;
    const GqaGroup *group = c->group;
    const float *any = NULL;
    g->next_key = NO_KEY;
    g->last_key = 0;
    for (int r = 0; r < MR; r++) {
        int64_t n = first + (r < count ? r : 0), row = n / group->heads;
        g->q[r] = NULL;
        g->cursor[r] = group->offsets[row];
        g->stop[r] = group->offsets[row + 1];
        g->m[r] = -INFINITY;
        g->l[r] = 0.0f;
        for (int i = 0; args->scores && i < args->scores->num_terms; i++)
            g->bias[i][r] = term_row(&args->scores->terms[i], group->batch,
                                     group->first_head + n % group->heads, row);
        if (g->cursor[r] == g->stop[r]) continue;
        g->next_key = min_i64(g->next_key, args->spans.starts[g->cursor[r]] / c->align * c->align);
        g->last_key = max_i64(g->last_key, args->spans.stops[g->stop[r] - 1]);
        g->q[r] = tensor_row(&args->q, args->dtype, group->batch,
                             group->first_head + n % group->heads, row);
        if (args->dtype != MW_FLOAT32) {
            read_floats(converted + r * args->head_dim, g->q[r], args->dtype, args->head_dim);
            g->q[r] = converted + r * args->head_dim;
        }
        any = g->q[r];
    }
    for (int r = 0; r < MR; r++)
        if (!g->q[r]) g->q[r] = any;
}

/* Queue q of a row group. */
INLINE void queue_rows(const ForwardCall *c, const RowGroup *g, PrefetchQueue *queue) {
    for (int r = 0; r < MR && g->q[r]; r++)
        prefetch_later(queue, (const char *)g->q[r], c->args->head_dim * (int64_t)sizeof(float), 0);
}

/* Queue the rows of the output that a row group writes. */
INLINE void queue_output(const ForwardCall *c, int64_t first, int64_t end, PrefetchQueue *queue) {
    const mw_args *args = c->args;
    for (int64_t n = first; n < min_i64(first + MR, end); n++)
        prefetch_later(queue,
                       tensor_row(&args->out, args->dtype, c->group->batch,
                                  c->group->first_head + n % c->group->heads, n / c->group->heads),
                       args->v_head_dim * dtype_size(args->dtype), 1);
}

/* Write a finished row group; first compute it again if NaN or Inf may have crossed rows. */
static void finish_rows(const ForwardCall *c, RowGroup *g, int64_t first, int64_t count, float *acc,
                        float *converted, ForwardScratch *s) {
    const GqaGroup *group = c->group;
    float l_sum = 0.0f;
    for (int r = 0; r < count; r++) l_sum += g->l[r];
    if (has_nonfinite(acc, count * c->width) || !isfinite(l_sum)) {
        memset(acc, 0, sizeof(float) * (size_t)(MR * c->width));
        init_rows(c, g, first, count, converted);
        ForwardStep *step = select_step(c->args, 1);
        while (g->next_key != NO_KEY && !cancelled()) step(c, g, first, acc, s);
    }
    for (int r = 0; r < count; r++) {
        int64_t n = first + r;
        write_output(c->args, group->batch, group->first_head + n % group->heads, n / group->heads,
                     acc + r * c->width, g->m[r], g->l[r]);
    }
}

static void forward(const mw_args *args, const GqaGroup *group, const PackedKV *kv,
                    int64_t first_row, int64_t last_row, void *scratch) {
    ForwardScratch *s = scratch;
    const int dropout = args->dropout.p > 0;
    ForwardCall c = {
        args, group, kv, v_width(args), dropout ? 64 : NR, dropout_state(args, group->batch)};
    ForwardStep *step = select_step(args, 0);
    float *acc = s->rest, *converted = acc + BLOCK_M * c.width;
    s->queue.count = 0;
    for (int64_t block = first_row; block < last_row; block += BLOCK_M) {
        int64_t end = min_i64(block + BLOCK_M, last_row);
        int groups = (int)ceil_div(end - block, MR);
        memset(acc, 0, sizeof(float) * (size_t)(groups * MR * c.width));
        for (int g = 0; g < groups; g++)
            init_rows(&c, &s->groups[g], block + g * MR, min_i64(MR, end - block - g * MR),
                      converted + g * MR * args->head_dim);
        int first_turn = block == first_row;
        for (int active = 1; active; first_turn = 0) {
            active = 0;
            if (cancelled()) return;
            for (int g = 0; g < groups; g++) {
                if (first_turn) queue_next(args, group, kv, g, groups, &s->queue);
                if (s->groups[g].next_key == NO_KEY) continue;
                active = 1;
                if (g + 1 < groups) queue_rows(&c, &s->groups[g + 1], &s->queue);
                queue_output(&c, block + g * MR, end, &s->queue);
                step(&c, &s->groups[g], block + g * MR, acc + g * MR * c.width, s);
            }
        }
        const int64_t begin = phase_begin();
        for (int g = 0; g < groups; g++)
            finish_rows(&c, &s->groups[g], block + g * MR, min_i64(MR, end - block - g * MR),
                        acc + g * MR * c.width, converted + g * MR * args->head_dim, s);
        phase_end(PHASE_OUTPUT, begin);
    }
}

#endif
