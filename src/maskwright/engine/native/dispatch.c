/* The functions that Python calls, and the choice of the instruction set. */
#include "attend.h"
#include "plan.h"

#include <stdlib.h>
#include <string.h>

static const Isa *chosen;

/* Does this processor have it? */
static int can_run(const Isa *isa) {
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

static const Isa *const known[] = {
#if defined(__x86_64__)
    &isa_avx512,
    &isa_avx2,
#endif
    &isa_baseline,
};

enum { KNOWN = sizeof known / sizeof *known };

/* The name of the nth instruction set that this processor has, best first; NULL past the last. */
const char *maskwright_isa_at(int64_t n) {
    for (int i = 0; i < KNOWN; i++)
        if (can_run(known[i]) && n-- == 0) return known[i]->name;
    return NULL;
}

/* Use the instruction set of this name; the best one where it is NULL. */
int64_t maskwright_use_isa(const char *name) {
    for (int i = 0; i < KNOWN; i++)
        if (can_run(known[i]) && (!name || !strcmp(name, known[i]->name))) {
            chosen = known[i];
            return DONE;
        }
    return NO_SUCH_ISA;
}

/* The name of the one in use. */
const char *maskwright_isa(void) {
    if (!chosen) maskwright_use_isa(NULL);
    return chosen->name;
}

/* Of what is handed over, so that both sides agree. */
int64_t maskwright_size(void) { return (int64_t)sizeof(Attention); }

int64_t maskwright_forward(const Attention *a) {
    if (!chosen) maskwright_use_isa(NULL);
    return forward_pass(a, chosen);
}

int64_t maskwright_backward(const Attention *a) {
    if (!chosen) maskwright_use_isa(NULL);
    return backward_pass(a, chosen);
}
