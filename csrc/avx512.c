/* The kernel for x86 processors with AVX-512: 32 registers of 16 floats. With EMULATE_AVX512 the
 * same tiles are computed by AVX2, so that they can be tested on other processors. */
#if defined(__x86_64__)

#if defined(EMULATE_AVX512)
#define USE_AVX2
#else
#define USE_AVX512
#endif
#include "target_begin.h"

#define ISA isa_avx512
#define ISA_NAME "avx512"
#define W 16
#define MR 8
#define NV 2
#include "kernel.h"

#include "target_end.h"

#endif
