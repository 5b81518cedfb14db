/* For every processor: vectors of 4 floats, which SSE2 and NEON have. */
#include "attend.h"

#include <math.h>
#include <string.h>

#define ISA isa_baseline
#define ISA_NAME "baseline"
#define W 4
#define MR 6
#define NV 2
#define STEP 512
#define BLOCK 192
#define BACK_STEP 192
#define BACK_BLOCK 96
#include "kernel.h"
