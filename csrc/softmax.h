/* Rules of the online softmax that forward and decode share.
 *
 * m is the row's largest score so far, l the sum of exp2((score - m) * score_base). A row without visible cell, or
 * whose visible scores are all -inf, has m = -inf and l = 0. A visible +inf gives m = +inf and
 * l = NaN. A visible NaN gives l = NaN; next to a visible +inf it gives m = NaN too, so that the
 * logsumexp is NaN. */
#ifndef MASKWRIGHT_SOFTMAX_H
#define MASKWRIGHT_SOFTMAX_H

#include "scores.h"
#include "vector.h"

/* What is subtracted from the scores: m, or 0 for a row that has no score above -inf yet. */
INLINE float softmax_shift(float m) { return m == -INFINITY ? 0.0f : m; }

/* m after a block whose scores include +inf, from l before the block and the block's scores. */
INLINE float max_with_inf(float m_before, float l_before, int block_has_nan) {
    int nan_before = m_before != INFINITY && isnan(l_before);
    return isnan(m_before) || nan_before || block_has_nan ? NAN : INFINITY;
}

/* The row's natural logsumexp; m is natural. */
INLINE float logsumexp(double m, float l) {
    if (l == 0.0f) return -INFINITY;
    if (m == INFINITY) return INFINITY;
    return (float)(m + logf(l));
}

/* Write one row of the output and its logsumexp. */
INLINE void write_output(const mw_args *args, int64_t batch, int64_t head, int64_t row,
                         const float *acc, float max_score, float l) {
    const double m = (double)max_score * (changes_scores(args) ? 1.0 : LN2);
    if (l == 0.0f)
        write_zeros(&args->out, args->dtype, batch, head, row, args->v_head_dim);
    else
        write_row(&args->out, args->dtype, batch, head, row, acc,
                  (float)(1.0 / (1.0 - args->dropout.p) / with_sink(args, head, m, l)),
                  args->v_head_dim);
    *row_element(&args->lse, batch, head, row) = logsumexp(m, l);
}

#endif
