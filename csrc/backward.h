/* The backward pass of one (batch, kv_head): a work item is one block of BWD_BLOCK_N keys.
 *
 *   prepare, once: q and dO as floats, lse as the scores are, delta = rowsum(dO * out) - dlse
 *   for each block of BWD_BLOCK_M rows with a visible cell:
 *     P  = exp2((S - lse) * score_base), recomputed; dP = dO V^T, dropped and scaled as P was
 *     dS = P * (dP - delta), the gradient of the bias; times the derivative of the soft cap
 *     dQ += dS K, shared by all items; dV += P^T dO and dK += dS^T Q, private to the item
 *   write dK and dV of the block; at the end write dQ
 *
 * A sink scales the output by r = 1 / (1 + exp(sink - lse)). So P is that of the visible keys, dO is
 * multiplied by r, and the gradient of the sink is -(1 - r) * rowsum(dO * out).
 *
 * A large lse = m + log(l) has rounded log(l) away. Then P is exp(S - m), and dO and delta are divided
 * by l, since all gradients are linear in them (row_sum).
 *
 * Items run in parallel. A row block takes their contributions to dQ in the order of the key blocks
 * (next_kv_block), so the sum does not depend on the number of threads. Items are started in that
 * order too, so an item never waits for one that has not been started. Gradients of bias values that
 * several cells share are summed per item, and the items' sums are added in the same order.
 *
 * In the products a masked cell is a factor of 0. Rows of q and dO, and keys, that hold NaN or Inf
 * are left out of them and added cell by cell, so that they reach visible cells only. */
#ifndef MASKWRIGHT_BACKWARD_H
#define MASKWRIGHT_BACKWARD_H

#include "dropout.h"
#include "microkernel.h"
#include "pack.h"
#include "profile.h"
#include "scores.h"
#include "threads.h"
#include "work.h"

#include <float.h>
#include <sched.h>

enum {
    BWD_GROUPS = BWD_BLOCK_M / MR,
    BWD_PANELS = BWD_BLOCK_N / NR,
    BWD_VECTORS = BWD_BLOCK_N / W,
    BWD_WORDS = BWD_BLOCK_N / 64,
    SPINS_BEFORE_YIELD = 200,
};

/* What is prefetched while a key block is computed, a little per panel: the rows and keys that are
 * read next, and the gradients that the block writes. */
typedef struct {
    int64_t row, last_row; /* of the row blocks that are prepared next */
    int64_t key, last_key; /* of the block, and of the next one */
    float rows, keys;      /* how many are due */
    float rows_per_panel, keys_per_panel;
} PrefetchPlan;

typedef struct {
    const mw_args *args;
    BackwardUnit *unit;
    DropoutState dropout;
    float *k_panels, *v_panels, *k_rows;
    float *dk, *dv;
    float *p, *ds;              /* [BWD_BLOCK_M][BWD_BLOCK_N] */
    float *grads[MW_MAX_TERMS]; /* [heads of the unit][grad_length], of shared values */
    int64_t first_grad[MW_MAX_TERMS],
        last_grad[MW_MAX_TERMS];         /* the part of them that the item has */
    const float *bias[MW_MAX_TERMS][MR]; /* of the row group: the rows of each term */
    float *bias_grads[MW_MAX_TERMS][MR]; /* and of its gradient, or NULL */
    uint64_t vectors[BWD_GROUPS];        /* bit per vector of keys that a row group has computed */
    uint8_t key_flags[BWD_BLOCK_N];      /* the key holds NaN or Inf */
    int any_key_flag;
    uint64_t visible[BWD_GROUPS][MR][BWD_WORDS]; /* bit per visible cell, if something is flagged */
    uint64_t keep[MR][BWD_WORDS];
    BitMask mask;
    Run runs[MAX_RUNS], kept_runs[MAX_RUNS];
    PrefetchPlan prefetch;
} BackwardScratch;

/* The next `bytes` of memory, of which *used are taken; NULL if only the size is wanted. */
INLINE void *carve(char *memory, int64_t *used, int64_t bytes) {
    int64_t start = *used;
    *used += round_up(bytes, 64);
    return memory ? memory + start : NULL;
}

/* Rows of one GQA group, padded to whole row blocks. */
INLINE int64_t padded_group_rows(const mw_args *args) {
    return round_up(args->q_len * group_heads(args), BWD_BLOCK_M);
}

/* The arrays of a unit in `memory`; with memory NULL, their total size. */
static int64_t layout_unit(const mw_args *args, char *memory, BackwardUnit *u) {
    int64_t used = 0;
    u->rows = padded_group_rows(args) * groups_per_kv_head(args);
    u->row_blocks = u->rows / BWD_BLOCK_M;
    u->kv_blocks = ceil_div(args->kv_len, BWD_BLOCK_N);
    u->d = round_up(args->head_dim, W);
    u->dv = round_up(args->v_head_dim, W);
    u->tile_words = ceil_div(u->kv_blocks, 64);
    u->q = carve(memory, &used, u->rows * u->d * 4);
    u->dout = carve(memory, &used, u->rows * u->dv * 4);
    u->dq = carve(memory, &used, u->rows * u->d * 4);
    u->lse = carve(memory, &used, u->rows * 4);
    u->delta = carve(memory, &used, u->rows * 4);
    u->span = carve(memory, &used, u->rows * 8);
    u->span_stop = carve(memory, &used, u->rows * 8);
    u->row_flags = carve(memory, &used, u->rows);
    u->block_flags = carve(memory, &used, u->row_blocks);
    u->states = carve(memory, &used, u->row_blocks);
    u->tiles = carve(memory, &used, u->row_blocks * u->tile_words * 8);
    u->next_kv_block = carve(memory, &used, u->row_blocks * 4);
    u->visible = carve(memory, &used, (int64_t)visible_size(args));
    return used;
}

static size_t backward_unit_size(const mw_args *args) {
    BackwardUnit u;
    return (size_t)layout_unit(args, NULL, &u);
}

static void backward_unit(const mw_args *args, int64_t batch, int64_t kv_head, char *memory,
                          BackwardUnit *unit) {
    layout_unit(args, memory, unit);
    unit->batch = batch;
    unit->kv_head = kv_head;
    unit->next_item = 0;
    unit->next_merge = 0;
    unit->next_first = unit->next_last = 0;
}

static int64_t layout_scratch(const mw_args *args, char *memory, BackwardScratch *s) {
    const int64_t d = round_up(args->head_dim, W), dv = round_up(args->v_head_dim, W);
    int64_t used = round_up(sizeof *s, 64);
    s->k_panels = carve(memory, &used, BWD_BLOCK_N * args->head_dim * 4);
    s->v_panels = carve(memory, &used, BWD_BLOCK_N * args->v_head_dim * 4);
    s->k_rows = carve(memory, &used, BWD_BLOCK_N * d * 4);
    s->dk = carve(memory, &used, BWD_BLOCK_N * d * 4);
    s->dv = carve(memory, &used, BWD_BLOCK_N * dv * 4);
    s->p = carve(memory, &used, BWD_BLOCK_M * BWD_BLOCK_N * 4);
    s->ds = carve(memory, &used, BWD_BLOCK_M * BWD_BLOCK_N * 4);
    for (int64_t i = 0; args->scores && i < args->scores->num_terms; i++) {
        const mw_term *t = &args->scores->terms[i];
        int64_t heads = args->heads / args->kv_heads;
        s->grads[i] = t->grad ? carve(memory, &used, heads * t->grad_length * 4) : NULL;
    }
    return used;
}

static size_t backward_scratch(const mw_args *args) {
    BackwardScratch s;
    return (size_t)layout_scratch(args, NULL, &s);
}

/* -- rows ------------------------------------------------------------------------------------ */

/* The rows of a row block: all of one GQA group, from row `first` of it on. The rows from `count`
 * on are padding. */
typedef struct {
    GqaGroup group;
    int64_t first, count;
} BlockRows;

INLINE BlockRows block_rows(const mw_args *args, const BackwardUnit *u, int64_t block) {
    int64_t each = padded_group_rows(args) / BWD_BLOCK_M;
    BlockRows b = {gqa_group(args, u->batch * args->kv_heads + u->kv_head, block / each),
                   block % each * BWD_BLOCK_M, 0};
    b.count = min_i64(BWD_BLOCK_M, args->q_len * b.group.heads - b.first);
    return b;
}

INLINE int64_t query_row(const BlockRows *b, int64_t r) { return (b->first + r) / b->group.heads; }
INLINE int64_t query_head(const BlockRows *b, int64_t r) {
    return b->group.first_head + (b->first + r) % b->group.heads;
}

/* Rows that take no part: padding, no visible key, or visible scores that are all -inf. They are
 * not read, and have no intervals. */
static void clear_rows(BackwardUnit *u, int64_t n, int64_t count) {
    memset(u->q + n * u->d, 0, (size_t)(count * u->d) * 4);
    memset(u->dout + n * u->dv, 0, (size_t)(count * u->dv) * 4);
    memset(u->lse + n, 0, (size_t)count * 4);
    memset(u->delta + n, 0, (size_t)count * 4);
    memset(u->span + n, 0, (size_t)count * 8);
    memset(u->span_stop + n, 0, (size_t)count * 8);
}

/* Above it the rounding of a logsumexp is an error of the weights of 2^-11. */
#define MAX_EXACT_LSE 8192.0f

/* The largest score of a row, and the sum of exp2((score - m) * score_base). */
typedef struct {
    float m, l;
} RowSum;

/* The sum of row n, whose q is read. If the saved logsumexp is over further keys, l is that over all
 * of them. Scores are computed in the order of gemm_panel, so they are equal to the last bit. */
static NOINLINE RowSum row_sum(const mw_args *args, const BackwardUnit *u, int64_t n, int64_t head,
                               int64_t row, float lse) {
    const mw_spans *spans = &args->spans;
    const mw_scores *scores = args->scores;
    const float *q = u->q + n * u->d, base = score_base(args), score_scale = score_factor(args);
    float panel[MW_MAX_HEAD_DIM * NR], converted[W][MW_MAX_HEAD_DIM], m = -INFINITY, l = 0.0f;
    for (int64_t span = u->span[n]; span < u->span_stop[n]; span++)
        for (int64_t key = spans->starts[span]; key < spans->stops[span]; key += W) {
            const int64_t left = spans->stops[span] - key;
            const float *rows[W];
            for (int i = 0; i < W; i++) {
                rows[i] = tensor_row(&args->k, args->dtype, u->batch, u->kv_head,
                                     key + min_i64(i, left - 1));
                if (args->dtype == MW_FLOAT32) continue;
                read_floats(converted[i], rows[i], args->dtype, args->head_dim);
                rows[i] = converted[i];
            }
            interleave(rows, args->head_dim, score_scale, 0, panel);
            vec x[1] = {{0}};
            for (int64_t d = 0; d < args->head_dim; d++)
                x[0] += broadcast(q[d]) * load(panel + d * NR);
            if (scores && scores->softcap > 0) {
                tanh_vec(x, 1);
                x[0] *= (float)scores->softcap;
            }
            for (int64_t i = 0; scores && i < scores->num_terms; i++)
                x[0] += term_values(&scores->terms[i],
                                    term_row(&scores->terms[i], u->batch, head, row), key,
                                    args->kv_len);
            if (left < W)
                x[0] = blend(lane_mask(((uint32_t)1 << left) - 1, 0), x[0], broadcast(-INFINITY));
            const float before = m;
            m = fmaxf(m, reduce_max(x[0]));
            if (m == -INFINITY) continue;
            if (before != m) l *= exp2f((before - m) * base);
            x[0] = (x[0] - m) * base;
            exp2_vec(x, 1);
            l += reduce_sum(x[0]);
        }
    if (m == -INFINITY) /* all weights are those of further keys */
        return (RowSum){(float)(changes_scores(args) ? lse : lse / LN2), 1.0f};
    const double natural = changes_scores(args) ? (double)m : m * LN2;
    const double further = lse - (natural + log(l)); /* of the logsumexp, due to further keys */
    if (!(fabs(further) <= 4 * FLT_EPSILON * fabsf(lse))) l = (float)(l * exp(further));
    return (RowSum){m, l};
}

/* Read q, dO, lse and delta of row n, which is query `row` of a GQA group. Returns the sums of
 * nonfinite_sums. */
static vec prepare_row(const mw_args *args, BackwardUnit *u, int64_t n, const int64_t *offsets,
                       int64_t head, int64_t row) {
    float *q = u->q + n * u->d, *dout = u->dout + n * u->dv, out[MW_MAX_HEAD_DIM];
    float lse = -INFINITY;
    if (offsets[row] < offsets[row + 1]) lse = *row_element(&args->lse, u->batch, head, row);
    if (lse == -INFINITY) {
        clear_rows(u, n, 1);
        return (vec){0};
    }
    u->span[n] = offsets[row];
    u->span_stop[n] = offsets[row + 1];
    const float *q_row = tensor_row(&args->q, args->dtype, u->batch, head, row);
    const float *dout_row = tensor_row(&args->dout, args->dtype, u->batch, head, row);
    const float *out_row = tensor_row(&args->out, args->dtype, u->batch, head, row);
    vec sum = {0};
    float delta;
    if (args->dtype == MW_FLOAT32 && args->head_dim == u->d && args->v_head_dim == u->dv) {
        for (int64_t d = 0; d < u->d; d += W) store(q + d, load(q_row + d));
        for (int64_t d = 0; d < u->dv; d += W) {
            const vec x = load(dout_row + d);
            store(dout + d, x);
            sum += x * load(out_row + d);
        }
        delta = reduce_sum(sum);
    } else {
        read_padded(q, q_row, args->dtype, args->head_dim, u->d);
        read_padded(dout, dout_row, args->dtype, args->v_head_dim, u->dv);
        read_floats(out, out_row, args->dtype, args->v_head_dim);
        int64_t d = 0;
        for (; d + W <= args->v_head_dim; d += W) sum += load(dout + d) * load(out + d);
        delta = reduce_sum(sum);
        for (; d < args->v_head_dim; d++) delta += dout[d] * out[d];
    }
    const double natural = changes_scores(args) ? 1.0 : LN2;
    RowSum sums = {(float)(lse / natural), 1.0f};
    double m = lse; /* natural, of which sums.m is the score */
    if (fabsf(lse) > MAX_EXACT_LSE && lse != INFINITY) {
        sums = row_sum(args, u, n, head, row, lse);
        m = sums.m * natural;
    }
    float factor = 1.0f / sums.l;
    if (args->scores && args->scores->sinks) {
        float sink = args->scores->sinks[head];
        float odds = (float)exp(sink - m) * factor; /* weight of the sink by that of the keys */
        if (args->scores->dsinks.data)
            *row_element(&args->scores->dsinks, u->batch, head, row) = -delta /
                                                                       (1.0f + 1.0f / odds);
        factor /= 1.0f + odds;
        delta /= 1.0f + odds;
    }
    if (args->dlse.data) delta -= *row_element(&args->dlse, u->batch, head, row);
    if (factor != 1.0f)
        for (int64_t d = 0; d < args->v_head_dim; d++) dout[d] *= factor;
    u->delta[n] = delta / sums.l;
    u->lse[n] = lse == INFINITY ? NAN : sums.m;
    return nonfinite_sums(q, u->d) + nonfinite_sums(dout, u->dv);
}

/* Prefetch what prepare_row reads of row r of a block. */
INLINE void prefetch_block_row(const mw_args *args, const BackwardUnit *u, const BlockRows *b,
                               int64_t r) {
    if (r >= b->count) return;
    const int64_t size = dtype_size(args->dtype), head = query_head(b, r), row = query_row(b, r);
    prefetch_row(tensor_row(&args->q, args->dtype, u->batch, head, row), args->head_dim * size);
    prefetch_row(tensor_row(&args->dout, args->dtype, u->batch, head, row),
                 args->v_head_dim * size);
    prefetch_row(tensor_row(&args->out, args->dtype, u->batch, head, row), args->v_head_dim * size);
}

/* Prefetch into the L2 cache what prepare_row reads of row r of a block. */
INLINE void prefetch_block_row_l2(const mw_args *args, const BackwardUnit *u, const BlockRows *b,
                                  int64_t r) {
    const int64_t size = dtype_size(args->dtype), head = query_head(b, r), row = query_row(b, r);
    prefetch_read(tensor_row(&args->q, args->dtype, u->batch, head, row), args->head_dim * size);
    prefetch_read(tensor_row(&args->dout, args->dtype, u->batch, head, row),
                  args->v_head_dim * size);
    prefetch_read(tensor_row(&args->out, args->dtype, u->batch, head, row),
                  args->v_head_dim * size);
}

/* Prefetch dK and dV of a key, which are written. */
INLINE void prefetch_dk_dv(const mw_args *args, const BackwardUnit *u, int64_t key) {
    const int64_t size = dtype_size(args->dtype), head = u->kv_head;
    prefetch_write(tensor_row(&args->dk, args->dtype, u->batch, head, key), args->head_dim * size);
    prefetch_write(tensor_row(&args->dv, args->dtype, u->batch, head, key),
                   args->v_head_dim * size);
}

/* Prefetch dQ of a row, which is written. */
INLINE void prefetch_dq(const mw_args *args, const BackwardUnit *u, int64_t head, int64_t row) {
    prefetch_write(tensor_row(&args->dq, args->dtype, u->batch, head, row),
                   args->head_dim * dtype_size(args->dtype));
}

static NOINLINE void prefetch_panel(const mw_args *args, const BackwardUnit *u,
                                    PrefetchPlan *plan) {
    const int64_t size = dtype_size(args->dtype);
    plan->rows += plan->rows_per_panel;
    plan->keys += plan->keys_per_panel;
    for (; plan->rows >= 1.0f && plan->row < plan->last_row; plan->rows -= 1.0f, plan->row++) {
        const BlockRows b = block_rows(args, u, plan->row / BWD_BLOCK_M);
        if (plan->row % BWD_BLOCK_M < b.count)
            prefetch_block_row_l2(args, u, &b, plan->row % BWD_BLOCK_M);
    }
    for (; plan->keys >= 1.0f && plan->key < plan->last_key; plan->keys -= 1.0f, plan->key++) {
        const int64_t next = plan->key + BWD_BLOCK_N, head = u->kv_head;
        prefetch_dk_dv(args, u, plan->key);
        if (next >= args->kv_len) continue;
        prefetch_read(tensor_row(&args->k, args->dtype, u->batch, head, next),
                      args->head_dim * size);
        prefetch_read(tensor_row(&args->v, args->dtype, u->batch, head, next),
                      args->v_head_dim * size);
    }
}

/* Flag the rows of a row block whose q or dO holds NaN or Inf. */
static void flag_rows(BackwardUnit *u, int64_t block, int64_t count) {
    u->block_flags[block] = 1;
    for (int64_t n = block * BWD_BLOCK_M; n < block * BWD_BLOCK_M + count; n++)
        u->row_flags[n] = (uint8_t)(has_nonfinite(u->q + n * u->d, u->d) ||
                                    has_nonfinite(u->dout + n * u->dv, u->dv));
}

/* The first key block from `from` on with a visible cell; kv_blocks if there is none. */
INLINE int64_t next_tile(const BackwardUnit *u, int64_t row_block, int64_t from) {
    const uint64_t *words = u->tiles + row_block * u->tile_words;
    while (from < u->kv_blocks) {
        uint64_t left = words[from / 64] >> (from % 64);
        if (left) return from + __builtin_ctzll(left);
        from = (from / 64 + 1) * 64;
    }
    return u->kv_blocks;
}

/* Find the key blocks of some row blocks. */
static void backward_tiles(const mw_args *args, BackwardUnit *u, int64_t first_block,
                           int64_t last_block) {
    const mw_spans *spans = &args->spans;
    for (int64_t block = first_block; block < last_block; block++) {
        uint64_t *tiles = u->tiles + block * u->tile_words;
        const BlockRows b = block_rows(args, u, block);
        memset(tiles, 0, (size_t)u->tile_words * 8);
        const int64_t *offsets = b.group.offsets;
        for (int64_t i = offsets[query_row(&b, 0)]; i < offsets[query_row(&b, b.count - 1) + 1];
             i++)
            set_bits(tiles, spans->starts[i] / BWD_BLOCK_N,
                     (spans->stops[i] - 1) / BWD_BLOCK_N + 1);
        u->states[block] = ROWS_UNREAD;
        atomic_store_explicit(&u->next_kv_block[block], (int32_t)next_tile(u, block, 0),
                              memory_order_relaxed);
    }
}

static void backward_prepare(const mw_args *args, BackwardUnit *u, int64_t first_block,
                             int64_t last_block) {
    const int64_t begin = phase_begin();
    for (int64_t block = first_block; block < last_block; block++) {
        const BlockRows b = block_rows(args, u, block);
        const int64_t first = block * BWD_BLOCK_M;
        const int64_t padded = round_up(b.count, MR); /* row groups of padding only are skipped */
        memset(u->dq + first * u->d, 0, (size_t)(padded * u->d) * 4);
        memset(u->row_flags + first, 0, BWD_BLOCK_M);
        memset(u->span + first + padded, 0, (size_t)(BWD_BLOCK_M - padded) * 8);
        memset(u->span_stop + first + padded, 0, (size_t)(BWD_BLOCK_M - padded) * 8);
        u->block_flags[block] = 0;
        vec nonfinite = {0};
        clear_rows(u, first + b.count, padded - b.count);
        for (int64_t r = 0; r < b.count; r++) {
            const int64_t n = first + r;
            prefetch_block_row(args, u, &b, r + PREFETCH_ROWS);
            nonfinite += prepare_row(args, u, n, b.group.offsets, query_head(&b, r),
                                     query_row(&b, r));
        }
        if (any_nonzero(nonfinite)) flag_rows(u, block, b.count);
    }
    phase_end(PHASE_PREPARE, begin);
}

static void backward_write_dq(const mw_args *args, const BackwardUnit *u, int64_t first_block,
                              int64_t last_block) {
    for (int64_t block = first_block; block < last_block; block++) {
        const BlockRows b = block_rows(args, u, block);
        for (int64_t r = 0; r < b.count; r++) {
            const int64_t next = r + PREFETCH_ROWS;
            if (next < b.count) prefetch_dq(args, u, query_head(&b, next), query_row(&b, next));
            write_row(&args->dq, args->dtype, u->batch, query_head(&b, r), query_row(&b, r),
                      u->dq + (block * BWD_BLOCK_M + r) * u->d, (float)args->scale, args->head_dim);
        }
    }
}

/* -- one block of keys ----------------------------------------------------------------------- */

/* K and V as panels, and K as rows. */
static void load_keys(BackwardScratch *s, int64_t start) {
    const mw_args *args = s->args;
    const BackwardUnit *u = s->unit;
    const int64_t end = min_i64(start + BWD_BLOCK_N, args->kv_len);
    const PackSource k = {&args->k,   u->visible,   args->dtype,   u->batch,
                          u->kv_head, args->kv_len, args->head_dim};
    PackSource v = k;
    v.tensor = &args->v;
    v.dim = args->v_head_dim;
    for (int64_t n = 0; n < BWD_PANELS && start + n * NR < args->kv_len; n++) {
        pack_panel(&k, start + n * NR, score_factor(args), s->k_panels + n * NR * args->head_dim);
        pack_panel(&v, start + n * NR, 1.0f, s->v_panels + n * NR * args->v_head_dim);
    }
    vec nonfinite = {0};
    for (int64_t key = start; key < end; key++) {
        if (!bit_is_set(u->visible, key)) continue;
        float *row = s->k_rows + (key - start) * u->d;
        read_padded(row, tensor_row(&args->k, args->dtype, u->batch, u->kv_head, key), args->dtype,
                    args->head_dim, u->d);
        nonfinite += nonfinite_sums(row, u->d);
    }
    s->any_key_flag = any_nonzero(nonfinite);
    if (!s->any_key_flag) return;
    memset(s->key_flags, 0, sizeof s->key_flags);
    for (int64_t key = start; key < end; key++)
        s->key_flags[key - start] = (uint8_t)(bit_is_set(u->visible, key) &&
                                              has_nonfinite(s->k_rows + (key - start) * u->d,
                                                            u->d));
}

/* Soft cap and bias of `nv` vectors of a panel; the derivative of the soft cap is stored in ds. */
INLINE void change_scores_backward(const BackwardScratch *s, int64_t key, float *ds,
                                   vec acc[MR][NV], const int nv) {
    const mw_scores *scores = s->args->scores;
    if (scores->softcap > 0) {
        const float factor = (float)scores->softcap;
        tanh_panel(acc, nv);
        UNROLL(16, int r = 0; r < MR; r++)
            UNROLL(4, int n = 0; n < nv; n++) {
                store(ds + r * BWD_BLOCK_N + n * W, 1.0f - acc[r][n] * acc[r][n]);
                acc[r][n] *= factor;
            }
    }
    add_bias(scores, s->bias, key, s->args->kv_len, acc, nv);
}

/* Add dS of W cells of row r of the row group to the gradients of the bias. */
INLINE void add_bias_gradients(const BackwardScratch *s, int r, int64_t key, vec y) {
    const mw_scores *scores = s->args->scores;
    for (int64_t i = 0; i < scores->num_terms; i++)
        if (scores->terms[i].grad)
            add_term_gradient(&scores->terms[i], s->bias_grads[i][r], key, s->args->kv_len, y);
}

/* P and dS of `nv` vectors of keys from key `offset` of the block on, which is key `key`, for the MR
 * rows from `row` on; 0 in masked cells. p and ds are those of the row group. */
INLINE void compute_ds(BackwardScratch *s, int64_t row, int offset, int64_t key, float *p,
                       float *ds, const int nv, const int dropout, const int level) {
    const BackwardUnit *u = s->unit;
    const mw_args *args = s->args;
    const int partial = !s->mask.full && ~vector_bits(s->mask.every, offset, nv) << (32 - nv * W);
    const int64_t panel = offset / NR * NR, within = offset % NR;
    const float *rows[MR], *lse = u->lse + row, *deltas = u->delta + row;
    vec acc[MR][NV];
    UNROLL(16, int r = 0; r < MR; r++) rows[r] = u->q + (row + r) * u->d;
    p += offset;
    ds += offset;
    gemm_panel(rows, s->k_panels + panel * args->head_dim + within, args->head_dim, acc, nv);
    if (level) change_scores_backward(s, key, ds, acc, nv);
    UNROLL(16, int r = 0; r < MR; r += 2) {
        vec x[2 * NV];
        UNROLL(8, int n = 0; n < 2 * nv; n++) x[n] = acc[r + n / nv][n % nv] - lse[r + n / nv];
        if (level)
            UNROLL(8, int n = 0; n < 2 * nv; n++) x[n] *= (float)LOG2E;
        exp2_vec(x, 2 * nv);
        UNROLL(8, int n = 0; n < 2 * nv; n++)
            store(p + (r + n / nv) * BWD_BLOCK_N + n % nv * W, x[n]);
    }
    UNROLL(16, int r = 0; r < MR; r++) rows[r] = u->dout + (row + r) * u->dv;
    gemm_panel_split(rows, s->v_panels + panel * args->v_head_dim + within, args->v_head_dim, acc,
                     nv);
    vec dp[MR][NV]; /* read by a loop that Clang does not unroll: acc stays in registers */
    UNROLL(16, int r = 0; r < MR; r++)
        UNROLL(4, int n = 0; n < nv; n++) dp[r][n] = acc[r][n];
    UNROLL(16, int r = 0; r < MR; r++) {
        float delta = deltas[r];
        uint32_t bits = partial ? vector_bits(s->mask.row[r], offset, nv) : 0;
        uint32_t keep = dropout ? vector_bits(s->keep[r], offset, nv) : 0;
        for (int n = 0; n < nv; n++) {
            float *to = p + r * BWD_BLOCK_N + n * W;
            vec x = load(to), z = dp[r][n];
            if (dropout) z = (vec)((ivec)(z * s->dropout.keep_scale) & lane_mask(keep, n));
            vec y = x * (z - delta);
            if (dropout) x = (vec)((ivec)x & lane_mask(keep, n));
            if (partial) {
                ivec lanes = lane_mask(bits, n);
                y = (vec)((ivec)y & lanes);
                x = (vec)((ivec)x & lanes);
            }
            if (dropout || partial) store(to, x);
            if (level) {
                add_bias_gradients(s, r, key + n * W, y);
                if (args->scores->softcap > 0) y *= load(ds + r * BWD_BLOCK_N + n * W);
                if (partial) y = (vec)((ivec)y & lane_mask(bits, n));
            }
            store(ds + r * BWD_BLOCK_N + n * W, y);
        }
    }
}

/* Set the mask to the rows of one row group and the key block; return whether a cell is visible. */
INLINE int group_mask(BackwardScratch *s, int64_t row, int64_t start) {
    const BackwardUnit *u = s->unit;
    const mw_spans *spans = &s->args->spans;
    int64_t cursor[MR];
    int some = 0;
    for (int r = 0; r < MR; r++) {
        int64_t low = u->span[row + r], high = u->span_stop[row + r];
        while (high - low > 4) { /* the first interval that ends after `start` */
            int64_t middle = low + (high - low) / 2;
            if (spans->stops[middle - 1] > start)
                high = middle;
            else
                low = middle;
        }
        while (low < high && spans->stops[low] <= start) low++;
        cursor[r] = low;
        some |= low < u->span_stop[row + r] && spans->starts[low] < start + BWD_BLOCK_N;
    }
    if (some) bitmask_build(spans, start, BWD_BLOCK_N, cursor, u->span_stop + row, &s->mask);
    return some;
}

/* Wait until it is this key block's turn to add to dQ of the row block. */
INLINE int wait_for_turn(const BackwardUnit *u, int64_t row_block, int64_t kv_block) {
    for (int spins = 0;; spins++) {
        if (atomic_load_explicit(&u->next_kv_block[row_block], memory_order_acquire) == kv_block)
            return 1;
        if (spins < SPINS_BEFORE_YIELD) continue;
        if (cancelled()) return 0;
        sched_yield();
    }
}

/* dQ += dS K for MR rows. */
static NOINLINE void gemm_ds_k(const float *ds, Operand k, const float *ones, float *dq,
                               int64_t width) {
    gemm_pv(MR, NV, BWD_BLOCK_N, ds, k, ones, dq, width);
}

/* y += a * x */
static void axpy(float a, const float *x, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i++) y[i] += a * x[i];
}

/* dQ of one row group. */
INLINE void add_dq(BackwardScratch *s, int64_t row, int group, const float *ds) {
    BackwardUnit *u = s->unit;
    float ones[MR];
    for (int r = 0; r < MR; r++) ones[r] = 1.0f;
    Operand k = {s->k_rows, u->d, s->runs, visible_runs(&s->mask, s->runs)};
    if (s->any_key_flag) {
        k.count = runs_without(s->runs, k.count, s->key_flags, s->kept_runs);
        k.runs = s->kept_runs;
        for (int64_t j = 0; j < BWD_BLOCK_N; j++)
            for (int r = 0; s->key_flags[j] && r < MR; r++)
                if (bit_is_set(s->visible[group][r], j))
                    axpy(ds[r * BWD_BLOCK_N + j], s->k_rows + j * u->d, u->d,
                         u->dq + (row + r) * u->d);
    }
    gemm_ds_k(ds, k, ones, u->dq + row * u->d, u->d);
}

/* dK and dV of the flagged rows of a row block: visible cells only. */
static void add_flagged_rows(BackwardScratch *s, int64_t row) {
    const BackwardUnit *u = s->unit;
    for (int64_t r = 0; r < BWD_BLOCK_M; r++)
        for (int64_t j = 0; u->row_flags[row + r] && j < BWD_BLOCK_N; j++) {
            if (!s->vectors[r / MR] || !bit_is_set(s->visible[r / MR][r % MR], j)) continue;
            axpy(s->p[r * BWD_BLOCK_N + j], u->dout + (row + r) * u->dv, u->dv, s->dv + j * u->dv);
            axpy(s->ds[r * BWD_BLOCK_N + j], u->q + (row + r) * u->d, u->d, s->dk + j * u->d);
        }
}

/* dK and dV of a row block. */
static void add_dk_dv(BackwardScratch *s, int64_t row) {
    BackwardUnit *u = s->unit;
    const int flagged = u->block_flags[row / BWD_BLOCK_M];
    if (flagged) add_flagged_rows(s, row);
    for (int vector = 0; vector < BWD_VECTORS; vector++) {
        Run runs[BWD_BLOCK_M];
        int count = 0;
        for (int g = 0; g < BWD_GROUPS; g++) {
            if (!(s->vectors[g] >> vector & 1)) continue;
            if (count && s->runs[count - 1].stop == g * MR)
                s->runs[count - 1].stop = (g + 1) * MR;
            else
                s->runs[count++] = (Run){g * MR, (g + 1) * MR};
        }
        if (!count) continue;
        const Run *used = s->runs;
        if (flagged) {
            count = runs_without(s->runs, count, u->row_flags + row, runs);
            used = runs;
        }
        const Operand dout = {u->dout + row * u->dv, u->dv, used, count};
        const Operand q = {u->q + row * u->d, u->d, used, count};
        for (int64_t k = vector * W; k < (vector + 1) * W; k += KR) {
            gemm_ptb(s->p + k, dout, s->dv + k * u->dv);
            gemm_ptb(s->ds + k, q, s->dk + k * u->d);
        }
    }
}

/* Keep bits of a row group, whose first row is row `first` of the row block. */
static void draw_tile_keep_bits(BackwardScratch *s, int64_t row_block, int64_t first,
                                int64_t start) {
    const BlockRows b = block_rows(s->args, s->unit, row_block);
    for (int r = 0; r < MR; r++)
        for (int w = 0; w < BWD_WORDS; w++)
            if (s->mask.full || s->mask.any[w])
                s->keep[r][w] = keep_bits(&s->dropout, query_row(&b, first + r),
                                          query_head(&b, first + r), start + w * 64);
}

/* The rows of the bias and of its gradients for a row group, whose first row is row `first` of the
 * row block. Rows of padding have those of another row; they have no visible cell. */
static void set_bias_rows(BackwardScratch *s, int64_t row_block, int64_t first) {
    const mw_args *args = s->args;
    const BlockRows b = block_rows(args, s->unit, row_block);
    const int64_t heads = args->heads / args->kv_heads;
    for (int64_t i = 0; i < args->scores->num_terms; i++) {
        const mw_term *t = &args->scores->terms[i];
        for (int r = 0; r < MR; r++) {
            const int64_t n = min_i64(first + r, b.count - 1);
            const int64_t row = query_row(&b, n), head = query_head(&b, n);
            s->bias[i][r] = term_row(t, b.group.batch, head, row);
            s->bias_grads[i][r] = NULL;
            if (t->grad && t->grad_length)
                s->bias_grads[i][r] = s->grads[i] + head % heads * t->grad_length + t->origin +
                                      (t->rows ? -(int64_t)t->rows[row] : row * t->row_stride);
            else if (t->grad)
                s->bias_grads[i][r] = t->grad + b.group.batch * t->grad_batch_stride +
                                      head * t->grad_head_stride + row * t->grad_row_stride;
        }
    }
}

/* One tile: the rows from `row` on and the keys from `start` on. Returns 0 if cancelled. */
INLINE int backward_tile(BackwardScratch *s, int64_t row, int64_t start, const int dropout,
                         const int level) {
    BackwardUnit *u = s->unit;
    const int64_t row_block = row / BWD_BLOCK_M, kv_block = start / BWD_BLOCK_N;
    const int flagged = s->any_key_flag || u->block_flags[row_block];
    int has_turn = 0;
    for (int g = 0; g < BWD_GROUPS; g++) {
        const int64_t first = row + g * MR;
        float *p = s->p + g * MR * BWD_BLOCK_N, *ds = s->ds + g * MR * BWD_BLOCK_N;
        int64_t begin = phase_begin();
        s->vectors[g] = 0;
        if (!group_mask(s, first, start)) continue;
        for (int r = 0; flagged && r < MR; r++)
            for (int w = 0; w < BWD_WORDS; w++)
                s->visible[g][r][w] = s->mask.full ? ~(uint64_t)0 : s->mask.row[r][w];
        if (dropout) draw_tile_keep_bits(s, row_block, g * MR, start);
        if (level) set_bias_rows(s, row_block, g * MR);
        for (int panel = 0; panel < BWD_PANELS; panel++) {
            int vectors;
            const int offset = panel * NR + first_vector(&s->mask, panel, &vectors) * W;
            if (!vectors) continue;
            prefetch_panel(s->args, u, &s->prefetch);
            s->vectors[g] |= (((uint64_t)1 << vectors) - 1) << (offset / W);
            if (vectors == NV)
                compute_ds(s, first, offset, start + offset, p, ds, NV, dropout, level);
            else
                compute_ds(s, first, offset, start + offset, p, ds, 1, dropout, level);
        }
        begin = phase_end(PHASE_DS, begin);
        if (!has_turn && !wait_for_turn(u, row_block, kv_block)) return 0;
        has_turn = 1;
        add_dq(s, first, g, ds);
        phase_end(PHASE_DQ, begin);
    }
    atomic_store_explicit(&u->next_kv_block[row_block],
                          (int32_t)next_tile(u, row_block, kv_block + 1), memory_order_release);
    const int64_t begin = phase_begin();
    add_dk_dv(s, row);
    phase_end(PHASE_DK_DV, begin);
    return 1;
}

typedef int BackwardTile(BackwardScratch *s, int64_t row, int64_t start);

#define BACKWARD_TILE(name, dropout, level)                                    \
    static NOINLINE int name(BackwardScratch *s, int64_t row, int64_t start) { \
        return backward_tile(s, row, start, dropout, level);                   \
    }

BACKWARD_TILE(backward_tile_plain, 0, PLAIN)
BACKWARD_TILE(backward_tile_scores, 0, ANY_SCORES)
BACKWARD_TILE(backward_tile_dropout, 1, PLAIN)
BACKWARD_TILE(backward_tile_dropout_scores, 1, ANY_SCORES)

static BackwardTile *select_tile(const mw_args *args) {
    const int scores = changes_scores(args);
    if (args->dropout.p > 0) return scores ? backward_tile_dropout_scores : backward_tile_dropout;
    return scores ? backward_tile_scores : backward_tile_plain;
}

/* Clear the part of the gradients of shared values that the rows and keys of an item have. */
static void clear_shared_gradients(BackwardScratch *s, int64_t kv_block) {
    const mw_args *args = s->args;
    const BackwardUnit *u = s->unit;
    int64_t first_row = INT64_MAX, last_row = -1;
    for (int64_t block = 0; block < u->row_blocks; block++) {
        if (!bit_is_set(u->tiles + block * u->tile_words, kv_block)) continue;
        const BlockRows b = block_rows(args, u, block);
        first_row = min_i64(first_row, query_row(&b, 0));
        last_row = max_i64(last_row, query_row(&b, b.count - 1));
    }
    for (int64_t i = 0; args->scores && i < args->scores->num_terms; i++) {
        const mw_term *t = &args->scores->terms[i];
        s->first_grad[i] = s->last_grad[i] = 0;
        if (!t->grad || !t->grad_length || last_row < 0) continue;
        int64_t first = kv_block * BWD_BLOCK_N,
                last = min_i64(first + BWD_BLOCK_N, args->kv_len) - 1;
        int64_t low = t->keys ? t->keys[first] - t->rows[last_row] : first - last_row;
        int64_t high = t->keys ? t->keys[last] - t->rows[first_row] : last - first_row;
        s->first_grad[i] = t->origin + low;
        s->last_grad[i] = t->origin + high + 1;
        for (int64_t h = 0; h < args->heads / args->kv_heads; h++)
            memset(s->grads[i] + h * t->grad_length + s->first_grad[i], 0,
                   (size_t)(s->last_grad[i] - s->first_grad[i]) * 4);
    }
}

/* Add the item's gradients of shared values to those of its unit, in the order of the items. */
static void merge_shared_gradients(BackwardScratch *s, int64_t kv_block) {
    const mw_args *args = s->args;
    BackwardUnit *u = s->unit;
    if (!args->scores) return;
    for (int spins = 0; atomic_load_explicit(&u->next_merge, memory_order_acquire) != kv_block;
         spins++) {
        if (spins < SPINS_BEFORE_YIELD) continue;
        if (cancelled()) return;
        sched_yield();
    }
    const int64_t heads = args->heads / args->kv_heads;
    for (int64_t i = 0; i < args->scores->num_terms; i++) {
        const mw_term *t = &args->scores->terms[i];
        for (int64_t h = 0; t->grad && t->grad_length && h < heads; h++) {
            const float *from = s->grads[i] + h * t->grad_length;
            float *to = t->grad + u->batch * t->grad_batch_stride +
                        (u->kv_head * heads + h) * t->grad_head_stride;
            for (int64_t n = s->first_grad[i]; n < s->last_grad[i]; n++) to[n] += from[n];
        }
    }
    atomic_store_explicit(&u->next_merge, kv_block + 1, memory_order_release);
}

/* Divide what is prefetched among the panels of the key block; about half of them are visited. */
static void plan_prefetch(BackwardScratch *s, int64_t kv_block) {
    const BackwardUnit *u = s->unit;
    PrefetchPlan *plan = &s->prefetch;
    int64_t tiles = 1;
    for (int64_t block = 0; block < u->row_blocks; block++)
        tiles += bit_is_set(u->tiles + block * u->tile_words, kv_block);
    const float panels = 0.5f * (float)(tiles * BWD_GROUPS * BWD_PANELS);
    plan->row = u->next_first * BWD_BLOCK_M;
    plan->last_row = u->next_last * BWD_BLOCK_M;
    plan->key = kv_block * BWD_BLOCK_N;
    plan->last_key = min_i64(plan->key + BWD_BLOCK_N, s->args->kv_len);
    plan->rows = plan->keys = 0.0f;
    plan->rows_per_panel = (float)(plan->last_row - plan->row) / panels;
    plan->keys_per_panel = (float)(plan->last_key - plan->key) / panels;
}

static void backward_kv_block(const mw_args *args, BackwardUnit *u, int64_t kv_block,
                              void *scratch) {
    BackwardScratch *s = scratch;
    const int64_t start = kv_block * BWD_BLOCK_N;
    layout_scratch(args, scratch, s);
    s->args = args;
    s->unit = u;
    s->dropout = dropout_state(args, u->batch);
    const int64_t keys = round_up(min_i64(BWD_BLOCK_N, args->kv_len - start), NR);
    memset(s->dk, 0, (size_t)(keys * u->d) * 4);
    memset(s->dv, 0, (size_t)(keys * u->dv) * 4);
    int64_t begin = phase_begin();
    load_keys(s, start);
    phase_end(PHASE_PACK, begin);
    clear_shared_gradients(s, kv_block);
    plan_prefetch(s, kv_block);
    BackwardTile *tile = select_tile(args);
    for (int64_t block = 0; block < u->row_blocks; block++) {
        if (!bit_is_set(u->tiles + block * u->tile_words, kv_block)) continue;
        int64_t row = block * BWD_BLOCK_M;
        if (cancelled()) return;
        if (!tile(s, row, start)) return;
    }
    merge_shared_gradients(s, kv_block);
    begin = phase_begin();
    for (int64_t key = start; key < min_i64(start + BWD_BLOCK_N, args->kv_len); key++) {
        write_row(&args->dk, args->dtype, u->batch, u->kv_head, key, s->dk + (key - start) * u->d,
                  (float)args->scale, args->head_dim);
        write_row(&args->dv, args->dtype, u->batch, u->kv_head, key, s->dv + (key - start) * u->dv,
                  s->dropout.keep_scale, args->v_head_dim);
    }
    phase_end(PHASE_OUTPUT, begin);
}

#endif
