/* Keys as panels, [dim][NR] each, and values as rows of floats without gaps. What no row sees is
 * not read, and is 0. */

static int64_t values_width(const Attention *a) { return round_up(a->value_dim, W); }

/* Can values be read where they lie? Not if a row would be read past its end, nor if rows lie
 * so that the cache holds few of them. */
static int64_t values_as_given(const Attention *a) {
    int64_t row = a->v.row;
    return a->dtype == FLOAT32 && a->value_dim % W == 0 &&
           (row <= 2 * a->value_dim || row * 4 % 512 != 0);
}

INLINE const void *row_at(const Tensor *t, int64_t dtype, int64_t b, int64_t h, int64_t row) {
    int64_t place = b * t->batch + h * t->head + row * t->row;
    return (const char *)t->data + place * (dtype == FLOAT32 ? 4 : 2);
}

INLINE int is_seen(const uint64_t *seen, int64_t key) { return seen[key / 64] >> (key % 64) & 1; }

/* W rows, side by side: to[d * NR + r] = rows[r][d] * factor. */
INLINE void interleave(const float *const rows[W], int64_t dim, float factor, float *to) {
    int64_t d = 0;
    for (; d + W <= dim; d += W) {
        vec x[W];
#pragma GCC unroll 16
        for (int r = 0; r < W; r++) x[r] = load(rows[r] + d) * factor;
        transpose(x);
#pragma GCC unroll 16
        for (int r = 0; r < W; r++) store(to + (d + r) * NR, x[r]);
    }
    for (; d < dim; d++)
        for (int r = 0; r < W; r++) to[d * NR + r] = rows[r][d] * factor;
}

enum { MOST_DIM = 256 };

/* The rows first … first + NR - 1 of a tensor as one panel. */
static void pack_panel(const Tensor *t, int64_t dtype, const uint64_t *seen, int64_t b, int64_t h,
                       int64_t first, int64_t length, int64_t dim, float factor, float *panel) {
    static const float zeros[MOST_DIM];
    float read[W][MOST_DIM];
    for (int part = 0; part < NV; part++) {
        const float *rows[W];
        for (int r = 0; r < W; r++) {
            int64_t key = first + part * W + r;
            rows[r] = zeros;
            if (key >= length || !is_seen(seen, key)) continue;
            const void *row = row_at(t, dtype, b, h, key);
            if (dtype == FLOAT32) {
                rows[r] = row;
            } else {
                read_floats(read[r], row, dtype, dim);
                rows[r] = read[r];
            }
        }
        interleave(rows, dim, factor, panel + part * W);
    }
}

/* The panels first … stop - 1 of one batch row and key head, and the values of their keys. */
static void pack(const Attention *a, const uint64_t *seen, int64_t batch, int64_t key_head,
                 int64_t first, int64_t stop, Keys *keys) {
    const float factor = (float)(a->scale * 1.4426950408889634);
    const uint64_t whole = NR == 64 ? ~(uint64_t)0 : ((uint64_t)1 << (NR % 64)) - 1;
    for (int64_t panel = first; panel < stop; panel++) {
        if (!(seen[panel * NR / 64] >> (panel * NR % 64) & whole)) continue;
        pack_panel(&a->k, a->dtype, seen, batch, key_head, panel * NR, a->keys, a->dim, factor,
                   keys->panels + panel * NR * a->dim);
    }
    if (values_as_given(a)) return;
    float *values = (float *)keys->values;
    for (int64_t key = first * NR; key < smaller(stop * NR, a->keys); key++) {
        if (!is_seen(seen, key)) continue;
        float *row = values + key * keys->value_stride;
        read_floats(row, row_at(&a->v, a->dtype, batch, key_head, key), a->dtype, a->value_dim);
        for (int64_t d = a->value_dim; d < keys->value_stride; d++) row[d] = 0.0f;
    }
}
