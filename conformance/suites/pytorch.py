"""PyTorch's own tests of attention, with maskwright in place of `F.scaled_dot_product_attention`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from conformance.runners import LIMITED, TIMEOUT, Pytest
from conformance.sources import installed, version_in
from conformance.suite import Reason, Runs, Suite

if TYPE_CHECKING:
    from conformance.sources import Sources

EXPECTTEST = "expecttest==0.3.0"  # which torch.testing._internal imports
TRANSFORMERS, MODULES = "test/test_transformers.py", "test/nn/test_multihead_attention.py"
FLEX, DECODING = (f"test/inductor/test_flex_{name}.py" for name in ("attention", "decoding"))
REASONS = (
    Reason(
        "by design",
        r"has values that are not available|is of type FakeTensor, which numpy cannot read",
        "A mask is read from a tensor outside of graphs of `torch.compile` and `torch.export`.",
    ),
)
FLEX_REASONS = (
    Reason("by design", "have dtype float8_", "q, k and v have at least 16 bits."),
    Reason("by design", "tensor subclass", "Tensor subclasses are refused."),
)


def run(sources: Sources, path: str, select: str | None, sample: int | None) -> Runs:
    """The tests of a file whose names match an expression of pytest."""
    release = installed("torch").partition("+")[0]
    folder = sources.clone("pytorch", "pytorch/pytorch", f"v{release}", path)
    version = version_in(folder / "version.txt", r"(\S+)")
    pytest = Pytest(
        folder / "test",
        (path.removeprefix("test/"),),
        "conformance.plugins.sdpa",
        sources.packages(EXPECTTEST, TIMEOUT),
        options=(*LIMITED, *(() if select is None else ("-k", select))),
        sample=sample,
    )
    return pytest.run(f"torch {version} on {release}")


def suite(
    name: str, title: str, path: str, select: str | None = None, sample: int | None = None
) -> Suite:
    """A suite of one file."""
    call = partial(run, path=path, select=select, sample=sample)
    return Suite(f"torch.{name}", title, "`F.scaled_dot_product_attention`", call, REASONS)


def run_flex(sources: Sources, path: str, plugin: str, sample: int | None) -> Runs:
    """The tests of a file without compilation: the plugin says what is compared."""
    release = installed("torch").partition("+")[0]
    folder = sources.clone("pytorch", "pytorch/pytorch", f"v{release}", path)
    version = version_in(folder / "version.txt", r"(\S+)")
    pytest = Pytest(
        folder / "test",
        (path.removeprefix("test/"),),
        f"conformance.plugins.{plugin}_maskwright",
        sources.packages(EXPECTTEST, TIMEOUT),
        also=(f"conformance.plugins.{plugin}",),
        options=LIMITED,
        sample=sample,
    )
    return pytest.run(f"torch {version} on {release}")


def flex_suite(name: str, title: str, path: str, plugin: str, sample: int | None = None) -> Suite:
    """A suite of a file of FlexAttention's tests."""
    replaced = {"flex": "`flex_attention`", "flex_masks": "`create_block_mask`"}[plugin]
    call = partial(run_flex, path=path, plugin=plugin, sample=sample)
    return Suite(f"torch.{name}", title, replaced, call, FLEX_REASONS)


ATTENTION = "compiled calls without a score_mod, or with one that scales and adds"
BLOCKS = "BlockMasks of all uncompiled calls"
MASK_VS_MATH = "TestSDPACpuOnly and mask_vs_math"
SUITES = (
    suite("mask_vs_math", "test_transformers, masks on the CPU", TRANSFORMERS, MASK_VS_MATH, 600),
    suite("transformers", "test_transformers, others", TRANSFORMERS, f"not ({MASK_VS_MATH})"),
    suite("multihead_attention", "test_multihead_attention", MODULES),
    flex_suite("flex_masks", f"test_flex_attention, {BLOCKS}", FLEX, "flex_masks"),
    flex_suite("flex_decoding_masks", f"test_flex_decoding, {BLOCKS}", DECODING, "flex_masks"),
    flex_suite("flex_attention", f"test_flex_attention, {ATTENTION}", FLEX, "flex", 240),
    flex_suite("flex_decoding", f"test_flex_decoding, {ATTENTION}", DECODING, "flex", 120),
)
