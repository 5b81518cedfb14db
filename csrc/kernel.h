/* All kernels of one instruction set, exported as the table ISA.
 *
 * The including file defines ISA and ISA_NAME, W (floats of a vector), MR (rows of a row group) and
 * NV (vectors of a panel), and enables the instructions. */
#ifndef MASKWRIGHT_KERNEL_H
#define MASKWRIGHT_KERNEL_H

#define NR (NV * W)     /* keys of a panel */
#define BLOCK_M 192     /* rows of a forward block: a multiple of MR */
#define BLOCK_N 512     /* keys of a forward or decode block: a multiple of 64 */
#define BWD_BLOCK_M 96  /* rows of a backward block: a multiple of MR */
#define BWD_BLOCK_N 192 /* keys of a backward block: a multiple of 64 */

#include "backward.h"
#include "decode.h"
#include "forward.h"
#include "isa.h"
#include "scattered.h"

_Static_assert(BLOCK_M % MR == 0 && BWD_BLOCK_M % MR == 0 && MR % 2 == 0, "whole row groups");
_Static_assert(BLOCK_N % 64 == 0 && BWD_BLOCK_N % 64 == 0 && 64 % NR == 0, "whole words");
_Static_assert(NV == 2 && NR <= 32 && BWD_BLOCK_N / W <= 64, "half panels, and bits of vectors");
_Static_assert(BWD_BLOCK_N <= BLOCK_N && BWD_BLOCK_M <= BLOCK_N,
               "BitMask and runs are large enough");

const Isa ISA = {
    .name = ISA_NAME,
    .panel_keys = NR,
    .block_m = BLOCK_M,
    .tanh = tanh_floats,
    .v_in_place = v_in_place,
    .v_width = v_width,
    .pack = pack,
    .forward_scratch = forward_scratch,
    .forward = forward,
    .decode_scratch = decode_scratch,
    .decode_partial_floats = decode_partial_floats,
    .decode_split = decode_split,
    .decode_merge = decode_merge,
    .bwd_block_m = BWD_BLOCK_M,
    .bwd_block_n = BWD_BLOCK_N,
    .backward_unit_size = backward_unit_size,
    .backward_unit = backward_unit,
    .backward_scratch = backward_scratch,
    .backward_tiles = backward_tiles,
    .backward_prepare = backward_prepare,
    .backward_kv_block = backward_kv_block,
    .backward_write_dq = backward_write_dq,
    .pack_rows = pack_rows,
    .scattered_scratch = scattered_scratch,
    .scattered_forward = scattered_forward,
    .scattered_backward_size = scattered_backward_size,
    .scattered_backward = scattered_backward,
};

#endif
