/* The kernel for every processor: vectors of 4 floats, as SSE2 and NEON have. */
#if defined(__SSE2__)
#define USE_SSE2
#endif

#define ISA isa_baseline
#define ISA_NAME "baseline"
#define W 4
#define MR 6
#define NV 2
#include "kernel.h"
