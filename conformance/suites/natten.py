"""NATTEN's neighborhood attention: its mask_mods through `where`, and the recipe `natten`."""

from __future__ import annotations

import math
import sys
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import maskwright as mw
from conformance.cells import check_cells
from conformance.flex import block_difference
from conformance.runners import Side, run_functions
from conformance.sources import version_in
from conformance.suite import Runs, Suite

if TYPE_CHECKING:
    import numpy as np

    from conformance.sources import Sources

RELEASE = "v0.21.6"
SIZES = {1: ((37,), (64,)), 2: ((8, 11), (16, 16)), 3: ((4, 5, 6), (6, 6, 6))}
KERNELS, STRIDES, DILATIONS = (2, 3), (1, 2), (1, 2)  # the same in all dimensions
RECIPES = ((8, 8, 3), (9, 7, 5), (16, 16, 7))


def run(sources: Sources) -> Runs:
    """All combinations of sizes, kernels, strides, dilations and causal dimensions."""
    folder = sources.clone("NATTEN", "SHI-Labs/NATTEN", RELEASE, "src/natten/backends/flex.py")
    release = version_in(folder / "src/natten/version.py", r'__version__ = "(.+?)"')
    sys.path.insert(0, str(folder / "src"))
    from natten.backends.flex import get_na_flex_mask as make

    tests: dict[str, Any] = {}
    for axes, sizes in SIZES.items():
        for shape, kernel, stride, dilation in product(sizes, KERNELS, STRIDES, DILATIONS):
            for causal in ((False,) * axes, (True,) + (False,) * (axes - 1), (True,) * axes):
                arguments = ((kernel,) * axes, (stride,) * axes, (dilation,) * axes, causal)
                tests[f"{shape}, {kernel=}, {stride=}, {dilation=}, {causal=}"] = partial(
                    check, make, (axes, shape, *arguments)
                )
    for height, width, kernel in RECIPES:
        arguments = (2, (height, width), (kernel,) * 2, (1, 1), (1, 1), (False, False))
        recipe = mw.recipes.natten(height, width, kernel)
        tests[f"recipe, {(height, width)}, {kernel=}"] = partial(
            check_cells, partial(cells, make, arguments), partial(dense, recipe, height * width)
        )
    return run_functions(f"NATTEN {release}", tests)


def check(make: Any, arguments: tuple[Any, ...], side: Side) -> None:
    """Raise if the BlockMask of a mask_mod is not ours."""
    theirs = make("cpu", *arguments)
    if side == "original":
        return
    length = math.prod(arguments[1])
    bound = mw.where(theirs.mask_mod).on(length, q_start=0)
    ours = mw.lower(bound, "torch.flex", block_size=theirs.BLOCK_SIZE)
    if problem := block_difference(theirs, ours):
        raise AssertionError(problem)


def cells(make: Any, arguments: tuple[Any, ...]) -> np.ndarray:
    """The cells of a mask_mod."""
    from torch.nn.attention.flex_attention import create_mask

    length = math.prod(arguments[1])
    mask_mod = make("cpu", *arguments).mask_mod
    array: np.ndarray = create_mask(mask_mod, 1, 1, length, length, device="cpu").numpy()
    return array


def dense(mask: mw.Mask, length: int) -> np.ndarray:
    """The cells of a mask."""
    array: np.ndarray = mask.on(length).dense()
    return array


SUITE = Suite(
    "natten",
    "mask_mods of `get_na_flex_mask` through `where`, with sizes of ours, and the recipe",
    "`create_block_mask`",
    run,
)
