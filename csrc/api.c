/* The public functions: argument checks, and the choice of the instruction set. */
#include "isa.h"
#include "args.h"
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

const char *mw_isa_at(int64_t n) {
    for (int i = 0; i < NUM_ISAS; i++)
        if (is_supported(isas[i]) && n-- == 0) return isas[i]->name;
    return NULL;
}

int64_t mw_use_isa(const char *name) {
    for (int i = 0; i < NUM_ISAS; i++)
        if (is_supported(isas[i]) && (!name || !strcmp(name, isas[i]->name))) {
            atomic_store(&chosen, isas[i]);
            return MW_OK;
        }
    return MW_ERR_UNKNOWN_ISA;
}

static const Isa *current_isa(void) {
    if (!atomic_load(&chosen)) mw_use_isa(NULL);
    return atomic_load(&chosen);
}

const char *mw_isa(void) { return current_isa()->name; }

/* -- argument checks ------------------------------------------------------------------------- */

static int is_unaligned(const void *data, int64_t size) {
    return (uintptr_t)data % (size_t)size != 0;
}

static int bad_tensor(const mw_tensor *t, int64_t dim, int64_t dtype) {
    return !t->data || (dim > 1 && t->dim_stride != 1) || is_unaligned(t->data, dtype_size(dtype));
}

static int bad_rows(const mw_rows *t) { return is_unaligned(t->data, sizeof *t->data); }

static int bad_scores(const mw_scores *s) {
    if (!(s->softcap >= 0.0) || s->num_terms < 0 || s->num_terms > MW_MAX_TERMS) return 1;
    for (int64_t i = 0; i < s->num_terms; i++)
        if (!s->terms[i].data || is_unaligned(s->terms[i].data, 4) ||
            !s->terms[i].rows != !s->terms[i].keys)
            return 1;
    return is_unaligned(s->sinks, 4);
}

static int64_t check_args(const mw_args *a) {
    if (a->size != sizeof *a || a->version != MW_VERSION) return MW_ERR_VERSION;
    if (a->batch < 1 || a->heads < 1 || a->q_len < 1 || a->kv_len < 1) return MW_ERR_SHAPE;
    if (a->kv_heads < 1 || a->heads % a->kv_heads) return MW_ERR_KV_HEADS;
    if (a->head_dim < 1 || a->head_dim > MW_MAX_HEAD_DIM) return MW_ERR_HEAD_DIM;
    if (a->v_head_dim < 1 || a->v_head_dim > MW_MAX_HEAD_DIM) return MW_ERR_V_HEAD_DIM;
    if (a->dtype < MW_FLOAT32 || a->dtype > MW_FLOAT16) return MW_ERR_DTYPE;
    if (a->threads < 1) return MW_ERR_THREADS;
    if ((a->spans.batch != 1 && a->spans.batch != a->batch) ||
        (a->spans.heads != 1 && a->spans.heads != a->heads))
        return MW_ERR_SPANS;
    if (!a->spans.offsets || !a->spans.starts || !a->spans.stops) return MW_ERR_SPANS_POINTER;
    if (!(a->dropout.p >= 0.0 && a->dropout.p < 1.0) || a->dropout.q_offset < 0 ||
        a->dropout.k_offset < 0 || a->dropout.q_stride < 1 || a->dropout.k_stride < 1)
        return MW_ERR_DROPOUT;
    if (!(fabs(a->scale) <= MW_MAX_SCALE)) return MW_ERR_SCALE;
    if (bad_tensor(&a->q, a->head_dim, a->dtype)) return MW_ERR_Q;
    if (bad_tensor(&a->k, a->head_dim, a->dtype)) return MW_ERR_K;
    if (bad_tensor(&a->v, a->v_head_dim, a->dtype)) return MW_ERR_V;
    if (bad_tensor(&a->out, a->v_head_dim, a->dtype)) return MW_ERR_OUT;
    if (!a->lse.data || bad_rows(&a->lse)) return MW_ERR_LSE;
    if (a->scores && bad_scores(a->scores)) return MW_ERR_SCORES;
    return MW_OK;
}

static int64_t check_backward_args(const mw_args *a) {
    if (bad_tensor(&a->dout, a->v_head_dim, a->dtype)) return MW_ERR_DOUT;
    if (bad_tensor(&a->dq, a->head_dim, a->dtype)) return MW_ERR_DQ;
    if (bad_tensor(&a->dk, a->head_dim, a->dtype)) return MW_ERR_DK;
    if (bad_tensor(&a->dv, a->v_head_dim, a->dtype)) return MW_ERR_DV;
    if (bad_rows(&a->dlse)) return MW_ERR_DLSE;
    return MW_OK;
}

const char *mw_error(int64_t code) {
#define TENSOR_RULE(name) \
    name ".data must be aligned and not NULL, and " name ".dim_stride must be 1"
    static const char *const rules[] = {
        [MW_OK] = "no error",
        [MW_ERR_NO_MEMORY] = "not enough memory for the scratch buffers",
        [MW_ERR_INTERRUPTED] = "interrupted",
        [MW_ERR_UNKNOWN_ISA] = "this processor and this library do not support the instruction set",
        [MW_ERR_VERSION] = "size and version must be those of maskwright.h, as in MW_ARGS",
        [MW_ERR_SHAPE] = "batch, heads, q_len and kv_len must be at least 1",
        [MW_ERR_KV_HEADS] = "kv_heads must be at least 1 and divide heads",
        [MW_ERR_HEAD_DIM] = "head_dim must be 1 to 256",
        [MW_ERR_V_HEAD_DIM] = "v_head_dim must be 1 to 256",
        [MW_ERR_DTYPE] = "dtype must be 0 (float32), 1 (bfloat16) or 2 (float16)",
        [MW_ERR_THREADS] = "threads must be at least 1",
        [MW_ERR_SPANS] = "spans.batch and spans.heads must be 1, or batch and heads",
        [MW_ERR_SPANS_POINTER] = "spans.offsets, spans.starts and spans.stops must not be NULL",
        [MW_ERR_DROPOUT] =
            "dropout.p must be in [0, 1), its offsets at least 0, its strides at least 1",
        [MW_ERR_SCALE] = "scale must be between -1e30 and 1e30",
        [MW_ERR_Q] = TENSOR_RULE("q"),
        [MW_ERR_K] = TENSOR_RULE("k"),
        [MW_ERR_V] = TENSOR_RULE("v"),
        [MW_ERR_OUT] = TENSOR_RULE("out"),
        [MW_ERR_LSE] = "lse.data must be aligned and not NULL",
        [MW_ERR_DOUT] = TENSOR_RULE("dout"),
        [MW_ERR_DQ] = TENSOR_RULE("dq"),
        [MW_ERR_DK] = TENSOR_RULE("dk"),
        [MW_ERR_DV] = TENSOR_RULE("dv"),
        [MW_ERR_DLSE] = "dlse.data must be aligned",
        [MW_ERR_SCORES] =
            "scores must have a softcap of 0 or more and at most 4 terms, whose data is "
            "aligned and not NULL, and which have both coordinates or none",
    };
    return code >= 0 && code < MW_ERR_COUNT && rules[code] ? rules[code] : "unknown error code";
}

/* -- the passes ------------------------------------------------------------------------------ */

int64_t mw_forward(const mw_args *args) {
    int64_t status = check_args(args);
    return status == MW_OK ? forward_pass(args, current_isa()) : status;
}

int64_t mw_backward(const mw_args *args) {
    int64_t status = check_args(args);
    if (status == MW_OK) status = check_backward_args(args);
    return status == MW_OK ? backward_pass(args, current_isa()) : status;
}
