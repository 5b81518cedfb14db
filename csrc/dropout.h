/* The dropout mask: Philox4x32 with 7 rounds, a counter-based generator.
 *
 * The key is the seed. The counter is (c, query, head, batch), where key j has c = j / 64 * 16 +
 * j % 16, and takes word j % 64 / 16 of the four that the generator returns. So 16 consecutive
 * keys have 16 consecutive counters and the same word, and one evaluation of 16 lanes serves 64
 * keys. The weight is dropped if the word is below p * 2^32. Nothing depends on how the work is
 * split, and engine/dropout.py computes the same mask in numpy. */
#ifndef MASKWRIGHT_DROPOUT_H
#define MASKWRIGHT_DROPOUT_H

#include "isa.h"
#include "vector.h"

enum { PHILOX_ROUNDS = 7 };

typedef struct {
    uint32_t key[2], batch, threshold;
    int64_t q_offset, q_stride, k_offset, k_stride;
    float keep_scale; /* 1 / (1 - p) */
} DropoutState;

INLINE DropoutState dropout_state(const mw_args *args, int64_t batch) {
    const mw_dropout *d = &args->dropout;
    double threshold = d->p * 4294967296.0;
    DropoutState s = {{(uint32_t)d->seed, (uint32_t)(d->seed >> 32)},
                      (uint32_t)batch,
                      threshold >= 4294967295.0 ? 0xffffffffu : (uint32_t)threshold,
                      d->q_offset,
                      d->q_stride,
                      d->k_offset,
                      d->k_stride,
                      (float)(1.0 / (1.0 - d->p))};
    return s;
}

/* Products of the even 32-bit lanes, as 64 bits. */
INLINE u64vec mul_even(u64vec a, u64vec b) {
#if defined(USE_AVX512)
    return (u64vec)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(USE_AVX2) && W == 8
    return (u64vec)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(USE_SSE2)
    return (u64vec)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
    const u64vec low = (u64vec){0} + 0xffffffffu;
    return (a & low) * (b & low);
#endif
}

INLINE void mul_wide(uvec x, uint32_t by, uvec *high, uvec *low) {
    const u64vec factor = (u64vec){0} + by, low_half = (u64vec){0} + 0xffffffffu;
    u64vec even = mul_even((u64vec)x, factor), odd = mul_even((u64vec)x >> 32, factor);
    *high = (uvec)((even >> 32) | (odd & ~low_half));
    *low = (uvec)((even & low_half) | (odd << 32));
}

INLINE void philox(uvec c[4], uint32_t key0, uint32_t key1) {
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uvec high0, low0, high1, low1;
        mul_wide(c[0], 0xD2511F53u, &high0, &low0);
        mul_wide(c[2], 0xCD9E8D57u, &high1, &low1);
        c[0] = high1 ^ c[1] ^ key0;
        c[1] = low1;
        c[2] = high0 ^ c[3] ^ key1;
        c[3] = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

INLINE uvec lane_index(void) {
    uvec index;
    for (int i = 0; i < W; i++) index[i] = (uint32_t)i;
    return index;
}

/* Keep bits of the 64 keys from `first` on, a multiple of 64, for one query row. */
static uint64_t keep_bits(const DropoutState *s, int64_t row, int64_t head, int64_t first) {
    const uvec query = (uvec){0} + (uint32_t)(s->q_offset + row * s->q_stride);
    const uvec zero = {0}, threshold = zero + s->threshold;
    uint64_t bits = 0;
    if (s->k_stride == 1 && s->k_offset % 64 == 0) {
        uint32_t counter = (uint32_t)((s->k_offset + first) / 64 * 16);
        for (int i = 0; i < 16; i += W) {
            uvec c[4] = {lane_index() + counter + (uint32_t)i, query, zero + (uint32_t)head,
                         zero + s->batch};
            philox(c, s->key[0], s->key[1]);
            UNROLL(4, int word = 0; word < 4; word++)
                bits |= (uint64_t)mask_bits((ivec)(c[word] >= threshold)) << (word * 16 + i);
        }
        return bits;
    }
    for (int i = 0; i < 64; i += W) { /* a dilated submask: keys are not consecutive */
        uvec counter = zero, word = zero;
        for (int n = 0; n < W; n++) {
            int64_t key = s->k_offset + (first + i + n) * s->k_stride;
            counter[n] = (uint32_t)(key / 64 * 16 + key % 16);
            word[n] = (uint32_t)(key % 64 / 16);
        }
        uvec c[4] = {counter, query, zero + (uint32_t)head, zero + s->batch}, chosen;
        philox(c, s->key[0], s->key[1]);
        chosen = c[0];
        for (uint32_t n = 1; n < 4; n++) {
            uvec own = (uvec)(word == n);
            chosen = (own & c[n]) | (~own & chosen);
        }
        bits |= (uint64_t)mask_bits((ivec)(chosen >= threshold)) << i;
    }
    return bits;
}

#endif
