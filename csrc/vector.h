/* Vectors of W floats: loads and stores, exp2, transposition, and half precision.
 *
 * The including file defines W and enables the instructions (see baseline.c, avx2.c, avx512.c). */
#ifndef MASKWRIGHT_VECTOR_H
#define MASKWRIGHT_VECTOR_H

#include "args.h"

#include <math.h>
#include <string.h>
#if defined(USE_SSE2) || defined(USE_AVX2) || defined(USE_AVX512)
#include <immintrin.h>
#endif

typedef float vec __attribute__((vector_size(4 * W), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * W), may_alias));
typedef uint32_t uvec __attribute__((vector_size(4 * W), may_alias));
typedef uint64_t u64vec __attribute__((vector_size(4 * W), may_alias));
typedef vec unaligned_vec __attribute__((aligned(4)));
typedef ivec unaligned_ivec __attribute__((aligned(4)));

/* UNROLL(n, header) is a loop whose number of turns, at most n, is a constant after inlining: it is
 * unrolled fully, so that small arrays become registers. Clang needs the word `full` for that.
 * UNROLL_SOME is for other loops. Clang before 19 would unroll them first, and keep the arrays of the
 * loops within in memory. */
#define PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define UNROLL(n, ...) PRAGMA(clang loop unroll(full)) for (__VA_ARGS__)
#define UNROLL_SOME(n, ...) PRAGMA(clang loop unroll(disable)) for (__VA_ARGS__)
#else
#define UNROLL(n, ...) PRAGMA(GCC unroll n) for (__VA_ARGS__)
#define UNROLL_SOME(n, ...) PRAGMA(GCC unroll n) for (__VA_ARGS__)
#endif

#define INLINE static inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))

INLINE vec load(const float *p) { return *(const unaligned_vec *)p; }
INLINE void store(float *p, vec x) { *(unaligned_vec *)p = x; }
INLINE void store_int(int32_t *p, ivec x) { *(unaligned_ivec *)p = x; }
INLINE vec broadcast(float x) { return x - (vec){0}; }

#define FOUR_BITS(x) (x), (x) * 2, (x) * 4, (x) * 8
#if W == 4
#define LANE_BITS {FOUR_BITS(1)}
#elif W == 8
#define LANE_BITS {FOUR_BITS(1), FOUR_BITS(16)}
#else
#define LANE_BITS {FOUR_BITS(1), FOUR_BITS(16), FOUR_BITS(256), FOUR_BITS(4096)}
#endif

/* The numbers of the lanes. */
#if W == 4
#define LANES {0, 1, 2, 3}
#elif W == 8
#define LANES {0, 1, 2, 3, 4, 5, 6, 7}
#else
#define LANES {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
#endif

/* Lanes of `yes` where the mask is all ones, of `no` where it is 0. */
INLINE vec blend(ivec mask, vec yes, vec no) {
#if defined(USE_AVX2) && W == 8
    return (vec)_mm256_blendv_ps((__m256)no, (__m256)yes, (__m256)mask);
#else
    return (vec)((mask & (ivec)yes) | (~mask & (ivec)no));
#endif
}

/* The larger of each; y where either is NaN. */
INLINE vec max_vec(vec x, vec y) {
#if defined(USE_AVX512)
    return (vec)_mm512_max_ps((__m512)x, (__m512)y);
#elif defined(USE_AVX2) && W == 8
    return (vec)_mm256_max_ps((__m256)x, (__m256)y);
#elif defined(USE_SSE2)
    return (vec)_mm_max_ps((__m128)x, (__m128)y);
#else
    return blend(x > y, x, y);
#endif
}

/* Lanes of two vectors in turn: of their first halves, and of their second halves. */
#if W == 4
#define INTERLEAVE_LOW 0, 4, 1, 5
#define INTERLEAVE_HIGH 2, 6, 3, 7
#elif W == 8
#define INTERLEAVE_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define INTERLEAVE_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define INTERLEAVE_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define INTERLEAVE_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#endif
#define INTERLEAVE(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)

/* The largest lane that is not NaN; -inf if there is none. */
INLINE float reduce_max(vec x) {
    x = max_vec(x, broadcast(-INFINITY)); /* a lane of NaN becomes -inf */
#if defined(USE_AVX512)
    return _mm512_reduce_max_ps((__m512)x);
#else
    UNROLL(4, int n = 1; n < W; n *= 2)
        x = max_vec(INTERLEAVE(x, x, INTERLEAVE_LOW), INTERLEAVE(x, x, INTERLEAVE_HIGH));
    return x[0];
#endif
}

INLINE float reduce_sum(vec x) {
#if defined(USE_AVX512)
    return _mm512_reduce_add_ps((__m512)x);
#else
    UNROLL(4, int n = 1; n < W; n *= 2)
        x = INTERLEAVE(x, x, INTERLEAVE_LOW) + INTERLEAVE(x, x, INTERLEAVE_HIGH);
    return x[0];
#endif
}

/* Lane i of the result is the sum of the lanes of x[i]. */
INLINE vec reduce_each(vec x[W]) {
#if defined(USE_AVX512)
    __m512 four[4]; /* in each quarter, the sums of that quarter of four vectors */
    UNROLL(4, int i = 0; i < 4; i++) {
        const __m512 *y = (const __m512 *)x + 4 * i;
        const __m512d ab = (__m512d)(_mm512_unpacklo_ps(y[0], y[1]) +
                                     _mm512_unpackhi_ps(y[0], y[1]));
        const __m512d cd = (__m512d)(_mm512_unpacklo_ps(y[2], y[3]) +
                                     _mm512_unpackhi_ps(y[2], y[3]));
        four[i] = (__m512)_mm512_unpacklo_pd(ab, cd) + (__m512)_mm512_unpackhi_pd(ab, cd);
    }
    const __m512 low = _mm512_shuffle_f32x4(four[0], four[1], 0x44) +
                       _mm512_shuffle_f32x4(four[0], four[1], 0xee);
    const __m512 high = _mm512_shuffle_f32x4(four[2], four[3], 0x44) +
                        _mm512_shuffle_f32x4(four[2], four[3], 0xee);
    return (vec)_mm512_shuffle_f32x4(low, high, 0x88) + (vec)_mm512_shuffle_f32x4(low, high, 0xdd);
#else
    UNROLL(4, int half = W / 2; half; half /= 2)
        UNROLL(8, int i = 0; i < half; i++)
            x[i] = INTERLEAVE(x[i], x[i + half], INTERLEAVE_LOW) +
                   INTERLEAVE(x[i], x[i + half], INTERLEAVE_HIGH);
    return x[0];
#endif
}

/* Lane i is all ones if bit n * W + i is set. */
INLINE ivec lane_mask(uint32_t bits, int n) {
    const ivec lane = LANE_BITS;
    const ivec bit = lane << (n * W);
    return (((ivec){0} + (int32_t)bits) & bit) == bit;
}

/* Bit i is set if lane i is all ones. */
INLINE uint32_t mask_bits(ivec mask) {
#if defined(USE_AVX512)
    return _mm512_movepi32_mask((__m512i)mask);
#elif defined(USE_AVX2) && W == 8
    return (uint32_t)_mm256_movemask_ps((__m256)mask);
#elif defined(USE_SSE2)
    return (uint32_t)_mm_movemask_ps((__m128)mask);
#else
    uint32_t bits = 0;
    for (int i = 0; i < W; i++) bits |= (uint32_t)(mask[i] & 1) << i;
    return bits;
#endif
}

/* Sums of n floats times 0, n a multiple of W: 0 if all are finite, else NaN in some lane. */
INLINE vec nonfinite_sums(const float *x, int64_t n) {
    vec sums = {0};
    for (int64_t i = 0; i < n; i += W) sums += load(x + i) * 0.0f;
    return sums;
}

INLINE int any_nonzero(vec x) { return mask_bits((ivec)(x == 0.0f)) != ((uint32_t)1 << W) - 1; }

/* Does one of n floats, a multiple of W, hold NaN or Inf? */
INLINE int has_nonfinite(const float *x, int64_t n) { return any_nonzero(nonfinite_sums(x, n)); }

/* x[i] = 2^x[i] for x <= about 0, to 1 unit in the last place; 0 at -127 and below. NaN stays NaN.
 * The count vectors advance together, because each step depends on the one before. */
INLINE void exp2_vec(vec *x, int count) {
    const vec magic = broadcast(12582912.0f); /* adding it rounds to an integer in the low bits */
    const vec c[] = {broadcast(1.535336191e-4f),
                     broadcast(1.339887441e-3f),
                     broadcast(9.618437358e-3f),
                     broadcast(5.550332471e-2f),
                     broadcast(2.402264791e-1f),
                     broadcast(6.931472029e-1f),
                     broadcast(1.0f)};
    vec shifted[8], f[8], square[8], p[8];
#define EACH UNROLL(8, int i = 0; i < count; i++)
    EACH
        x[i] = max_vec(broadcast(-127.0f), x[i]); /* there the exponent's bits are 0, and f is 0 */
    EACH
        shifted[i] = x[i] + magic;
    EACH
        f[i] = x[i] - (shifted[i] - magic);
    EACH
        square[i] = f[i] * f[i];
    EACH
        p[i] = c[0] * square[i] + (c[1] * f[i] + c[2]);
    EACH
        p[i] = p[i] * square[i] + (c[3] * f[i] + c[4]);
    EACH
        p[i] = p[i] * square[i] + (c[5] * f[i] + c[6]);
    EACH
        x[i] = (vec)((ivec)p[i] + ((ivec)shifted[i] << 23));
#undef EACH
}

/* -- half precision -------------------------------------------------------------------------- */

INLINE float float_from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

INLINE uint32_t bits_from_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

INLINE float from_bfloat16(uint16_t x) { return float_from_bits((uint32_t)x << 16); }

INLINE uint16_t to_bfloat16(float x) {
    uint32_t bits = bits_from_float(x);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

INLINE float from_float16(uint16_t x) {
    uint32_t magnitude = (uint32_t)(x & 0x7fff) << 13;
    uint32_t bits = bits_from_float(float_from_bits(magnitude) * 0x1p112f);
    bits |= magnitude >= 0x0f800000 ? 0x7f800000 : 0;
    return float_from_bits(bits | (uint32_t)(x & 0x8000) << 16);
}

INLINE uint16_t to_float16(float x) {
    uint32_t bits = bits_from_float(x), sign = bits & 0x80000000, magnitude = bits ^ sign;
    uint32_t normal = (magnitude + 0xc8000fff + ((magnitude >> 13) & 1)) >> 13;
    uint32_t subnormal = bits_from_float(float_from_bits(magnitude) + 0.5f) - 0x3f000000;
    uint32_t half = magnitude < 0x38800000 ? subnormal : normal;
    half = magnitude >= 0x477ff000 ? 0x7c00 : half;
    half = magnitude > 0x7f800000 ? 0x7e00 : half;
    return (uint16_t)(half | sign >> 16);
}

/* n numbers of the given dtype as floats. */
static void read_floats(float *restrict to, const void *from, int64_t dtype, int64_t n) {
    const uint16_t *halves = from;
    if (dtype == MW_FLOAT32)
        memcpy(to, from, (size_t)n * sizeof(float));
    else if (dtype == MW_BFLOAT16)
        for (int64_t i = 0; i < n; i++) to[i] = from_bfloat16(halves[i]);
    else
        for (int64_t i = 0; i < n; i++) to[i] = from_float16(halves[i]);
}

/* The same, followed by zeros up to `width`. */
static void read_padded(float *restrict to, const void *from, int64_t dtype, int64_t n,
                        int64_t width) {
    read_floats(to, from, dtype, n);
    for (int64_t i = n; i < width; i++) to[i] = 0.0f;
}

/* n floats times a factor, as one row of a tensor. */
static void write_row(const mw_tensor *t, int64_t dtype, int64_t batch, int64_t head, int64_t row,
                      const float *restrict from, float factor, int64_t n) {
    float *floats = tensor_row(t, dtype, batch, head, row);
    uint16_t *halves = (uint16_t *)floats;
    if (dtype == MW_FLOAT32)
        for (int64_t i = 0; i < n; i++) floats[i] = from[i] * factor;
    else if (dtype == MW_BFLOAT16)
        for (int64_t i = 0; i < n; i++) halves[i] = to_bfloat16(from[i] * factor);
    else
        for (int64_t i = 0; i < n; i++) halves[i] = to_float16(from[i] * factor);
}

static void write_zeros(const mw_tensor *t, int64_t dtype, int64_t batch, int64_t head, int64_t row,
                        int64_t n) {
    memset(tensor_row(t, dtype, batch, head, row), 0, (size_t)(n * dtype_size(dtype)));
}

/* -- transposition --------------------------------------------------------------------------- */

/* Transpose a W x W matrix in log2(W) perfect shuffles. */
INLINE void transpose(vec x[W]) {
    vec y[W];
    UNROLL(4, int stage = 1; stage < W; stage *= 2) {
        UNROLL(8, int i = 0; i < W / 2; i++) {
            y[2 * i] = INTERLEAVE(x[i], x[i + W / 2], INTERLEAVE_LOW);
            y[2 * i + 1] = INTERLEAVE(x[i], x[i + W / 2], INTERLEAVE_HIGH);
        }
        UNROLL(16, int i = 0; i < W; i++) x[i] = y[i];
    }
}

#endif
