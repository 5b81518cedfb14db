/* The functions that Python calls: argument checks, the layout of KernelArgs, and the choice of the
 * instruction set. */
#include "isa.h"
#include "kernel_args.h"
#include "work.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* -- instruction sets ------------------------------------------------------------------------ */

static _Atomic(const Isa *) chosen;

static int is_supported(const Isa *isa) {
#if defined(__x86_64__)
#if defined(EMULATE_AVX512)
    if (isa == &isa_avx512) isa = &isa_avx2;
#endif
    if (isa == &isa_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
    if (isa == &isa_avx2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("bmi2");
#endif
    (void)isa;
    return 1;
}

static const Isa *const isas[] = {
#if defined(__x86_64__)
    &isa_avx512,
    &isa_avx2,
#endif
    &isa_baseline,
};

enum { NUM_ISAS = sizeof isas / sizeof *isas };

/* The nth instruction set of this processor, best first; NULL past the last. */
const char *maskwright_isa_at(int64_t n) {
    for (int i = 0; i < NUM_ISAS; i++)
        if (is_supported(isas[i]) && n-- == 0) return isas[i]->name;
    return NULL;
}

/* Use the instruction set of this name; the best one if it is NULL. */
int64_t maskwright_use_isa(const char *name) {
    for (int i = 0; i < NUM_ISAS; i++)
        if (is_supported(isas[i]) && (!name || !strcmp(name, isas[i]->name))) {
            atomic_store(&chosen, isas[i]);
            return OK;
        }
    return ERR_UNKNOWN_ISA;
}

static const Isa *current_isa(void) {
    if (!atomic_load(&chosen)) maskwright_use_isa(NULL);
    return atomic_load(&chosen);
}

/* The name of the instruction set in use. */
const char *maskwright_isa(void) { return current_isa()->name; }

/* -- layout of KernelArgs -------------------------------------------------------------------- */

typedef struct {
    const char *name;
    size_t offset, size;
} Field;

#define FIELD(name) {#name, offsetof(KernelArgs, name), sizeof(((KernelArgs *)0)->name)}
#define TENSOR_FIELDS(name)                                                           \
    FIELD(name.data), FIELD(name.batch_stride), FIELD(name.head_stride), FIELD(name.row_stride)

static const Field fields[] = {
    FIELD(batch), FIELD(heads), FIELD(kv_heads), FIELD(q_len), FIELD(kv_len), FIELD(head_dim),
    FIELD(v_head_dim), FIELD(dtype), FIELD(threads), FIELD(scale),
    FIELD(spans.batch), FIELD(spans.heads), FIELD(spans.offsets), FIELD(spans.starts),
    FIELD(spans.stops),
    FIELD(dropout.seed), FIELD(dropout.p), FIELD(dropout.q_offset), FIELD(dropout.q_stride),
    FIELD(dropout.k_offset), FIELD(dropout.k_stride), FIELD(scores),
    TENSOR_FIELDS(q), FIELD(q.dim_stride), TENSOR_FIELDS(k), FIELD(k.dim_stride),
    TENSOR_FIELDS(v), FIELD(v.dim_stride), TENSOR_FIELDS(out), FIELD(out.dim_stride),
    TENSOR_FIELDS(lse),
    TENSOR_FIELDS(dout), FIELD(dout.dim_stride), TENSOR_FIELDS(dq), FIELD(dq.dim_stride),
    TENSOR_FIELDS(dk), FIELD(dk.dim_stride), TENSOR_FIELDS(dv), FIELD(dv.dim_stride),
    TENSOR_FIELDS(dlse),
};

enum { NUM_FIELDS = sizeof fields / sizeof *fields };

/* Name, offset and size of the nth field. Past the last the name is NULL and the size is that of
 * the whole structure. */
const char *maskwright_field(int64_t n, int64_t *offset, int64_t *size) {
    if (n < 0 || n >= NUM_FIELDS) {
        *offset = 0;
        *size = (int64_t)sizeof(KernelArgs);
        return NULL;
    }
    *offset = (int64_t)fields[n].offset;
    *size = (int64_t)fields[n].size;
    return fields[n].name;
}

#undef FIELD
#define FIELD(name) {#name, offsetof(ScoreArgs, name), sizeof(((ScoreArgs *)0)->name)}
#define TERM_FIELDS(name)                                                                    \
    FIELD(name.data), FIELD(name.batch_stride), FIELD(name.head_stride), FIELD(name.row_stride), \
        FIELD(name.key_stride), FIELD(name.origin), FIELD(name.rows), FIELD(name.keys),          \
        FIELD(name.grad), FIELD(name.grad_batch_stride), FIELD(name.grad_head_stride),           \
        FIELD(name.grad_row_stride), FIELD(name.grad_length)

static const Field score_fields[] = {
    FIELD(softcap), FIELD(num_terms), FIELD(in_order), FIELD(sinks),
    TENSOR_FIELDS(dsinks),
    TERM_FIELDS(terms[0]), TERM_FIELDS(terms[1]), TERM_FIELDS(terms[2]), TERM_FIELDS(terms[3]),
};

/* The same for ScoreArgs. */
const char *maskwright_score_field(int64_t n, int64_t *offset, int64_t *size) {
    if (n < 0 || n >= (int64_t)(sizeof score_fields / sizeof *score_fields)) {
        *offset = 0;
        *size = (int64_t)sizeof(ScoreArgs);
        return NULL;
    }
    *offset = (int64_t)score_fields[n].offset;
    *size = (int64_t)score_fields[n].size;
    return score_fields[n].name;
}

/* -- argument checks ------------------------------------------------------------------------- */

static int is_unaligned(const void *data, int64_t size) { return (uintptr_t)data % (size_t)size != 0; }

static int bad_tensor(const Tensor *t, int64_t dim, int64_t dtype) {
    return !t->data || (dim > 1 && t->dim_stride != 1) || is_unaligned(t->data, dtype_size(dtype));
}

static int bad_rows(const RowTensor *t) { return is_unaligned(t->data, sizeof *t->data); }

static int bad_scores(const ScoreArgs *s) {
    if (!(s->softcap >= 0.0) || s->num_terms < 0 || s->num_terms > MAX_TERMS) return 1;
    for (int64_t i = 0; i < s->num_terms; i++)
        if (!s->terms[i].data || is_unaligned(s->terms[i].data, 4) ||
            !s->terms[i].rows != !s->terms[i].keys)
            return 1;
    return is_unaligned(s->sinks, 4);
}

static int64_t check_args(const KernelArgs *a) {
    if (a->batch < 1 || a->heads < 1 || a->q_len < 1 || a->kv_len < 1) return ERR_SHAPE;
    if (a->kv_heads < 1 || a->heads % a->kv_heads) return ERR_KV_HEADS;
    if (a->head_dim < 1 || a->head_dim > MAX_HEAD_DIM) return ERR_HEAD_DIM;
    if (a->v_head_dim < 1 || a->v_head_dim > MAX_HEAD_DIM) return ERR_V_HEAD_DIM;
    if (a->dtype < FLOAT32 || a->dtype > FLOAT16) return ERR_DTYPE;
    if (a->threads < 1) return ERR_THREADS;
    if ((a->spans.batch != 1 && a->spans.batch != a->batch) ||
        (a->spans.heads != 1 && a->spans.heads != a->heads))
        return ERR_SPANS;
    if (!a->spans.offsets || !a->spans.starts || !a->spans.stops) return ERR_SPANS_POINTER;
    if (!(a->dropout.p >= 0.0 && a->dropout.p < 1.0) || a->dropout.q_offset < 0 ||
        a->dropout.k_offset < 0 || a->dropout.q_stride < 1 || a->dropout.k_stride < 1)
        return ERR_DROPOUT;
    if (!(fabs(a->scale) <= MAX_SCALE)) return ERR_SCALE;
    if (bad_tensor(&a->q, a->head_dim, a->dtype)) return ERR_Q;
    if (bad_tensor(&a->k, a->head_dim, a->dtype)) return ERR_K;
    if (bad_tensor(&a->v, a->v_head_dim, a->dtype)) return ERR_V;
    if (bad_tensor(&a->out, a->v_head_dim, a->dtype)) return ERR_OUT;
    if (!a->lse.data || bad_rows(&a->lse)) return ERR_LSE;
    if (a->scores && bad_scores(a->scores)) return ERR_SCORES;
    return OK;
}

static int64_t check_backward_args(const KernelArgs *a) {
    if (bad_tensor(&a->dout, a->v_head_dim, a->dtype)) return ERR_DOUT;
    if (bad_tensor(&a->dq, a->head_dim, a->dtype)) return ERR_DQ;
    if (bad_tensor(&a->dk, a->head_dim, a->dtype)) return ERR_DK;
    if (bad_tensor(&a->dv, a->v_head_dim, a->dtype)) return ERR_DV;
    if (bad_rows(&a->dlse)) return ERR_DLSE;
    return OK;
}

/* The rule that the argument behind an error code breaks; NULL for other codes. */
const char *maskwright_error(int64_t code) {
#define TENSOR_RULE(name) name ".data must be aligned and not NULL, and " name ".dim_stride must be 1"
    static const char *const rules[] = {
        [ERR_SHAPE] = "batch, heads, q_len and kv_len must be at least 1",
        [ERR_KV_HEADS] = "kv_heads must be at least 1 and divide heads",
        [ERR_HEAD_DIM] = "head_dim must be 1 to 256",
        [ERR_V_HEAD_DIM] = "v_head_dim must be 1 to 256",
        [ERR_DTYPE] = "dtype must be 0 (float32), 1 (bfloat16) or 2 (float16)",
        [ERR_THREADS] = "threads must be at least 1",
        [ERR_SPANS] = "spans.batch and spans.heads must be 1, or batch and heads",
        [ERR_SPANS_POINTER] = "spans.offsets, spans.starts and spans.stops must not be NULL",
        [ERR_DROPOUT] = "dropout.p must be in [0, 1), its offsets at least 0, its strides at least 1",
        [ERR_SCALE] = "scale must be between -1e30 and 1e30",
        [ERR_Q] = TENSOR_RULE("q"),
        [ERR_K] = TENSOR_RULE("k"),
        [ERR_V] = TENSOR_RULE("v"),
        [ERR_OUT] = TENSOR_RULE("out"),
        [ERR_LSE] = "lse.data must be aligned and not NULL",
        [ERR_DOUT] = TENSOR_RULE("dout"),
        [ERR_DQ] = TENSOR_RULE("dq"),
        [ERR_DK] = TENSOR_RULE("dk"),
        [ERR_DV] = TENSOR_RULE("dv"),
        [ERR_DLSE] = "dlse.data must be aligned",
        [ERR_SCORES] = "scores must have a softcap of 0 or more and at most 4 terms, whose data is "
                       "aligned and not NULL, and which have both coordinates or none",
    };
    return code >= ERR_SHAPE && code < ERR_COUNT ? rules[code] : NULL;
}

/* tanh of n floats, a multiple of 16, with the instruction set in use; for tests. */
void maskwright_tanh(const float *from, float *to, int64_t n) { current_isa()->tanh(from, to, n); }

/* -- the passes ------------------------------------------------------------------------------ */

int64_t maskwright_forward(const KernelArgs *args) {
    int64_t status = check_args(args);
    return status == OK ? forward_pass(args, current_isa()) : status;
}

int64_t maskwright_backward(const KernelArgs *args) {
    int64_t status = check_args(args);
    if (status == OK) status = check_backward_args(args);
    return status == OK ? backward_pass(args, current_isa()) : status;
}
