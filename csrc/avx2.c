/* The kernel for x86 processors with AVX2 and FMA: 16 registers of 8 floats. */
#if defined(__x86_64__)

#define USE_AVX2
#include "target_begin.h"

#define ISA isa_avx2
#define ISA_NAME "avx2"
#define W 8
#define MR 6
#define NV 2
#include "kernel.h"

#include "target_end.h"

#endif
