/* For x86 processors with AVX-512: 32 registers of 16 floats. With EMULATE_AVX512 its tiles are
 * computed by AVX2, so that they can be tested where there is no such processor. */
#if defined(__x86_64__)

#include "attend.h"

#include <math.h>
#include <string.h>

#if defined(EMULATE_AVX512)
#pragma GCC target("avx2,fma,bmi,bmi2,lzcnt,popcnt")
#elif defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,bmi,bmi2"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,bmi,bmi2,prefer-vector-width=512")
#endif

#define ISA isa_avx512
#define ISA_NAME "avx512"
#define W 16
#define MR 8
#define NV 2
#define STEP 512
#define BLOCK 192
#define BACK_STEP 192
#define BACK_BLOCK 96
#include "kernel.h"

#if defined(__clang__) && !defined(EMULATE_AVX512)
#pragma clang attribute pop
#endif

#endif
