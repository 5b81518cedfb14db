/* The backward pass on one batch row and key head: block of keys by block of keys, all rows that
 * see some of them. So dk and dv of a block are added up in the cache and written once, and dq is
 * added up over all blocks. The weights are had again from the logsumexp. */

enum { BACK_GROUPS = BACK_BLOCK / MR, BACK_PANELS = BACK_STEP / NR };

typedef struct {
    int64_t cursor[MR], stop[MR];
    int64_t at; /* the next key that some row of the group sees; FAR at the end */
} BackGroup;

/* Everything of one pass; the arrays lie one after the other in the thread's space. */
typedef struct {
    const Attention *a;
    int64_t dim, value_dim; /* rounded up to whole vectors */
    int64_t rows;           /* of all teams, each rounded up to whole blocks */
    float *q, *grad, *dq;   /* [rows][dim or value_dim] */
    float *lse, *delta;     /* [rows]; lse in powers of 2 */
    BackGroup *groups;
    float *key_panels, *value_panels, *key_rows; /* of a block of keys */
    float *dk, *dv;
    float *weights, *slopes; /* [BACK_BLOCK][BACK_STEP]: softmax, and gradient of the scores */
    uint32_t panels[BACK_GROUPS]; /* which panels each group of a block of rows has computed */
    Marks marks;
    Run runs[STEP / 2 + 1];
} Back;

static int64_t back_rows(const Attention *a) {
    int64_t group = a->heads / a->key_heads, shared = a->spans.heads == 1;
    return shared ? round_up(a->rows * group, BACK_BLOCK) : group * round_up(a->rows, BACK_BLOCK);
}

INLINE char *carve(char **left, int64_t bytes) {
    char *here = *left;
    *left += round_up(bytes, 64);
    return here;
}

/* Lays out the space; returns where it ends. Without dq, where the caller has room for it. */
static char *lay_out(const Attention *a, Back *s, int with_dq) {
    char *left = (char *)s + round_up(sizeof *s, 64);
    s->a = a;
    s->dim = round_up(a->dim, W);
    s->value_dim = round_up(a->value_dim, W);
    s->rows = back_rows(a);
    s->q = (float *)carve(&left, s->rows * s->dim * 4);
    s->grad = (float *)carve(&left, s->rows * s->value_dim * 4);
    if (with_dq) s->dq = (float *)carve(&left, s->rows * s->dim * 4);
    s->lse = (float *)carve(&left, s->rows * 4);
    s->delta = (float *)carve(&left, s->rows * 4);
    s->groups = (BackGroup *)carve(&left, s->rows / MR * (int64_t)sizeof(BackGroup));
    s->key_panels = (float *)carve(&left, BACK_STEP * a->dim * 4);
    s->value_panels = (float *)carve(&left, BACK_STEP * a->value_dim * 4);
    s->key_rows = (float *)carve(&left, BACK_STEP * s->dim * 4);
    s->dk = (float *)carve(&left, BACK_STEP * s->dim * 4);
    s->dv = (float *)carve(&left, BACK_STEP * s->value_dim * 4);
    s->weights = (float *)carve(&left, BACK_BLOCK * BACK_STEP * 4);
    s->slopes = (float *)carve(&left, BACK_BLOCK * BACK_STEP * 4);
    return left;
}

static size_t backward_space(const Attention *a) {
    Back s;
    return (size_t)(lay_out(a, &s, 1) - (char *)&s);
}

static int64_t dq_floats(const Attention *a) { return back_rows(a) * round_up(a->dim, W); }

/* Row n of the teams as floats, its logsumexp, and what is taken off each of its slopes. */
static void take_row(Back *s, const int64_t *offsets, int64_t n, int64_t b, int64_t head,
                     int64_t row) {
    const Attention *a = s->a;
    float *q = s->q + n * s->dim, *grad = s->grad + n * s->value_dim;
    float out[MOST_DIM];
    if (offsets[row] == offsets[row + 1]) return;
    read_floats(q, row_at(&a->q, a->dtype, b, head, row), a->dtype, a->dim);
    read_floats(grad, row_at(&a->grad, a->dtype, b, head, row), a->dtype, a->value_dim);
    read_floats(out, row_at(&a->out, a->dtype, b, head, row), a->dtype, a->value_dim);
    int64_t place = (b * a->heads + head) * a->rows + row;
    vec total = {0};
    int64_t d = 0;
    for (; d + W <= a->value_dim; d += W) total += load(grad + d) * load(out + d);
    float delta = sum(total);
    for (; d < a->value_dim; d++) delta += grad[d] * out[d];
    s->delta[n] = a->grad_lse ? delta - a->grad_lse[place] : delta;
    double lse = a->lse[place] == -INFINITY ? 0.0 : a->lse[place];
    s->lse[n] = (float)(a->binary ? lse : lse * 1.4426950408889634);
}

static Team back_team(const Attention *a, int64_t batch, int64_t key_head, int64_t n) {
    int64_t group = a->heads / a->key_heads, shared = a->spans.heads == 1;
    Team t = {batch, key_head, key_head * group + (shared ? 0 : n), shared ? group : 1, NULL};
    int64_t plane = (a->spans.batch == 1 ? 0 : batch) * a->spans.heads + (shared ? 0 : t.first_head);
    t.offsets = a->spans.offsets + plane * a->rows;
    return t;
}

/* All rows of the teams, and which intervals are theirs. */
static void take_rows(Back *s, int64_t batch, int64_t key_head) {
    const Attention *a = s->a;
    int64_t teams = a->spans.heads == 1 ? 1 : a->heads / a->key_heads, each = s->rows / teams;
    memset(s->q, 0, (size_t)(s->rows * s->dim) * 4);
    memset(s->grad, 0, (size_t)(s->rows * s->value_dim) * 4);
    memset(s->dq, 0, (size_t)(s->rows * s->dim) * 4);
    memset(s->lse, 0, (size_t)s->rows * 4);
    memset(s->delta, 0, (size_t)s->rows * 4);
    memset(s->groups, 0, (size_t)(s->rows / MR) * sizeof(BackGroup));
    for (int64_t g = 0; g < s->rows / MR; g++) s->groups[g].at = FAR;
    for (int64_t t = 0; t < teams; t++) {
        Team team = back_team(a, batch, key_head, t);
        for (int64_t i = 0; i < a->rows * team.heads; i++) {
            int64_t n = t * each + i, row = i / team.heads;
            take_row(s, team.offsets, n, batch, team.first_head + i % team.heads, row);
            BackGroup *g = &s->groups[n / MR];
            g->cursor[n % MR] = team.offsets[row];
            g->stop[n % MR] = team.offsets[row + 1];
            if (team.offsets[row] < team.offsets[row + 1])
                g->at = smaller(g->at, a->spans.starts[team.offsets[row]]);
        }
    }
}

/* The keys at … at + BACK_STEP - 1, as panels and as rows. */
static void take_keys(Back *s, const uint64_t *seen, int64_t b, int64_t h, int64_t at) {
    const Attention *a = s->a;
    const float factor = (float)(a->scale * 1.4426950408889634);
    for (int64_t n = 0; n < BACK_PANELS; n++) {
        int64_t first = at + n * NR;
        if (first >= a->keys) break;
        pack_panel(&a->k, a->dtype, seen, b, h, first, a->keys, a->dim, factor,
                   s->key_panels + n * NR * a->dim);
        pack_panel(&a->v, a->dtype, seen, b, h, first, a->keys, a->value_dim, 1.0f,
                   s->value_panels + n * NR * a->value_dim);
    }
    for (int64_t key = at; key < smaller(at + BACK_STEP, a->keys); key++) {
        if (!is_seen(seen, key)) continue;
        float *row = s->key_rows + (key - at) * s->dim;
        read_floats(row, row_at(&a->k, a->dtype, b, h, key), a->dtype, a->dim);
        for (int64_t d = a->dim; d < s->dim; d++) row[d] = 0.0f;
    }
}

/* As row_products, but added up in parts: a sum of slopes is a small difference of large numbers,
 * so what one long sum would lose is missed there. */
INLINE void summed_products(const float *rows[MR], const float *panel, int64_t dim,
                            vec sums[MR][NV]) {
    enum { PART = 32 };
    vec total[MR][NV];
    memset(total, 0, sizeof total);
    for (int64_t d = 0; d < dim; d += PART) {
        row_products(rows, panel + d * NR, smaller(PART, dim - d), sums);
#pragma GCC unroll 16
        for (int r = 0; r < MR; r++) {
            rows[r] += PART;
#pragma GCC unroll 4
            for (int n = 0; n < NV; n++) total[r][n] += sums[r][n];
        }
    }
    memcpy(sums, total, sizeof total);
}

/* Weights and slopes of one panel for the MR rows from `row` on; 0 in cells not seen. */
INLINE void slope(Back *s, int64_t row, int panel, float *weights, float *slopes) {
    const uint32_t whole = (uint32_t)(((uint64_t)1 << NR) - 1);
    const int partial = !s->marks.full && panel_bits(s->marks.every, panel) != whole;
    const float *rows[MR];
    vec sums[MR][NV];
#pragma GCC unroll 16
    for (int r = 0; r < MR; r++) rows[r] = s->q + (row + r) * s->dim;
    row_products(rows, s->key_panels + panel * NR * s->a->dim, s->a->dim, sums);
#pragma GCC unroll 16
    for (int r = 0; r < MR; r += 2) {
        vec x[2 * NV];
#pragma GCC unroll 8
        for (int n = 0; n < 2 * NV; n++) x[n] = sums[r + n / NV][n % NV] - s->lse[row + r + n / NV];
        exp2_of(x, 2 * NV);
#pragma GCC unroll 8
        for (int n = 0; n < 2 * NV; n++) store(weights + (r + n / NV) * BACK_STEP + n % NV * W, x[n]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < MR; r++) rows[r] = s->grad + (row + r) * s->value_dim;
    summed_products(rows, s->value_panels + panel * NR * s->a->value_dim, s->a->value_dim, sums);
#pragma GCC unroll 16
    for (int r = 0; r < MR; r++) {
        float delta = s->delta[row + r];
        uint32_t bits = partial ? (uint32_t)panel_bits(s->marks.row[r], panel) : 0;
#pragma GCC unroll 4
        for (int n = 0; n < NV; n++) {
            float *place = weights + r * BACK_STEP + n * W;
            vec x = load(place), y = x * (sums[r][n] - delta);
            if (partial) {
                ivec lanes = lanes_of(bits, n);
                y = bits_of((ivec)y & lanes);
                store(place, bits_of((ivec)x & lanes));
            }
            store(slopes + r * BACK_STEP + n * W, y);
        }
    }
}

/* One block of rows, from `row` on, and one of keys, from `at` on. */
static void back_block(Back *s, int64_t row, int64_t at) {
    float ones[MR];
    uint32_t some = 0;
    for (int r = 0; r < MR; r++) ones[r] = 1.0f;
    for (int g = 0; g < BACK_GROUPS; g++) {
        BackGroup *group = &s->groups[row / MR + g];
        float *weights = s->weights + g * MR * BACK_STEP, *slopes = s->slopes + g * MR * BACK_STEP;
        s->panels[g] = 0;
        if (group->at >= at + BACK_STEP) continue;
        mark_step(&s->a->spans, at, BACK_STEP, group->cursor, group->stop, &s->marks);
        group->at = s->marks.next;
        for (int panel = 0; panel < BACK_PANELS; panel++) {
            if (!s->marks.full && !panel_bits(s->marks.any, panel)) continue;
            s->panels[g] |= (uint32_t)1 << panel;
            slope(s, row + g * MR, panel, weights + panel * NR, slopes + panel * NR);
        }
        some |= s->panels[g];
        if (!s->panels[g]) continue;
        int runs = runs_of(&s->marks, BACK_STEP, s->runs);
        add_keys(slopes, s->key_rows, s->dim, s->runs, runs, ones, s->dq + (row + g * MR) * s->dim,
                 s->dim);
    }
    for (int panel = 0; panel < BACK_PANELS; panel++) {
        if (!(some >> panel & 1)) continue;
        int runs = 0;
        for (int g = 0; g < BACK_GROUPS; g++) {
            if (!(s->panels[g] >> panel & 1)) continue;
            if (runs && s->runs[runs - 1].stop == g * MR)
                s->runs[runs - 1].stop = (g + 1) * MR;
            else
                s->runs[runs++] = (Run){g * MR, (g + 1) * MR};
        }
        for (int64_t k = panel * NR; k < (panel + 1) * NR; k += KR) {
            add_rows(s->weights + k, s->grad + row * s->value_dim, s->value_dim, s->runs, runs,
                     s->dv + k * s->value_dim);
            add_rows(s->slopes + k, s->q + row * s->dim, s->dim, s->runs, runs, s->dk + k * s->dim);
        }
    }
}

static void write_row(const Tensor *t, int64_t dtype, int64_t b, int64_t h, int64_t row,
                      const float *from, float factor, int64_t n) {
    write_floats((void *)row_at(t, dtype, b, h, row), from, factor, dtype, n);
}

/* dq as added up by the parts, which lie `apart` floats from each other. */
static void write_dq(const Attention *a, int64_t batch, int64_t key_head, float *dq, int64_t parts,
                     int64_t apart) {
    int64_t teams = a->spans.heads == 1 ? 1 : a->heads / a->key_heads;
    int64_t width = round_up(a->dim, W), each = back_rows(a) / teams;
    for (int64_t t = 0; t < teams; t++) {
        Team team = back_team(a, batch, key_head, t);
        for (int64_t i = 0; i < a->rows * team.heads; i++) {
            float *row = dq + (t * each + i) * width;
            for (int64_t part = 1; part < parts; part++)
                for (int64_t d = 0; d < width; d++) row[d] += row[part * apart + d];
            write_row(&a->dq, a->dtype, batch, team.first_head + i % team.heads, i / team.heads,
                      row, (float)a->scale, a->dim);
        }
    }
}

static void backward(const Attention *a, const uint64_t *seen, int64_t batch, int64_t key_head,
                     int64_t part, int64_t parts, float *dq, void *space) {
    Back *s = space;
    lay_out(a, s, 1);
    if (dq) s->dq = dq;
    take_rows(s, batch, key_head);
    for (int64_t at = part * BACK_STEP; at < a->keys; at += parts * BACK_STEP) {
        memset(s->dk, 0, (size_t)(BACK_STEP * s->dim) * 4);
        memset(s->dv, 0, (size_t)(BACK_STEP * s->value_dim) * 4);
        take_keys(s, seen, batch, key_head, at);
        for (int64_t row = 0; row < s->rows; row += BACK_BLOCK) {
            int64_t next = FAR;
            for (int64_t g = row / MR; g < (row + BACK_BLOCK) / MR; g++)
                next = smaller(next, s->groups[g].at);
            if (next < at + BACK_STEP) back_block(s, row, at);
        }
        for (int64_t key = at; key < smaller(at + BACK_STEP, a->keys); key++) {
            write_row(&a->dk, a->dtype, batch, key_head, key, s->dk + (key - at) * s->dim,
                      (float)a->scale, a->dim);
            write_row(&a->dv, a->dtype, batch, key_head, key, s->dv + (key - at) * s->value_dim,
                      1.0f, a->value_dim);
        }
    }
    if (!dq) write_dq(a, batch, key_head, s->dq, 1, 0);
}
