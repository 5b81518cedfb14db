/* Tests of the C library without Python: every instruction set against a slow, obvious computation
 * in double precision, with several threads, calls from several threads, and interrupts. `make
 * test-c` builds and runs it, `make test-sanitize` under sanitizers. */
#include "../args.h"
#include "../isa.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Atomic int failures;

#define CHECK(condition, ...)                                               \
    do {                                                                    \
        if (!(condition)) {                                                 \
            failures++;                                                     \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            fprintf(stderr, __VA_ARGS__);                                   \
            fprintf(stderr, "\n");                                          \
        }                                                                   \
    } while (0)

static void *allocate(size_t size) {
    void *memory = malloc(size ? size : 1); /* without slack, so that sanitizers see each byte */
    if (!memory) exit(2);
    return memory;
}

/* Numbers in [-1, 1], the same in every run. */
static float random_float(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*state >> 32) / 2147483648.0f;
}

/* -- masks ------------------------------------------------------------------------------------- */

typedef int (*Mask)(int64_t row, int64_t key, int64_t offset);

static int causal(int64_t row, int64_t key, int64_t offset) { return key <= row + offset; }
static int everything(int64_t row, int64_t key, int64_t offset) {
    (void)row, (void)key, (void)offset;
    return 1;
}
static int window(int64_t row, int64_t key, int64_t offset) {
    return key <= row + offset && key > row + offset - 9;
}
static int holes(int64_t row, int64_t key, int64_t offset) {
    return causal(row, key, offset) && key % 7 != 0 && row % 5 != 3; /* with fully masked rows */
}
static int scattered(int64_t row, int64_t key, int64_t offset) {
    return causal(row, key, offset) && (row * 7 + key * 13) % 29 == 0;
}

static const struct {
    const char *name;
    Mask visible;
} masks[] = {{"causal", causal},
             {"everything", everything},
             {"window", window},
             {"holes", holes},
             {"scattered", scattered}};

/* The intervals of a mask with one plane. */
static mw_spans spans_of(Mask visible, int64_t q_len, int64_t kv_len) {
    int64_t *offsets = allocate(sizeof *offsets * (size_t)(q_len + 1)), count = 0;
    int64_t *starts = NULL, *stops = NULL;
    for (int fill = 0; fill < 2; fill++) {
        if (fill) {
            starts = allocate(sizeof *starts * (size_t)count);
            stops = allocate(sizeof *stops * (size_t)count);
        }
        count = 0;
        for (int64_t row = 0; row < q_len; row++) {
            offsets[row] = count;
            for (int64_t key = 0; key < kv_len; key++) {
                if (!visible(row, key, kv_len - q_len)) continue;
                int64_t start = key;
                while (key < kv_len && visible(row, key, kv_len - q_len)) key++;
                if (fill) {
                    starts[count] = start;
                    stops[count] = key;
                }
                count++;
            }
        }
        offsets[q_len] = count;
    }
    return (mw_spans){1, 1, offsets, starts, stops};
}

/* -- one call ---------------------------------------------------------------------------------- */

typedef struct {
    int64_t batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim, threads;
} Sizes;

enum { Q, K, V, OUT, DOUT, DQ, DK, DV, LSE, NUM_ARRAYS };

typedef struct {
    mw_args args;
    float *arrays[NUM_ARRAYS];
    size_t counts[NUM_ARRAYS];
} Call;

static mw_tensor tensor(float *data, int64_t heads, int64_t rows, int64_t dim) {
    return (mw_tensor){data, heads * rows * dim, rows * dim, dim, 1};
}

static Call new_call(const Sizes *s, Mask visible) {
    Call c = {.args = MW_ARGS};
    uint64_t state = 1;
    const int64_t rows[NUM_ARRAYS] = {s->q_len, s->kv_len, s->kv_len, s->q_len, s->q_len,
                                      s->q_len, s->kv_len, s->kv_len, s->q_len};
    const int64_t heads[NUM_ARRAYS] = {s->heads, s->kv_heads, s->kv_heads, s->heads, s->heads,
                                       s->heads, s->kv_heads, s->kv_heads, s->heads};
    const int64_t dims[NUM_ARRAYS] = {s->head_dim,   s->head_dim,   s->v_head_dim,
                                      s->v_head_dim, s->v_head_dim, s->head_dim,
                                      s->head_dim,   s->v_head_dim, 1};
    mw_tensor *const to[] = {&c.args.q,    &c.args.k,  &c.args.v,  &c.args.out,
                             &c.args.dout, &c.args.dq, &c.args.dk, &c.args.dv};
    for (int n = 0; n < NUM_ARRAYS; n++) {
        c.counts[n] = (size_t)(s->batch * heads[n] * rows[n] * dims[n]);
        c.arrays[n] = allocate(c.counts[n] * sizeof(float));
        for (size_t i = 0; i < c.counts[n]; i++) c.arrays[n][i] = random_float(&state);
        if (n < LSE) *to[n] = tensor(c.arrays[n], heads[n], rows[n], dims[n]);
    }
    c.args.lse = (mw_rows){c.arrays[LSE], s->heads * s->q_len, s->q_len, 1};
    c.args.batch = s->batch;
    c.args.heads = s->heads;
    c.args.kv_heads = s->kv_heads;
    c.args.q_len = s->q_len;
    c.args.kv_len = s->kv_len;
    c.args.head_dim = s->head_dim;
    c.args.v_head_dim = s->v_head_dim;
    c.args.threads = s->threads;
    c.args.scale = 1.0 / sqrt((double)s->head_dim);
    c.args.spans = spans_of(visible, s->q_len, s->kv_len);
    return c;
}

static void free_call(Call *c) {
    for (int n = 0; n < NUM_ARRAYS; n++) free(c->arrays[n]);
    free((void *)c->args.spans.offsets);
    free((void *)c->args.spans.starts);
    free((void *)c->args.spans.stops);
}

/* -- the slow truth ---------------------------------------------------------------------------- */

static double dot(const float *a, const float *b, int64_t count) {
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) sum += (double)a[i] * b[i];
    return sum;
}

/* Out, lse and gradients of one query row, which are added to those of the keys. */
static void attend_row(const mw_args *a, Mask visible, int64_t batch, int64_t head, int64_t row,
                       double *weights, double *const grads[3], double *out, double *lse) {
    const int64_t kv_head = head / (a->heads / a->kv_heads), d = a->head_dim, dv = a->v_head_dim;
    const float *q = tensor_row(&a->q, MW_FLOAT32, batch, head, row);
    const float *dout = tensor_row(&a->dout, MW_FLOAT32, batch, head, row);
    double max = -INFINITY, sum = 0.0, delta = 0.0;
    memset(out, 0, sizeof *out * (size_t)dv);
    for (int64_t key = 0; key < a->kv_len; key++) {
        if (!visible(row, key, a->kv_len - a->q_len)) continue;
        weights[key] = a->scale * dot(q, tensor_row(&a->k, MW_FLOAT32, batch, kv_head, key), d);
        max = fmax(max, weights[key]);
    }
    for (int64_t key = 0; key < a->kv_len; key++)
        if (visible(row, key, a->kv_len - a->q_len)) sum += weights[key] = exp(weights[key] - max);
    *lse = sum > 0 ? max + log(sum) : -INFINITY;
    for (int64_t key = 0; key < a->kv_len; key++) {
        if (!visible(row, key, a->kv_len - a->q_len)) continue;
        const float *v = tensor_row(&a->v, MW_FLOAT32, batch, kv_head, key);
        weights[key] /= sum;
        delta += weights[key] * dot(dout, v, dv);
        for (int64_t i = 0; i < dv; i++) out[i] += weights[key] * v[i];
    }
    for (int64_t key = 0; key < a->kv_len; key++) {
        if (!visible(row, key, a->kv_len - a->q_len)) continue;
        const float *k = tensor_row(&a->k, MW_FLOAT32, batch, kv_head, key);
        const float *v = tensor_row(&a->v, MW_FLOAT32, batch, kv_head, key);
        const int64_t kv_row = (batch * a->kv_heads + kv_head) * a->kv_len + key;
        const int64_t q_row = (batch * a->heads + head) * a->q_len + row;
        const double ds = a->scale * weights[key] * (dot(dout, v, dv) - delta);
        for (int64_t i = 0; i < d; i++) {
            grads[0][q_row * d + i] += ds * k[i];
            grads[1][kv_row * d + i] += ds * q[i];
        }
        for (int64_t i = 0; i < dv; i++) grads[2][kv_row * dv + i] += weights[key] * dout[i];
    }
}

static double max_difference(const float *found, const double *expected, size_t count) {
    double most = 0.0;
    for (size_t i = 0; i < count; i++) {
        double difference = fabs(found[i] - expected[i]);
        if (found[i] == expected[i]) difference = 0.0; /* both -inf */
        if (!(difference <= most)) most = difference;  /* NaN stays */
    }
    return most;
}

static void test_sizes(const Sizes *s, const char *name, Mask visible) {
    Call c = new_call(s, visible);
    double *expected[NUM_ARRAYS], *weights = allocate(sizeof(double) * (size_t)s->kv_len);
    for (int n = 0; n < NUM_ARRAYS; n++)
        expected[n] = memset(allocate(c.counts[n] * sizeof(double)), 0,
                             c.counts[n] * sizeof(double));
    double *const grads[3] = {expected[DQ], expected[DK], expected[DV]};
    for (int64_t n = 0; n < s->batch * s->heads * s->q_len; n++)
        attend_row(&c.args, visible, n / s->q_len / s->heads, n / s->q_len % s->heads, n % s->q_len,
                   weights, grads, &expected[OUT][n * s->v_head_dim], &expected[LSE][n]);
    int64_t code = mw_forward(&c.args);
    CHECK(code == MW_OK, "%s", mw_error(code));
    code = mw_backward(&c.args);
    CHECK(code == MW_OK, "%s", mw_error(code));
    static const int results[] = {OUT, LSE, DQ, DK, DV};
    static const char *const names[] = {"out", "lse", "dq", "dk", "dv"};
    for (int n = 0; n < 5; n++) {
        const int array = results[n];
        double most = max_difference(c.arrays[array], expected[array], c.counts[array]);
        CHECK(most < 2e-5, "%s of %s on %s, %lld x %lld, head_dim %lld, %lld threads: error %g",
              names[n], name, mw_isa(), (long long)s->q_len, (long long)s->kv_len,
              (long long)s->head_dim, (long long)s->threads, most);
    }
    for (int n = 0; n < NUM_ARRAYS; n++) free(expected[n]);
    free(weights);
    free_call(&c);
}

static void test_results(void) {
    static const Sizes sizes[] = {
        {1, 1, 1, 1, 1, 1, 1, 1},     {2, 4, 2, 33, 47, 8, 8, 2},   {1, 2, 2, 210, 210, 16, 24, 4},
        {2, 6, 2, 1, 300, 33, 33, 3}, {1, 8, 1, 1, 700, 64, 64, 4}, {3, 2, 1, 65, 129, 64, 32, 4},
    };
    for (int64_t n = 0; mw_isa_at(n); n++) {
        CHECK(mw_use_isa(mw_isa_at(n)) == MW_OK, "%s", mw_isa_at(n));
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (size_t m = 0; m < sizeof masks / sizeof *masks; m++)
                test_sizes(&sizes[i], masks[m].name, masks[m].visible);
    }
    CHECK(mw_use_isa("mmx") == MW_ERR_UNKNOWN_ISA, "mmx");
    CHECK(mw_use_isa(mw_isa_at(0)) == MW_OK, "best");
}

/* -- errors, threads and interrupts ------------------------------------------------------------ */

static void test_errors(void) {
    const Sizes sizes = {1, 2, 2, 4, 4, 8, 8, 1};
    Call c = new_call(&sizes, causal);
    const mw_args valid = c.args;
    for (int64_t code = MW_ERR_VERSION; code < MW_ERR_COUNT; code++)
        for (int64_t other = MW_ERR_VERSION; other < code; other++)
            CHECK(strcmp(mw_error(code), mw_error(other)), "%lld", (long long)code);
    CHECK(mw_forward(&valid) == MW_OK && mw_backward(&valid) == MW_OK, "valid arguments");
    c.args.size--;
    CHECK(mw_forward(&c.args) == MW_ERR_VERSION && mw_backward(&c.args) == MW_ERR_VERSION, "size");
    c.args = valid;
    c.args.version++;
    CHECK(mw_forward(&c.args) == MW_ERR_VERSION && mw_backward(&c.args) == MW_ERR_VERSION,
          "version");
    c.args = valid;
    c.args.kv_heads = 3;
    CHECK(mw_forward(&c.args) == MW_ERR_KV_HEADS, "kv_heads");
    c.args = valid;
    c.args.dq.data = NULL;
    CHECK(mw_forward(&c.args) == MW_OK && mw_backward(&c.args) == MW_ERR_DQ, "dq");
    CHECK(!strcmp(mw_error(-1), mw_error(9999)), "unknown codes");
    c.args = valid;
    free_call(&c);
}

static void *call_often(void *sizes) {
    for (int turn = 0; turn < 5; turn++) test_sizes(sizes, "causal", causal);
    return NULL;
}

/* Several threads call at the same time, each with threads of its own. */
static void test_calls_from_threads(void) {
    Sizes sizes[3] = {
        {1, 4, 2, 70, 90, 16, 16, 3}, {2, 2, 2, 40, 40, 8, 8, 2}, {1, 2, 1, 1, 600, 32, 32, 2}};
    pthread_t threads[3];
    for (int n = 0; n < 3; n++)
        if (pthread_create(&threads[n], NULL, call_often, &sizes[n])) exit(2);
    for (int n = 0; n < 3; n++) pthread_join(threads[n], NULL);
}

static int questions;

static int interrupt_at_once(void) {
    questions++;
    return 1;
}

static int never_interrupt(void) {
    questions++;
    return 0;
}

/* Calls that take longer than 0.1 s are asked whether they are interrupted. */
static void test_interrupts(void) {
    Sizes sizes = {1, 8, 8, 256, 256, 64, 64, 2};
    mw_set_interrupt(never_interrupt);
    for (questions = 0; !questions; sizes.q_len = sizes.kv_len *= 2) {
        Call c = new_call(&sizes, everything);
        CHECK(mw_forward(&c.args) == MW_OK, "not interrupted");
        CHECK(mw_backward(&c.args) == MW_OK, "not interrupted");
        free_call(&c);
    }
    mw_set_interrupt(interrupt_at_once);
    Call c = new_call(&sizes, everything);
    questions = 0;
    CHECK(mw_forward(&c.args) == MW_ERR_INTERRUPTED && questions == 1, "forward");
    questions = 0;
    CHECK(mw_backward(&c.args) == MW_ERR_INTERRUPTED && questions == 1, "backward");
    mw_set_interrupt(NULL);
    free_call(&c);
}

/* -- tanh ---------------------------------------------------------------------------------------- */

static const Isa *isa_of(const char *name) {
#if defined(__x86_64__)
    if (!strcmp(name, isa_avx512.name)) return &isa_avx512;
    if (!strcmp(name, isa_avx2.name)) return &isa_avx2;
#endif
    return &isa_baseline;
}

/* The error at all magnitudes; below the smallest normal number there is no relative accuracy. */
static void test_tanh(void) {
    enum { COUNT = 1 << 10 };
    static float x[COUNT], y[COUNT], negative[COUNT];
    uint64_t state = 1;
    for (int64_t n = 0; mw_isa_at(n); n++) {
        const Isa *isa = isa_of(mw_isa_at(n));
        for (uint32_t exponent = 0; exponent < 255; exponent++)
            for (int turn = 0; turn < (exponent >= 122 && exponent <= 128 ? 64 : 1); turn++) {
                double most = 0.0;
                for (int i = 0; i < COUNT; i++) {
                    random_float(&state);
                    uint32_t bits = (uint32_t)(state >> 41) | exponent << 23;
                    memcpy(&x[i], &bits, sizeof bits);
                }
                isa->tanh(x, y, COUNT);
                for (int i = 0; i < COUNT; i++) {
                    const double exact = tanh((double)x[i]), tiny = 1.17549435e-38;
                    most = fmax(most, fabs(y[i] - exact) / fmax(fabs(exact), tiny));
                    x[i] = -x[i];
                }
                CHECK(most <= 2e-7, "%s, exponent %u: error %g", isa->name, exponent, most);
                isa->tanh(x, negative, COUNT);
                for (int i = 0; i < COUNT; i++) CHECK(negative[i] == -y[i], "%g", x[i]);
            }
        float special[16] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN}, found[16];
        isa->tanh(special, found, 16);
        CHECK(found[0] == 0 && found[1] == 0 && found[2] == 1 && found[3] == -1 && isnan(found[4]),
              "%s", isa->name);
    }
}

int main(void) {
    test_results();
    test_errors();
    test_calls_from_threads();
    test_interrupts();
    test_tanh();
    if (failures) return 1;
    printf("all tests of the C library passed\n");
    return 0;
}
