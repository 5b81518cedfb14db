/* Soft cap, bias and sinks.
 *
 * score = softcap * tanh(q k * scale / softcap) + bias; see score_base. */
#ifndef MASKWRIGHT_SCORES_H
#define MASKWRIGHT_SCORES_H

#include "isa.h"
#include "microkernel.h"
#include "vector.h"

/* What a kernel is specialised for. */
enum { PLAIN = 0, BIAS = 1, SOFTCAP = 2, ANY_SCORES = 3 }; /* ANY_SCORES tests at run time */

/* x[i] = tanh(x[i]), with a relative error below 2e-7; NaN stays NaN. Below 0.625 it is a polynomial
 * (Cephes), above 1 - 2 e / (1 + e) with e = exp(-2 |x|). The count vectors advance together. */
INLINE void tanh_vec(vec *x, const int count) {
    const vec c[] = {broadcast(-5.70498872745e-3f), broadcast(2.06390887954e-2f),
                     broadcast(-5.37397155531e-2f), broadcast(1.33314422036e-1f),
                     broadcast(-3.33332819422e-1f)};
    const ivec sign = (ivec){0} + (int32_t)0x80000000;
    vec e[8], square[8], small[8];
#define EACH UNROLL(8, int i = 0; i < count; i++)
    EACH
        e[i] = (vec)((ivec)x[i] & ~sign) * -2.88539008f;
    exp2_vec(e, count);
    EACH
        e[i] = 1.0f - 2.0f * e[i] / (1.0f + e[i]);
    EACH
        square[i] = x[i] * x[i];
    EACH
        small[i] = c[0] * square[i] + c[1];
    EACH
        small[i] = small[i] * square[i] + c[2];
    EACH
        small[i] = small[i] * square[i] + c[3];
    EACH
        small[i] = small[i] * square[i] + c[4];
    EACH
        small[i] = small[i] * square[i] * x[i] + x[i];
    EACH {
        vec large = (vec)((ivec)e[i] | ((ivec)x[i] & sign));
        x[i] = blend((ivec)(square[i] < 0.390625f), small[i], large);
    }
#undef EACH
}

static void tanh_floats(const float *from, float *to, int64_t n) {
    for (int64_t i = 0; i < n; i += W) {
        vec x[1] = {load(from + i)};
        tanh_vec(x, 1);
        store(to + i, x[0]);
    }
}

/* s = tanh(s) for MR rows and `nv` vectors of a panel. */
INLINE void tanh_panel(vec s[MR][NV], const int nv) {
    UNROLL(16, int r = 0; r < MR; r += 2) {
        vec x[2 * NV];
        UNROLL(8, int n = 0; n < 2 * nv; n++) x[n] = s[r + n / nv][n % nv];
        tanh_vec(x, 2 * nv);
        UNROLL(8, int n = 0; n < 2 * nv; n++) s[r + n / nv][n % nv] = x[n];
    }
}

/* -- bias ------------------------------------------------------------------------------------ */

/* Where the values of a row are: value of key k at [key(k)]. */
INLINE const float *term_row(const mw_term *t, int64_t batch, int64_t head, int64_t row) {
    return t->data + batch * t->batch_stride + head * t->head_stride + t->origin +
           (t->rows ? -(int64_t)t->rows[row] : row * t->row_stride);
}

/* Are the coordinates of W keys consecutive? All of them must exist. */
INLINE int consecutive(const int32_t *keys) { return keys[W - 1] - keys[0] == W - 1; }

INLINE vec gather(const float *row, const int32_t *index) {
#if defined(USE_AVX512)
    return (vec)_mm512_i32gather_ps(_mm512_loadu_si512(index), row, 4);
#elif defined(USE_AVX2) && W == 8
    return (vec)_mm256_i32gather_ps(row, _mm256_loadu_si256((const __m256i *)index), 4);
#else
    vec x;
    for (int i = 0; i < W; i++) x[i] = row[index[i]];
    return x;
#endif
}

/* The values of W keys from `key` on; 0 from kv_len on. */
INLINE vec term_values(const mw_term *t, const float *row, int64_t key, int64_t kv_len) {
    const int64_t left = kv_len - key;
    if (left >= W) {
        if (t->keys) {
            const int32_t *keys = t->keys + key;
            return consecutive(keys) ? load(row + keys[0]) : gather(row, keys);
        }
        if (t->key_stride == 1) return load(row + key);
        if (t->key_stride == 0) return broadcast(row[0]);
    }
    float lanes[W];
    for (int64_t i = 0; i < W; i++)
        lanes[i] = i >= left ? 0.0f : row[t->keys ? t->keys[key + i] : (key + i) * t->key_stride];
    return load(lanes);
}

/* The values of a term for `nv` vectors of a panel, in any layout. */
static NOINLINE void read_panel(const mw_term *t, const float *const rows[MR], int64_t key,
                                int64_t kv_len, vec values[MR][NV], int nv) {
    for (int r = 0; r < MR; r++)
        for (int n = 0; n < nv; n++) values[r][n] = term_values(t, rows[r], key + n * W, kv_len);
}

/* s += bias for `nv` vectors of keys from `key` on; rows[i][r] is the row of term i. */
INLINE void add_bias(const mw_scores *scores, const float *const rows[MW_MAX_TERMS][MR],
                     int64_t key, int64_t kv_len, vec s[MR][NV], const int nv) {
    for (int64_t i = 0; i < scores->num_terms; i++) {
        const mw_term *t = &scores->terms[i];
        if (!t->keys && t->key_stride == 1 && key + nv * W <= kv_len) {
            UNROLL(16, int r = 0; r < MR; r++)
                UNROLL(4, int n = 0; n < nv; n++) s[r][n] += load(rows[i][r] + key + n * W);
        } else {
            vec values[MR][NV];
            read_panel(t, rows[i], key, kv_len, values, nv);
            UNROLL(16, int r = 0; r < MR; r++)
                UNROLL(4, int n = 0; n < nv; n++) s[r][n] += values[r][n];
        }
    }
}

/* Soft cap and bias of MR rows and `nv` vectors of a panel. */
INLINE void change_scores(const mw_scores *scores, const float *const rows[MW_MAX_TERMS][MR],
                          int64_t key, int64_t kv_len, vec s[MR][NV], const int nv,
                          const int level) {
    if (level == SOFTCAP || (level == ANY_SCORES && scores->softcap > 0)) {
        const float factor = (float)scores->softcap;
        tanh_panel(s, nv);
        UNROLL(16, int r = 0; r < MR; r++)
            UNROLL(4, int n = 0; n < nv; n++) s[r][n] *= factor;
    }
    add_bias(scores, rows, key, kv_len, s, nv);
}

/* grad[key(k)] += y for W keys from `key` on, in any layout; the lanes from kv_len on are left out. */
static NOINLINE void scatter_gradient(const mw_term *t, float *grad, int64_t key, int64_t kv_len,
                                      const float y[W]) {
    const int64_t left = min_i64(kv_len - key, W);
    const int32_t *keys = t->grad_length && t->keys ? t->keys + key : NULL;
    if (left == W && keys && consecutive(keys)) {
        store(grad + keys[0], load(grad + keys[0]) + load(y));
        return;
    }
    for (int64_t i = 0; i < left; i++) grad[keys ? keys[i] : key + i] += y[i];
}

INLINE void add_term_gradient(const mw_term *t, float *grad, int64_t key, int64_t kv_len, vec y) {
    if (key + W <= kv_len && !(t->grad_length && t->keys)) {
        store(grad + key, load(grad + key) + y);
        return;
    }
    float lanes[W];
    store(lanes, y);
    scatter_gradient(t, grad, key, kv_len, lanes);
}

/* -- sinks ----------------------------------------------------------------------------------- */

/* l of a row with the sink of its head; the row has a visible score above -inf. m is natural. */
INLINE float with_sink(const mw_args *args, int64_t head, double m, float l) {
    if (!args->scores || !args->scores->sinks) return l;
    return l + (float)exp(args->scores->sinks[head] - m);
}

#endif
