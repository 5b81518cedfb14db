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
 * of `wide` vectors of the values' columns. Weights of a row are `apart` from the next. What is new
 * is added up by itself: short sums lose less. */
#define ADD_VALUES(name, height, wide, apart)                                                     \
    INLINE void name(const float *weights, const float *values, int64_t stride, const Run *runs,  \
                     int count, const float *keep, float *totals, int64_t width) {                \
        vec sums[height][wide];                                                                   \
        _Pragma("GCC unroll 16") for (int r = 0; r < height; r++)                                 \
            _Pragma("GCC unroll 8") for (int n = 0; n < wide; n++) sums[r][n] = (vec){0};         \
        for (int i = 0; i < count; i++) {                                                         \
            const float *value = values + runs[i].start * stride;                                 \
            for (int64_t j = runs[i].start; j < runs[i].stop; j++, value += stride) {             \
                vec column[wide];                                                                 \
                _Pragma("GCC unroll 8") for (int n = 0; n < wide; n++) column[n] =                \
                    load(value + n * W);                                                          \
                _Pragma("GCC unroll 16") for (int r = 0; r < height; r++) {                       \
                    vec x = all(weights[r * apart + j]);                                          \
                    _Pragma("GCC unroll 8") for (int n = 0; n < wide; n++) sums[r][n] +=          \
                        x * column[n];                                                            \
                }                                                                                 \
            }                                                                                     \
        }                                                                                         \
        _Pragma("GCC unroll 16") for (int r = 0; r < height; r++)                                 \
            _Pragma("GCC unroll 8") for (int n = 0; n < wide; n++) {                              \
                float *place = totals + r * width + n * W;                                        \
                store(place, load(place) * keep[r] + sums[r][n]);                                 \
            }                                                                                     \
    }

/* The same of all columns. */
#define ADD_ALL_VALUES(name, apart)                                                               \
    ADD_VALUES(name##_tile, MR, NV, apart)                                                         \
    ADD_VALUES(name##_narrow, MR, 1, apart)                                                        \
    static void name(const float *weights, const float *values, int64_t stride, const Run *runs,  \
                     int count, const float *keep, float *totals, int64_t width) {                \
        int64_t c = 0;                                                                            \
        for (; c + NR <= width; c += NR)                                                          \
            name##_tile(weights, values + c, stride, runs, count, keep, totals + c, width);       \
        for (; c < width; c += W)                                                                 \
            name##_narrow(weights, values + c, stride, runs, count, keep, totals + c, width);     \
    }

ADD_ALL_VALUES(add_values, STEP)
ADD_VALUES(add_to_row, 1, 8, STEP)
ADD_VALUES(add_to_row_narrow, 1, 1, STEP)
ADD_ALL_VALUES(add_keys, BACK_STEP)

/* totals[k] += the sum over rows of weights[row][k] times that row, for the KR keys that begin at
 * `weights` and the runs of rows; of `wide` vectors of the rows' columns. */
enum { KR = 4 };

#define ADD_ROWS(name, wide)                                                                      \
    INLINE void name(const float *weights, const float *rows, int64_t width, const Run *runs,     \
                     int count, float *totals) {                                                  \
        vec sums[KR][wide];                                                                       \
        _Pragma("GCC unroll 4") for (int k = 0; k < KR; k++)                                      \
            _Pragma("GCC unroll 8") for (int n = 0; n < wide; n++) sums[k][n] = (vec){0};         \
        for (int i = 0; i < count; i++) {                                                         \
            for (int64_t r = runs[i].start; r < runs[i].stop; r++) {                              \
                vec column[wide];                                                                 \
                _Pragma("GCC unroll 8") for (int n = 0; n < wide; n++) column[n] =                \
                    load(rows + r * width + n * W);                                               \
                _Pragma("GCC unroll 4") for (int k = 0; k < KR; k++) {                            \
                    vec x = all(weights[r * BACK_STEP + k]);                                      \
                    _Pragma("GCC unroll 8") for (int n = 0; n < wide; n++) sums[k][n] +=          \
                        x * column[n];                                                            \
                }                                                                                 \
            }                                                                                     \
        }                                                                                         \
        _Pragma("GCC unroll 4") for (int k = 0; k < KR; k++)                                      \
            _Pragma("GCC unroll 8") for (int n = 0; n < wide; n++) {                              \
                float *place = totals + k * width + n * W;                                        \
                store(place, load(place) + sums[k][n]);                                           \
            }                                                                                     \
    }

ADD_ROWS(add_three, 3)
ADD_ROWS(add_two, 2)
ADD_ROWS(add_one, 1)

static void add_rows(const float *weights, const float *rows, int64_t width, const Run *runs,
                     int count, float *totals) {
    int64_t c = 0, vectors = width / W;
    for (; vectors >= 5 || vectors == 3; vectors -= 3, c += 3 * W)
        add_three(weights, rows + c, width, runs, count, totals + c);
    for (; vectors >= 2; vectors -= 2, c += 2 * W)
        add_two(weights, rows + c, width, runs, count, totals + c);
    if (vectors) add_one(weights, rows + c, width, runs, count, totals + c);
}
