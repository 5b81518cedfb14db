/* The micro-kernels: small matrix products whose accumulators stay in registers.
 *
 * A row group is MR rows, a panel NR = NV * W keys. Sizes that are `const int` parameters are
 * compile-time constants after inlining, so every loop over them is unrolled. */
#ifndef MASKWRIGHT_MICROKERNEL_H
#define MASKWRIGHT_MICROKERNEL_H

#include "bitmask.h"

enum { KR = 4, MAX_NV = 8 };

/* acc[r] = row r times `nv` vectors of keys of a panel, [dim][NR]. */
INLINE void gemm_panel(const float *const rows[MR], const float *panel, int64_t dim,
                       vec acc[MR][NV], const int nv) {
    UNROLL(16, int r = 0; r < MR; r++)
        UNROLL(4, int n = 0; n < nv; n++) acc[r][n] = (vec){0};
    /* fewer branch mispredictions at the end of the loop: 20% of its time */
    UNROLL_SOME(4, int64_t d = 0; d < dim; d++) {
        vec keys[NV];
        UNROLL(4, int n = 0; n < nv; n++) keys[n] = load(panel + d * NR + n * W);
        UNROLL(16, int r = 0; r < MR; r++) {
            vec x = broadcast(rows[r][d]);
            UNROLL(4, int n = 0; n < nv; n++) acc[r][n] += x * keys[n];
        }
    }
}

/* The same, with partial sums over 32 dimensions: dS is a small difference of two such sums. */
INLINE void gemm_panel_split(const float *const rows[MR], const float *panel, int64_t dim,
                             vec acc[MR][NV], const int nv) {
    enum { PART = 32 };
    vec total[MR][NV];
    UNROLL(16, int r = 0; r < MR; r++)
        UNROLL(4, int n = 0; n < nv; n++) total[r][n] = (vec){0};
    for (int64_t d = 0; d < dim; d += PART) {
        const float *part[MR];
        UNROLL(16, int r = 0; r < MR; r++) part[r] = rows[r] + d;
        gemm_panel(part, panel + d * NR, min_i64(PART, dim - d), acc, nv);
        UNROLL(16, int r = 0; r < MR; r++)
            UNROLL(4, int n = 0; n < nv; n++) total[r][n] += acc[r][n];
    }
    UNROLL(16, int r = 0; r < MR; r++)
        UNROLL(4, int n = 0; n < nv; n++) acc[r][n] = total[r][n];
}

/* Row-major operand of a micro-kernel, and the runs of its rows that take part. */
typedef struct {
    const float *data;
    int64_t stride;
    const Run *runs;
    int count;
} Operand;

/* out[r] = out[r] * alpha[r] + sum over keys j of p[r][j] * rows[j], for `height` rows of p and
 * `nv` vectors of columns. The block's sum is accumulated separately: short sums round less. */
INLINE void gemm_pv_tile(const int height, const int nv, const int64_t p_stride, const float *p,
                         const Operand b, int64_t column, const float *alpha, float *out,
                         int64_t out_stride) {
    vec acc[MR][MAX_NV];
    UNROLL(16, int r = 0; r < height; r++)
        UNROLL(8, int n = 0; n < nv; n++) acc[r][n] = (vec){0};
    for (int i = 0; i < b.count; i++) {
        const float *row = b.data + column + b.runs[i].start * b.stride;
        for (int64_t j = b.runs[i].start; j < b.runs[i].stop; j++, row += b.stride) {
            vec x[MAX_NV];
            UNROLL(8, int n = 0; n < nv; n++) x[n] = load(row + n * W);
            UNROLL(16, int r = 0; r < height; r++) {
                vec weight = broadcast(p[r * p_stride + j]);
                UNROLL(8, int n = 0; n < nv; n++) acc[r][n] += weight * x[n];
            }
        }
    }
    UNROLL(16, int r = 0; r < height; r++)
        UNROLL(8, int n = 0; n < nv; n++) {
            float *to = out + column + r * out_stride + n * W;
            store(to, load(to) * alpha[r] + acc[r][n]);
        }
}

/* The same for all columns, `nv` vectors at a time, then one. `width` is a multiple of W. */
INLINE void gemm_pv(const int height, const int nv, const int64_t p_stride, const float *p,
                    const Operand b, const float *alpha, float *out, int64_t width) {
    int64_t c = 0;
    for (; c + nv * W <= width; c += nv * W)
        gemm_pv_tile(height, nv, p_stride, p, b, c, alpha, out, width);
    for (; c < width; c += W) gemm_pv_tile(height, 1, p_stride, p, b, c, alpha, out, width);
}

/* out[k] += sum over rows r of p[r][k] * rows[r], for the KR keys from p on and `nv` vectors of
 * columns: the transposed product of dK and dV. */
INLINE void gemm_ptb_tile(const int nv, const float *p, const Operand b, int64_t column,
                          float *out) {
    vec acc[KR][3];
    UNROLL(4, int k = 0; k < KR; k++)
        UNROLL(3, int n = 0; n < nv; n++) acc[k][n] = (vec){0};
    for (int i = 0; i < b.count; i++) {
        for (int64_t r = b.runs[i].start; r < b.runs[i].stop; r++) {
            vec x[3];
            UNROLL(3, int n = 0; n < nv; n++) x[n] = load(b.data + column + r * b.stride + n * W);
            UNROLL(4, int k = 0; k < KR; k++) {
                vec weight = broadcast(p[r * BWD_BLOCK_N + k]);
                UNROLL(3, int n = 0; n < nv; n++) acc[k][n] += weight * x[n];
            }
        }
    }
    UNROLL(4, int k = 0; k < KR; k++)
        UNROLL(3, int n = 0; n < nv; n++) {
            float *to = out + column + k * b.stride + n * W;
            store(to, load(to) + acc[k][n]);
        }
}

/* All columns; out has the stride of b. */
static void gemm_ptb(const float *p, const Operand b, float *out) {
    int64_t c = 0, vectors = b.stride / W;
    for (; vectors >= 5 || vectors == 3; vectors -= 3, c += 3 * W) gemm_ptb_tile(3, p, b, c, out);
    for (; vectors >= 2; vectors -= 2, c += 2 * W) gemm_ptb_tile(2, p, b, c, out);
    if (vectors) gemm_ptb_tile(1, p, b, c, out);
}

#endif
