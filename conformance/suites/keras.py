"""The tests of Keras's attention on its PyTorch backend, with maskwright in place of SDPA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.runners import LIMITED, TIMEOUT, Pytest
from conformance.sources import installed
from conformance.suite import Reason, Runs, Suite

if TYPE_CHECKING:
    from conformance.sources import Sources

LAYERS = ("additive_attention", "attention", "grouped_query_attention", "multi_head_attention")
PATHS = (
    *(f"keras/src/layers/attention/{name}_test.py" for name in LAYERS),
    "keras/src/ops/nn_test.py",
)
REASONS: tuple[Reason, ...] = ()


def run(sources: Sources) -> Runs:
    """The tests of the layers, and those of `dot_product_attention`."""
    release = installed("keras")
    pytest = Pytest(
        sources.sdist(f"keras=={release}"),
        PATHS,
        "conformance.plugins.sdpa",
        sources.packages(TIMEOUT),
        options=(*LIMITED, "-k", "attention"),
        environment=(("KERAS_BACKEND", "torch"),),
    )
    return pytest.run(f"keras {release}")


SUITE = Suite(
    "keras",
    "attention layers and `dot_product_attention` on PyTorch",
    "`F.scaled_dot_product_attention`",
    run,
    REASONS,
)
