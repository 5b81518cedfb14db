/* Enable the instructions that USE_AVX2 or USE_AVX512 names, up to target_end.h. System headers
 * are included before, since their functions are not to be compiled for one instruction set. */

#include "isa.h"
#include "threads.h"
#include "work.h"

#include <immintrin.h>
#include <math.h>
#include <sched.h>
#include <string.h>

#if defined(USE_AVX512) && defined(__clang__)
#pragma clang attribute push(                                                        \
    __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,bmi,bmi2"))), \
    apply_to = function)
#elif defined(USE_AVX512)
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,bmi,bmi2,prefer-vector-width=512")
#elif defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,bmi,bmi2,lzcnt,popcnt"))), \
                             apply_to = function)
#else
#pragma GCC target("avx2,fma,bmi,bmi2,lzcnt,popcnt")
#endif
