/* The forward pass of few rows, as in decoding: each key is read once or twice, so it is read where
 * it lies. A row at a time takes a step of keys, and leaves its totals, its largest score and its
 * sum of weights, to be merged with those of other parts of the keys. */

typedef struct {
    Run runs[STEP];
    int64_t cursor[FEW_ROWS];
    float scores[STEP + W] __attribute__((aligned(64)));
    float keys[W][MOST_DIM] __attribute__((aligned(64)));
    float q[FEW_ROWS][MOST_DIM] __attribute__((aligned(64))); /* times scale and log2(e) */
    float values[] __attribute__((aligned(64)));              /* [STEP][width], where converted */
} FewSpace;

/* Can values be read where they lie? However far apart: each is read once or twice. */
INLINE int few_as_given(const Attention *a) {
    return a->dtype == FLOAT32 && a->value_dim % W == 0;
}

static size_t few_space(const Attention *a) {
    int64_t floats = few_as_given(a) ? 0 : STEP * values_width(a);
    return sizeof(FewSpace) + sizeof(float) * (size_t)floats;
}

/* Totals of every row, then its largest score and its sum of weights. */
static int64_t few_floats(const Attention *a) {
    return round_up(FEW_ROWS * (values_width(a) + 2), 16);
}

/* A row of keys or values that is soon read: they come from memory once, and where heads lie between
 * them in an order that the processor does not foresee. */
INLINE void fetch(const Attention *a, const Team *team, const Tensor *t, int64_t dim, int64_t key) {
    const char *row = row_at(t, a->dtype, team->batch, team->key_head, key);
    int64_t bytes = dim * (a->dtype == FLOAT32 ? 4 : 2);
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at);
}

/* Scores of W keys from `key` on, of which only the first `count` are read. */
INLINE vec dots(const Attention *a, const Team *team, const float *q, int64_t key, int64_t count,
                float room[W][MOST_DIM]) {
    const int64_t width = round_up(a->dim, W);
    const float *rows[W];
    for (int i = 0; i < W; i++) {
        const void *row = row_at(&a->k, a->dtype, team->batch, team->key_head,
                                 key + smaller(i, count - 1));
        rows[i] = row;
        if (a->dtype != FLOAT32 || width != a->dim) {
            read_floats(room[i], row, a->dtype, a->dim);
            for (int64_t d = a->dim; d < width; d++) room[i][d] = 0.0f;
            rows[i] = room[i];
        }
    }
    for (int i = 0; i < W; i++) fetch(a, team, &a->k, a->dim, key + 2 * W + i);
    vec sums[W];
#pragma GCC unroll 16
    for (int i = 0; i < W; i++) sums[i] = (vec){0};
    for (int64_t d = 0; d < width; d += W) {
        vec x = load(q + d);
#pragma GCC unroll 16
        for (int i = 0; i < W; i++) sums[i] += x * load(rows[i] + d);
    }
    transpose(sums);
    vec total = sums[0];
#pragma GCC unroll 16
    for (int i = 1; i < W; i++) total += sums[i];
    return total;
}

/* The stretches that row `row` sees of the keys at … end - 1, counted from `at`. */
static int few_runs(const Attention *a, const Team *team, int64_t row, int64_t at, int64_t end,
                    int64_t *cursor, Run *runs) {
    int count = 0;
    int64_t i = *cursor, stop = team->offsets[row + 1];
    while (i < stop && a->spans.stops[i] <= at) i++;
    *cursor = i;
    for (; i < stop && a->spans.starts[i] < end; i++)
        runs[count++] = (Run){larger(a->spans.starts[i], at) - at,
                              smaller(a->spans.stops[i], end) - at};
    return count;
}

/* One row takes one step. */
static void few_step(const Attention *a, const Team *team, const float *q, int64_t at, int count,
                     float *totals, float *top, float *sum_of, FewSpace *s) {
    const int64_t width = values_width(a);
    vec most = all(-INFINITY), total = {0};
    for (int n = 0; n < count; n++)
        for (int64_t key = s->runs[n].start; key < s->runs[n].stop; key += W) {
            int64_t left = s->runs[n].stop - key;
            vec found = dots(a, team, q, at + key, smaller(left, W), s->keys);
            if (left < W)
                found = choose(lanes_of(((uint32_t)1 << left) - 1, 0), found, all(-INFINITY));
            store(s->scores + key, found);
            most = max_of(most, found);
        }
    float before = *top, now = largest(most);
    now = now > before ? now : before;
    vec against = all(now == -INFINITY ? 0.0f : now);
    for (int n = 0; n < count; n++)
        for (int64_t key = s->runs[n].start; key < s->runs[n].stop; key += W) {
            /* Past the run's end may lie the next one's scores: only own lanes are written. */
            int64_t left = s->runs[n].stop - key;
            vec given = load(s->scores + key), x[1];
            ivec own = left < W ? lanes_of(((uint32_t)1 << left) - 1, 0) : ~(ivec){0};
            x[0] = choose(own, given, all(-INFINITY)) - against;
            exp2_of(x, 1);
            store(s->scores + key, choose(own, x[0], given));
            total += x[0];
        }
    float keep = before == now ? 1.0f : exp2f(before - now);
    *sum_of = *sum_of * keep + sum(total);
    *top = now;
    const float *values = (const float *)a->v.data + team->batch * a->v.batch +
                          team->key_head * a->v.head + at * a->v.row;
    int64_t stride = a->v.row;
    if (!few_as_given(a)) {
        values = s->values;
        stride = width;
        for (int n = 0; n < count; n++)
            for (int64_t key = s->runs[n].start; key < s->runs[n].stop; key++) {
                float *row = s->values + key * width;
                fetch(a, team, &a->v, a->value_dim, at + key + 12);
                read_floats(row, row_at(&a->v, a->dtype, team->batch, team->key_head, at + key),
                            a->dtype, a->value_dim);
                for (int64_t d = a->value_dim; d < width; d++) row[d] = 0.0f;
            }
    }
    int64_t c = 0;
    for (; c + 8 * W <= width; c += 8 * W)
        add_to_row(s->scores, values + c, stride, s->runs, count, &keep, totals + c, width);
    for (; c < width; c += W)
        add_to_row_narrow(s->scores, values + c, stride, s->runs, count, &keep, totals + c, width);
}

/* All rows of a team over the keys first … stop - 1. */
static void few(const Attention *a, const Team *team, int64_t first, int64_t stop, float *found,
                void *space) {
    FewSpace *s = space;
    const int64_t width = values_width(a), rows = a->rows * team->heads;
    const float factor = (float)(a->scale * 1.4426950408889634);
    float *top = found + FEW_ROWS * width, *total = top + FEW_ROWS;
    memset(found, 0, sizeof(float) * (size_t)(FEW_ROWS * width));
    for (int64_t n = 0; n < rows; n++) {
        int64_t row = n / team->heads, head = team->first_head + n % team->heads;
        top[n] = -INFINITY;
        total[n] = 0.0f;
        s->cursor[n] = team->offsets[row];
        if (team->offsets[row] == team->offsets[row + 1]) continue;
        read_floats(s->q[n], row_at(&a->q, a->dtype, team->batch, head, row), a->dtype, a->dim);
        for (int64_t d = 0; d < a->dim; d++) s->q[n][d] *= factor;
        for (int64_t d = a->dim; d < round_up(a->dim, W); d++) s->q[n][d] = 0.0f;
    }
    for (int64_t at = first; at < stop; at += STEP)
        for (int64_t n = 0; n < rows; n++) {
            int count = few_runs(a, team, n / team->heads, at, smaller(at + STEP, stop),
                                 &s->cursor[n], s->runs);
            if (count)
                few_step(a, team, s->q[n], at, count, found + n * width, &top[n], &total[n], s);
        }
}

/* The rows' output and logsumexp, from what the parts found. */
static void few_merge(const Attention *a, const Team *team, float *found, int64_t parts) {
    const int64_t width = values_width(a), apart = few_floats(a);
    float *top = found + FEW_ROWS * width, *total = top + FEW_ROWS;
    for (int64_t n = 0; n < a->rows * team->heads; n++) {
        float *sums = found + n * width;
        for (int64_t part = 1; part < parts; part++) {
            const float *other = found + part * apart;
            float theirs = other[FEW_ROWS * width + n], now = theirs > top[n] ? theirs : top[n];
            if (theirs == -INFINITY) continue;
            float keep = exp2f(top[n] - now), take = exp2f(theirs - now);
            for (int64_t d = 0; d < width; d++)
                sums[d] = sums[d] * keep + other[n * width + d] * take;
            total[n] = total[n] * keep + other[FEW_ROWS * (width + 1) + n] * take;
            top[n] = now;
        }
        int64_t row = n / team->heads, head = team->first_head + n % team->heads;
        int seen = total[n] != 0.0f;
        write_row(&a->out, a->dtype, team->batch, head, row, sums, seen ? 1.0f / total[n] : 0.0f,
                  a->value_dim);
        a->lse[(team->batch * a->heads + head) * a->rows + row] = logsumexp(a, top[n], total[n]);
    }
}
