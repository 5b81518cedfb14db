/* For x86 processors with AVX2 and FMA: 16 registers of 8 floats. */
#if defined(__x86_64__)

#include "attend.h"

#include <math.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,bmi,bmi2,lzcnt,popcnt"))), \
                             apply_to = function)
#else
#pragma GCC target("avx2,fma,bmi,bmi2,lzcnt,popcnt")
#endif

#define ISA isa_avx2
#define ISA_NAME "avx2"
#define W 8
#define MR 6
#define NV 2
#define STEP 512
#define BLOCK 192
#define BACK_STEP 192
#define BACK_BLOCK 96
#include "kernel.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
