/* The forward pass on some rows of a team: scores, a running softmax, and values, step by step.
 *
 * Each group of MR rows takes STEP keys at a time, from where its rows begin to see on. All groups
 * of a block take their steps in turn, so that keys that all of them see stay in the cache. */

#include <math.h>

enum { GROUPS = BLOCK / MR, HELD = (MR + W - 1) / W * W };

typedef struct {
    const float *q[MR];
    int64_t cursor[MR], stop[MR]; /* intervals of each row that are left */
    int64_t at;                   /* the next step's first key, on a panel's edge; FAR at the end */
    float top[MR], total[MR];     /* largest score so far, and the sum of weights against it */
} Group;

typedef struct {
    Group groups[GROUPS];
    Marks marks;
    Run runs[STEP / 2 + 1];
    float weights[MR * STEP] __attribute__((aligned(64)));
    float rest[] __attribute__((aligned(64))); /* totals, [BLOCK][width], and rows of q as floats */
} ForwardSpace;

static size_t forward_space(const Attention *a) {
    return sizeof(ForwardSpace) + sizeof(float) * (size_t)(BLOCK * (values_width(a) + a->dim));
}

/* Of a row whose largest score is `top`, in powers of 2, and whose weights against it are `total`. */
INLINE float logsumexp(const Attention *a, float top, float total) {
    if (total == 0.0f) return -INFINITY;
    return a->binary ? top + log2f(total) : (float)(top * 0.6931471805599453 + logf(total));
}

/* Scores of the panels that some row sees, and each row's largest; -inf in cells not seen. */
INLINE int score(const Group *g, const Marks *marks, const float *panels, int64_t dim,
                 float *weights, short *list, vec top[MR]) {
    const uint32_t whole = (uint32_t)(((uint64_t)1 << NR) - 1);
    int count = 0;
    for (int r = 0; r < MR; r++) top[r] = all(-INFINITY);
    for (int panel = 0; panel < PANELS; panel++) {
        if (!marks->full && !panel_bits(marks->any, panel)) continue;
        list[count++] = (short)(panel * NR);
        vec sums[MR][NV];
        row_products(g->q, panels + panel * NR * dim, dim, sums);
        float *to = weights + panel * NR;
        if (!marks->full && panel_bits(marks->every, panel) != whole) {
#pragma GCC unroll 16
            for (int r = 0; r < MR; r++) {
                uint32_t bits = (uint32_t)panel_bits(marks->row[r], panel);
#pragma GCC unroll 4
                for (int n = 0; n < NV; n++)
                    sums[r][n] = choose(lanes_of(bits, n), sums[r][n], all(-INFINITY));
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < MR; r++)
#pragma GCC unroll 4
            for (int n = 0; n < NV; n++) {
                store(to + r * STEP + n * W, sums[r][n]);
                top[r] = max_of(top[r], sums[r][n]);
            }
    }
    return count;
}

/* Each row's largest score so far into g->top, and what is kept of its totals into keep. */
INLINE void lift(Group *g, const vec top[MR], float keep[HELD]) {
    for (int r = 0; r < HELD; r++) keep[r] = 0.0f;
    for (int r = 0; r < MR; r++) {
        float before = g->top[r], now = largest(top[r]);
        now = now > before ? now : before;
        keep[r] = before == now ? 0.0f : before - now;
        g->top[r] = now;
    }
    for (int r = 0; r < HELD; r += W) {
        vec x[1] = {load(keep + r)};
        exp2_of(x, 1);
        store(keep + r, x[0]);
    }
}

/* Weights from scores against each row's largest so far, and their sums. */
INLINE void weigh(Group *g, float *weights, const short *list, int count, const float *keep) {
    for (int r = 0; r < MR; r += 2) {
        vec against[2], total[2] = {{0}, {0}};
        for (int i = 0; i < 2; i++)
            against[i] = all(g->top[r + i] == -INFINITY ? 0.0f : g->top[r + i]);
        float *row = weights + r * STEP;
        for (int i = 0; i < count; i++) {
            vec x[2 * NV];
#pragma GCC unroll 8
            for (int n = 0; n < 2 * NV; n++)
                x[n] = load(row + n / NV * STEP + list[i] + n % NV * W) - against[n / NV];
            exp2_of(x, 2 * NV);
#pragma GCC unroll 8
            for (int n = 0; n < 2 * NV; n++) {
                store(row + n / NV * STEP + list[i] + n % NV * W, x[n]);
                total[n / NV] += x[n];
            }
        }
        for (int i = 0; i < 2; i++)
            g->total[r + i] = g->total[r + i] * keep[r + i] + sum(total[i]);
    }
}

static void step(const Attention *a, const Keys *keys, Group *g, float *totals, int64_t width,
                 ForwardSpace *s) {
    short list[PANELS];
    float keep[HELD];
    vec top[MR];
    int64_t at = g->at;
    mark_step(&a->spans, at, STEP, g->cursor, g->stop, &s->marks);
    int count = score(g, &s->marks, keys->panels + at * a->dim, a->dim, s->weights, list, top);
    lift(g, top, keep);
    weigh(g, s->weights, list, count, keep);
    int runs = runs_of(&s->marks, STEP, s->runs);
    add_values(s->weights, keys->values + at * keys->value_stride, keys->value_stride, s->runs,
               runs, keep, totals, width);
    g->at = s->marks.next == FAR ? FAR : s->marks.next / NR * NR;
}

/* A group's rows, from row `first` of the team on; what is left of MR repeats the first row. A row
 * that sees nothing is not read: another of the group stands in for it. */
static void begin(const Attention *a, const Team *team, Group *g, int64_t first, int64_t count,
                  float *room) {
    const float *some = NULL;
    g->at = FAR;
    for (int r = 0; r < MR; r++) {
        int64_t n = first + (r < count ? r : 0), row = n / team->heads;
        g->q[r] = NULL;
        g->cursor[r] = team->offsets[row];
        g->stop[r] = team->offsets[row + 1];
        g->top[r] = -INFINITY;
        g->total[r] = 0.0f;
        if (g->cursor[r] == g->stop[r]) continue;
        g->at = smaller(g->at, a->spans.starts[g->cursor[r]] / NR * NR);
        const void *q = row_at(&a->q, a->dtype, team->batch, team->first_head + n % team->heads, row);
        if (a->dtype == FLOAT32)
            g->q[r] = q;
        else
            read_floats(room + r * a->dim, q, a->dtype, a->dim), g->q[r] = room + r * a->dim;
        some = g->q[r];
    }
    for (int r = 0; r < MR; r++)
        if (!g->q[r]) g->q[r] = some;
}

static void finish(const Attention *a, const Team *team, const Group *g, int64_t first,
                   int64_t count, const float *totals, int64_t width) {
    int64_t size = a->dtype == FLOAT32 ? 4 : 2;
    for (int r = 0; r < count; r++) {
        int64_t n = first + r, row = n / team->heads, head = team->first_head + n % team->heads;
        int64_t place = team->batch * a->out.batch + head * a->out.head + row * a->out.row;
        int seen = g->total[r] != 0.0f;
        write_floats((char *)a->out.data + place * size, totals + r * width,
                     seen ? 1.0f / g->total[r] : 0.0f, a->dtype, a->value_dim);
        a->lse[(team->batch * a->heads + head) * a->rows + row] =
            logsumexp(a, g->top[r], g->total[r]);
    }
}

static void forward(const Attention *a, const Team *team, const Keys *keys, int64_t first,
                    int64_t stop, void *space) {
    ForwardSpace *s = space;
    const int64_t width = values_width(a);
    float *totals = s->rest, *room = totals + BLOCK * width;
    for (int64_t block = first; block < stop; block += BLOCK) {
        int64_t end = smaller(block + BLOCK, stop);
        int groups = (int)((end - block + MR - 1) / MR);
        memset(totals, 0, sizeof(float) * (size_t)(groups * MR * width));
        for (int g = 0; g < groups; g++)
            begin(a, team, &s->groups[g], block + g * MR, smaller(MR, end - block - g * MR),
                  room + g * MR * a->dim);
        for (int left = 1; left;) {
            left = 0;
            for (int g = 0; g < groups; g++) {
                if (s->groups[g].at == FAR) continue;
                left = 1;
                step(a, keys, &s->groups[g], totals + g * MR * width, width, s);
            }
        }
        for (int g = 0; g < groups; g++)
            finish(a, team, &s->groups[g], block + g * MR, smaller(MR, end - block - g * MR),
                   totals + g * MR * width, width);
    }
}
