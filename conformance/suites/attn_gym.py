"""The mask_mods of attention-gym, through `where`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from conformance.runners import Side, run_functions
from conformance.sources import installed
from conformance.suite import Runs, Suite

if TYPE_CHECKING:
    from conformance.sources import Sources

BLOCKS = (16, (16, 32), 128)


def run(sources: Sources) -> Runs:  # noqa: ARG001 - the mask_mods are in the installed package
    """Every mask_mod in three block sizes."""
    release = installed("attn_gym")
    tests = {
        f"{name}[{block}]": partial(check, mask_mod, sizes, block)
        for name, (mask_mod, sizes) in cases().items()
        for block in BLOCKS
    }
    return run_functions(f"attn_gym {release}", tests)


def check(
    mask_mod: Any, sizes: tuple[int, int, int, int], block: int | tuple[int, int], side: Side
) -> None:
    """Raise if the BlockMask of create_block_mask is not ours; `sizes` are those of its arguments."""
    from torch.nn.attention.flex_attention import create_block_mask

    import maskwright as mw
    from conformance.flex import block_difference

    batch, heads, q_len, kv_len = sizes
    theirs = create_block_mask(mask_mod, *sizes, device="cpu", BLOCK_SIZE=block)
    if side == "original":
        return
    bound = mw.where(mask_mod).on(q_len, kv_len, batch, heads, q_start=0)
    ours = mw.lower(bound, "torch.flex", block_size=block)
    if problem := block_difference(theirs, ours):
        raise AssertionError(problem)


def cases() -> dict[str, tuple[Any, tuple[int, int, int, int]]]:
    """The mask_mods by name, each with (batch, heads, queries, keys)."""
    import torch
    from attn_gym import masks

    offsets = torch.tensor([0, 13, 20, 40, 64])
    tree = masks.build_tree_ancestor_matrix([-1, 0, 0, 1, 1, 2, 5, 6], device="cpu")
    is_global = torch.zeros(64, dtype=torch.bool).index_fill_(0, torch.tensor([0, 9, 40]), True)
    generator = torch.Generator().manual_seed(0)
    tiles = torch.rand(2, 3, 4, 4, generator=generator).argsort(-1)[..., :2]
    square = {
        "causal": masks.causal_mask,
        "sliding_window": masks.generate_sliding_window(5),
        "sliding_window, 0": masks.generate_sliding_window(0),
        "prefix_lm": masks.generate_prefix_lm_mask(17),
        "documents": masks.generate_doc_mask_mod(masks.causal_mask, offsets),
        "packed documents": masks.generate_packed_causal_doc_mask_mod(offsets),
        "shared_prefix": masks.generate_shared_prefix_mask_mod(offsets, torch.tensor([0, 0, 2, 2])),
        "dilated_sliding_window": masks.generate_dilated_sliding_window(6, 2),
        "global_sliding_window": masks.generate_global_sliding_window(4, is_global),
        "block_diffusion": masks.generate_block_diffusion_mask(32, 8),
        "batchify": masks.batchify_mask_mod(masks.causal_mask, 24),
        "natten": masks.generate_natten(8, 8, 3, 5),
        "tiled_natten": masks.generate_tiled_natten(8, 8, 3, 5, 4, 2),
        "morton_natten": masks.generate_morton_natten(8, 8, 3, 3),
        "sta_2d": masks.generate_sta_mask_mod_2d((8, 8), (6, 6), (2, 2)),
        "sta_3d": masks.generate_sta_mask_mod_3d((4, 4, 4), (2, 2, 6), (2, 2, 2)),
        "svg spatial": masks.generate_spatial_head_mask_mod(4, 5, 12, 2, False, 8),
        "svg spatial with sink": masks.generate_spatial_head_mask_mod(4, 5, 12, 2, True, 8),
        "svg temporal": masks.generate_temporal_head_mask_mod(4, 5, 12, 2),
    }
    others = {
        "sta_2d with text": (
            masks.generate_sta_mask_mod_2d((8, 8), (4, 4), (2, 2), 6),
            (1, 1, 72, 72),
        ),
        "flamingo": (
            masks.generate_vision_cross_attention_mask_mod(
                torch.tensor([[0, 7], [1, 7], [7, 12]]), 3
            ),
            (1, 1, 12, 9),
        ),
        "jetspec tree": (masks.generate_jetspec_tree_causal_mask_mod(20, tree), (1, 1, 8, 28)),
        "jetspec training": (masks.generate_jetspec_training_mask_mod(20, 8), (1, 1, 32, 52)),
        "vsa": (masks.generate_vsa_mask_mod(tiles, 16), (2, 3, 64, 64)),
        "vsa, partial tiles": (
            masks.generate_vsa_mask_mod(tiles, 16, torch.tensor([16, 9, 1, 12])),
            (2, 3, 64, 64),
        ),
    }
    return {name: (mask_mod, (1, 1, 64, 64)) for name, mask_mod in square.items()} | others


SUITE = Suite(
    "attn_gym",
    "BlockMasks of all mask_mods of the package, with parameters of ours",
    "`create_block_mask`",
    run,
)
