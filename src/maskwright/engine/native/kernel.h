/* The kernel under the name ISA, for vectors of W floats, tiles of MR rows by NV vectors of keys,
 * and, forward, steps of STEP keys and blocks of BLOCK rows; backward, of BACK_STEP and BACK_BLOCK. */

#define NR (NV * W)

#include "vector.h"
#include "marks.h"
#include "tiles.h"
#include "pack.h"
#include "forward.h"
#include "backward.h"
#include "few.h"

const Isa ISA = {
    .name = ISA_NAME,
    .panel_keys = NR,
    .block_rows = BLOCK,
    .values_as_given = values_as_given,
    .values_width = values_width,
    .forward_space = forward_space,
    .pack = pack,
    .forward = forward,
    .few_space = few_space,
    .few_floats = few_floats,
    .few = few,
    .few_merge = few_merge,
    .back_keys = BACK_STEP,
    .backward_space = backward_space,
    .backward = backward,
    .dq_floats = dq_floats,
    .write_dq = write_dq,
};
