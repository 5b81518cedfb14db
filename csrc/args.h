/* What the kernels read from the arguments of a call. */
#ifndef MASKWRIGHT_ARGS_H
#define MASKWRIGHT_ARGS_H

#include "maskwright.h"

#include <stddef.h>
#include <stdint.h>

#define LOG2E 1.4426950408889634
#define LN2 0.6931471805599453

static inline int64_t round_up(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}
static inline int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }
static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

static inline double softcap_of(const mw_args *args) {
    return args->scores ? args->scores->softcap : 0.0;
}

/* Is there a soft cap or a bias? */
static inline int changes_scores(const mw_args *args) {
    return args->scores && (args->scores->softcap > 0 || args->scores->num_terms);
}

/* Scores of weights are 2^(score * score_base): scores are in base 2, but natural if there is a soft
 * cap or a bias, since a large bias times log2(e) is not finite. */
static inline float score_base(const mw_args *args) {
    return changes_scores(args) ? (float)LOG2E : 1.0f;
}

/* The factor of q k: to the score, or to its quotient by the soft cap. The limits of scale and soft
 * cap allow a larger quotient, of which tanh is 1. */
static inline float score_factor(const mw_args *args) {
    const double cap = softcap_of(args), max_factor = 1e32;
    double factor = cap > 0 ? args->scale / cap : args->scale;
    if (!changes_scores(args)) factor *= LOG2E;
    return (float)(factor > max_factor ? max_factor : factor < -max_factor ? -max_factor : factor);
}

static inline int64_t dtype_size(int64_t dtype) { return dtype == MW_FLOAT32 ? 4 : 2; }

static inline void *tensor_row(const mw_tensor *t, int64_t dtype, int64_t batch, int64_t head,
                               int64_t row) {
    int64_t index = batch * t->batch_stride + head * t->head_stride + row * t->row_stride;
    return (char *)t->data + index * dtype_size(dtype);
}

static inline float *row_element(const mw_rows *t, int64_t batch, int64_t head, int64_t row) {
    return t->data + batch * t->batch_stride + head * t->head_stride + row * t->row_stride;
}

#endif
