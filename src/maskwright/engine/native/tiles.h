/* The inner loops: small matrix products whose sums stay in registers.
 *
 * A group is MR rows, a panel NR = NV * W keys. */

/* sums[r] = row r times each key of a panel, [dim][NR]. */
INLINE void row_products(const float *const rows[MR], const float *panel, int64_t dim,
                         vec sums[MR][NV]) {
#pragma GCC unroll 16
    for (int r = 0; r < MR; r++)
#pragma GCC unroll 4
        for (int n = 0; n < NV; n++) sums[r][n] = (vec){0};
#pragma GCC unroll 4 /* else the loop's end is guessed wrongly, which takes a fifth of the time */
    for (int64_t d = 0; d < dim; d++) {
        vec keys[NV];
#pragma GCC unroll 4
        for (int n = 0; n < NV; n++) keys[n] = load(panel + d * NR + n * W);
#pragma GCC unroll 16
        for (int r = 0; r < MR; r++) {
            vec x = all(rows[r][d]);
#pragma GCC unroll 4
            for (int n = 0; n < NV; n++) sums[r][n] += x * keys[n];
        }
    }
}

/* totals[r] = totals[r] * keep[r] + the weights of row r times the values, over the runs of keys;
 * of `wide` vectors of the values' columns. Weights of a row are STEP apart. */
#define ADD_VALUES(name, height, wide)                                                            \
    INLINE void name(const float *weights, const float *values, int64_t stride, const Run *runs,  \
                     int count, const float *keep, float *totals, int64_t width) {                \
        vec sums[height][wide];                                                                   \
        _Pragma("GCC unroll 16") for (int r = 0; r < height; r++)                                 \
            _Pragma("GCC unroll 8") for (int n = 0; n < wide; n++) sums[r][n] =                   \
                load(totals + r * width + n * W) * keep[r];                                       \
        for (int i = 0; i < count; i++) {                                                         \
            const float *value = values + runs[i].start * stride;                                 \
            for (int64_t j = runs[i].start; j < runs[i].stop; j++, value += stride) {             \
                vec column[wide];                                                                 \
                _Pragma("GCC unroll 8") for (int n = 0; n < wide; n++) column[n] =                \
                    load(value + n * W);                                                          \
                _Pragma("GCC unroll 16") for (int r = 0; r < height; r++) {                       \
                    vec x = all(weights[r * STEP + j]);                                           \
                    _Pragma("GCC unroll 8") for (int n = 0; n < wide; n++) sums[r][n] +=          \
                        x * column[n];                                                            \
                }                                                                                 \
            }                                                                                     \
        }                                                                                         \
        _Pragma("GCC unroll 16") for (int r = 0; r < height; r++)                                 \
            _Pragma("GCC unroll 8") for (int n = 0; n < wide; n++)                                \
                store(totals + r * width + n * W, sums[r][n]);                                    \
    }

ADD_VALUES(add_tile, MR, NV)
ADD_VALUES(add_narrow, MR, 1)

/* As above, of all columns. */
static void add_values(const float *weights, const float *values, int64_t stride, const Run *runs,
                       int count, const float *keep, float *totals, int64_t width) {
    int64_t column = 0;
    for (; column + NR <= width; column += NR)
        add_tile(weights, values + column, stride, runs, count, keep, totals + column, width);
    for (; column < width; column += W)
        add_narrow(weights, values + column, stride, runs, count, keep, totals + column, width);
}
