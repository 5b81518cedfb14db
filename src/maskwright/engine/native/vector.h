/* Vectors of W floats: loads and stores, exp2, transposing, and half precision.
 *
 * Whoever includes this has defined W, and asked the compiler for the instructions. */

#include <string.h>

typedef float vec __attribute__((vector_size(4 * W), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * W), may_alias));
typedef vec loose_vec __attribute__((aligned(4)));

#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const float *p) { return *(const loose_vec *)p; }
INLINE void store(float *p, vec x) { *(loose_vec *)p = x; }
INLINE vec all(float x) { return x - (vec){0}; }
INLINE vec bits_of(ivec x) { return (vec)x; }

#define FOUR(x) (x), (x) * 2, (x) * 4, (x) * 8
#if W == 4
#define LANE_BITS {FOUR(1)}
#elif W == 8
#define LANE_BITS {FOUR(1), FOUR(16)}
#else
#define LANE_BITS {FOUR(1), FOUR(16), FOUR(256), FOUR(4096)}
#endif

INLINE vec choose(ivec which, vec yes, vec no) {
#if W == 8 && defined(__AVX__)
    return __builtin_ia32_blendvps256(no, yes, (vec)which);
#endif
    return bits_of((which & (ivec)yes) | (~which & (ivec)no));
}

/* The larger of each; y where either is NaN. */
INLINE vec max_of(vec x, vec y) {
#if W == 8 && defined(__AVX__)
    return __builtin_ia32_maxps256(x, y);
#elif W == 4 && defined(__SSE__)
    return __builtin_ia32_maxps(x, y);
#else
    return choose(x > y, x, y);
#endif
}

INLINE float largest(vec x) {
    float most = x[0];
    for (int i = 1; i < W; i++) most = x[i] > most ? x[i] : most;
    return most;
}

INLINE float sum(vec x) {
    float parts[W];
    store(parts, x);
    for (int half = W / 2; half; half /= 2)
        for (int i = 0; i < half; i++) parts[i] += parts[i + half];
    return parts[0];
}

/* Lane i is all ones where bit n * W + i is set. */
INLINE ivec lanes_of(uint32_t bits, int n) {
    const ivec lane = LANE_BITS;
    const ivec bit = lane << (n * W);
    return (((ivec){0} + (int32_t)bits) & bit) == bit;
}

/* x[i] becomes 2 to the x[i], for x <= about 0, to 1 unit in the last place; 0 at -127 and below.
 * NaN stays NaN. Several at once, each step for all of them, since one waits for the last. */
INLINE void exp2_of(vec *x, int count) {
    const vec magic = all(12582912.0f); /* adding it rounds to a whole number in the low bits */
    const vec term[] = {all(1.535336191e-4f), all(1.339887441e-3f), all(9.618437358e-3f),
                        all(5.550332471e-2f), all(2.402264791e-1f), all(6.931472029e-1f), all(1.0f)};
    vec shifted[8], f[8], square[8], p[8];
#define EACH _Pragma("GCC unroll 8") for (int i = 0; i < count; i++)
    EACH x[i] = max_of(all(-127.0f), x[i]); /* where the exponent's bits come to 0, and f is 0 */
    EACH shifted[i] = x[i] + magic;
    EACH f[i] = x[i] - (shifted[i] - magic);
    EACH square[i] = f[i] * f[i];
    EACH p[i] = term[0] * square[i] + (term[1] * f[i] + term[2]);
    EACH p[i] = p[i] * square[i] + (term[3] * f[i] + term[4]);
    EACH p[i] = p[i] * square[i] + (term[5] * f[i] + term[6]);
    EACH x[i] = bits_of((ivec)p[i] + ((ivec)shifted[i] << 23));
#undef EACH
}

/* ── half precision ────────────────────────────────────────────────────────────────────────── */

INLINE float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

INLINE uint32_t bits_of_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

INLINE float from_bfloat16(uint16_t x) { return float_of((uint32_t)x << 16); }

INLINE uint16_t to_bfloat16(float x) {
    uint32_t bits = bits_of_float(x);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

INLINE float from_float16(uint16_t x) {
    uint32_t magnitude = (uint32_t)(x & 0x7fff) << 13;
    uint32_t found = bits_of_float(float_of(magnitude) * 0x1p112f);
    found |= magnitude >= 0x0f800000 ? 0x7f800000 : 0;
    return float_of(found | (uint32_t)(x & 0x8000) << 16);
}

INLINE uint16_t to_float16(float x) {
    uint32_t bits = bits_of_float(x), sign = bits & 0x80000000, size = bits ^ sign;
    uint32_t normal = (size + 0xc8000fff + ((size >> 13) & 1)) >> 13;
    uint32_t small = bits_of_float(float_of(size) + 0.5f) - 0x3f000000; /* rounds by adding */
    uint32_t found = size < 0x38800000 ? small : normal;
    found = size >= 0x477ff000 ? 0x7c00 : found;
    found = size > 0x7f800000 ? 0x7e00 : found;
    return (uint16_t)(found | sign >> 16);
}

/* n numbers of the given dtype as floats. */
static void read_floats(float *restrict to, const void *from, int64_t dtype, int64_t n) {
    const uint16_t *halves = from;
    if (dtype == FLOAT32)
        memcpy(to, from, (size_t)n * sizeof(float));
    else if (dtype == BFLOAT16)
        for (int64_t i = 0; i < n; i++) to[i] = from_bfloat16(halves[i]);
    else
        for (int64_t i = 0; i < n; i++) to[i] = from_float16(halves[i]);
}

/* n floats, times a factor, as numbers of the given dtype. */
static void write_floats(void *to, const float *restrict from, float factor, int64_t dtype,
                         int64_t n) {
    float *floats = to;
    uint16_t *halves = to;
    if (dtype == FLOAT32)
        for (int64_t i = 0; i < n; i++) floats[i] = from[i] * factor;
    else if (dtype == BFLOAT16)
        for (int64_t i = 0; i < n; i++) halves[i] = to_bfloat16(from[i] * factor);
    else
        for (int64_t i = 0; i < n; i++) halves[i] = to_float16(from[i] * factor);
}

/* ── transposing ───────────────────────────────────────────────────────────────────────────── */

#if W == 4
#define LOW 0, 4, 1, 5
#define HIGH 2, 6, 3, 7
#elif W == 8
#define LOW 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#endif

/* W vectors of W lanes change places: log2(W) perfect shuffles. */
INLINE void transpose(vec x[W]) {
    vec y[W];
#pragma GCC unroll 4
    for (int stage = 1; stage < W; stage *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < W / 2; i++) {
            y[2 * i] = __builtin_shufflevector(x[i], x[i + W / 2], LOW);
            y[2 * i + 1] = __builtin_shufflevector(x[i], x[i + W / 2], HIGH);
        }
#pragma GCC unroll 16
        for (int i = 0; i < W; i++) x[i] = y[i];
    }
}
