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
REASONS = (
    Reason(
        "ours",
        r"invalid_inputs.*maskwright\.errors\.ArgumentError",
        "The error for invalid arguments is an ArgumentError, not a RuntimeError.",
    ),
    Reason(
        "by design",
        r"has values that are not available|numpy cannot read|call_function .*FakeTensor",
        "A mask is read from a tensor outside of graphs of `torch.compile` and `torch.export`.",
    ),
    Reason(
        "by design",
        r"test_script_|test_transformerencoderlayer_subclass|torch\.jit|Can't redefine method",
        "`torch.jit.script` cannot compile functions that read masks.",
    ),
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


MASK_VS_MATH = "TestSDPACpuOnly and mask_vs_math"
SUITES = (
    suite("mask_vs_math", "test_transformers, masks on the CPU", TRANSFORMERS, MASK_VS_MATH, 600),
    suite("transformers", "test_transformers, others", TRANSFORMERS, f"not ({MASK_VS_MATH})"),
    suite("multihead_attention", "test_multihead_attention", MODULES),
)
