"""xFormers' attention biases: its own objects, computed again by maskwright."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from conformance.runners import Side, run_functions
from conformance.sources import NotRunError, installed
from conformance.suite import Runs, Suite

if TYPE_CHECKING:
    from conformance.sources import Sources

OBJECTS = 500


def run(sources: Sources) -> Runs:  # noqa: ARG001 - the classes are in the installed package
    """One mask for each of the 20 classes, and objects with drawn lengths, windows, gaps and pages."""
    release = installed("xformers")
    try:
        from tests.targets import test_xformers as cases
    except ImportError as error:
        raise NotRunError(f"the cases cannot be imported: {error}") from None
    tests = {name: partial(check_class, cases, name) for name in cases.CLASSES}
    for index, (bias, cells, page_size) in enumerate(draw(cases.attention_biases())):
        if cells.any():  # a kernel has nothing to compute otherwise
            name = f"{type(bias).__name__}[{index}]"
            tests[name] = partial(check_object, bias, cells, page_size)
    return run_functions(f"xformers {release}", tests)


def draw(strategy: Any) -> list[Any]:
    """The same examples of a strategy of Hypothesis in every run."""
    from hypothesis import HealthCheck, Phase, given, settings

    drawn: list[Any] = []

    @settings(
        max_examples=OBJECTS,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(case: Any) -> None:
        drawn.append(case)

    collect()
    return drawn


def check_class(cases: Any, name: str, side: Side) -> None:
    """Raise unless a mask becomes an object of the class with the same cells."""
    if side == "maskwright":
        cases.test_every_class_is_returned(name)


def check_object(bias: Any, cells: Any, page_size: int | None, side: Side) -> None:
    """Raise unless the cells of an object become an object with the same cells by `materialize`."""
    import numpy as np
    from xformers.ops.fmha.attn_bias import AttentionBias

    import maskwright as mw
    from tests._helpers.target_readers import READERS

    if side == "original":
        return
    options: dict[str, Any] = {"page_size": page_size} if page_size else {}
    if not page_size and hasattr(bias, "q_seqinfo"):
        options["packed"] = True
    lowered = mw.lower(mw.dense(cells).on(*cells.shape), "xformers", **options)
    if not (lowered is None or isinstance(lowered, AttentionBias)):
        raise AssertionError(f"the mask became a {type(lowered).__name__}")
    result = READERS["xformers"](lowered, (1, 1, *cells.shape))
    if not np.array_equal(result[0, 0], cells):
        raise AssertionError(f"{int((result[0, 0] != cells).sum())} cells differ")


SUITE = Suite(
    "xformers",
    f"a mask for each of the 20 classes of attn_bias, and {OBJECTS} drawn objects, by `materialize`",
    "the classes of `attn_bias`",
    run,
)
