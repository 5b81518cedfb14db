"""`select_backend`: the only place that decides how an attention call is computed."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from maskwright._optional_deps import missing
from maskwright.core.bound import BoundMask
from maskwright.core.mask_registry import constant_in_graphs
from maskwright.engine.call import Mode
from maskwright.engine.gpu_choice import stored_choice
from maskwright.engine.native.kernel import ISA_VARIABLE, loaded
from maskwright.engine.support import MAX_GRAPH_INTERVALS, find_problem
from maskwright.errors import AttentionError, Unsupported
from maskwright.targets.predicates import is_full, is_upper_left_causal

if TYPE_CHECKING:
    from maskwright.engine.call import Call

DESCRIPTIONS = {
    "native": "C kernel that reads the key intervals of each row",
    "blocks": "blocks of query rows on PyTorch operators",
    "sdpa": "torch.nn.functional.scaled_dot_product_attention",
    "flex": "compiled FlexAttention",
    "triton": "Triton kernel that reads the key intervals of each row",
    "reference": "dense attention in float64",
}

# Devices on which a call in a graph of torch.compile is FlexAttention by default; ROCm is "cuda" too.
FLEX_GRAPH_DEVICES = ("cuda",)


class Backend(NamedTuple):
    """The selected backend and the reason for it."""

    name: str
    reason: str

    @property
    def module(self) -> Any:
        """The module that implements it: `SUPPORT`, `forward`, and mostly `backward`."""
        return backend_module(self.name)


_modules: dict[str, Any] = {}  # not lru_cache: torch.compile warns about it


def backend_module(name: str) -> Any:
    """The module of a backend, imported on first use."""
    if name in _modules:
        return _modules[name]
    place = "" if name == "reference" else "backends."
    try:
        module = importlib.import_module(f"maskwright.engine.{place}{name}")
    except ModuleNotFoundError as error:
        raise (missing(f'impl="{name}"', error) or error) from error
    _modules[name] = module
    return module


def select_backend(call: Call) -> Backend:
    """Select the backend of an attention call, of any mode.

    An explicit `impl` is used or refused. With "auto", arrays and calls on the CPU go to the C
    kernel, and tensors to blocks of rows where the kernel is missing or does not support the call. On
    other devices it is SDPA where that needs no mask tensor, else FlexAttention, and blocks where
    neither applies. On a GPU for which `maskwright doctor --verify` stored the Triton kernels, it is
    those. In a graph of torch.compile `is_flex_in_graph` says whether the call is FlexAttention in
    the graph itself; else the operator of the graph has a backend whose backward pass can be called.

    Args:
        call: The call.

    Returns:
        The backend's name and the reason.

    Raises:
        AttentionError: The backend named by `impl` does not exist in a compiled graph.
        Unsupported: The backend named by `impl` does not support the call.
    """
    if call.mode is Mode.NUMPY:
        return _select_for_arrays(call)
    if call.mode is Mode.GRAPH:
        check_graph_impl(call.impl)
        if is_flex_in_graph(call):
            return Backend("flex", _named(call) or f"in compiled graphs on {call.device}")
    if call.impl != "auto":
        problem = find_problem(call, backend_module(call.impl).SUPPORT)
        if problem is not None:
            raise refused(call, problem)
        return Backend(call.impl, _named(call))
    if call.device == "cpu":
        problem = find_problem(call, backend_module("native").SUPPORT)
        if problem is None:
            return Backend("native", "the fastest backend on the CPU")
        return Backend("blocks", f"the C kernel {problem}")
    if call.device == "cuda" and stored_choice() == "triton":
        problem = find_problem(call, backend_module("triton").SUPPORT)
        if problem is None:
            return Backend("triton", "verified on this GPU by `maskwright doctor`")
    if call.mode is Mode.GRAPH or call.calls_backward:
        return Backend("blocks", f"the only one on {call.device} for graphs and partial results")
    if needs_no_mask_tensor(call.mask):
        problem = find_problem(call, backend_module("sdpa").SUPPORT)
        if problem is None:
            return Backend("sdpa", f"on {call.device}, and SDPA needs no mask tensor here")
    problem = find_problem(call, backend_module("flex").SUPPORT)
    if problem is None:
        return Backend("flex", f"on {call.device}, under a mask that SDPA would need a tensor for")
    return Backend("blocks", f"on {call.device}, and flex {problem}")


def check_graph_impl(impl: str) -> None:
    """Raise for a backend that does not exist in a compiled graph."""
    if impl in ("sdpa", "reference"):
        raise AttentionError(
            f'attention: impl="{impl}" is not available in a compiled graph. '
            'Leave impl out, or pass impl="blocks".'
        )


def is_flex_in_graph(call: Call) -> bool:
    """Whether a call in a graph of torch.compile is FlexAttention in the graph itself.

    It is if `impl` says so. With "auto" it is on the devices of `FLEX_GRAPH_DEVICES`, where
    FlexAttention supports the call, the mask has few enough intervals for the tables, and `maskwright
    doctor --verify` did not choose the Triton kernels. The bound on the intervals is compared when the
    graph is traced, so a mask with more of them makes another graph.

    Raises:
        Unsupported: FlexAttention is requested and does not support the call.
    """
    if call.impl == "flex":
        problem = _flex_problem(call)
        if problem is not None:
            raise refused(call, problem)
        return True
    if call.impl != "auto" or call.device not in FLEX_GRAPH_DEVICES or call.dropout_p:
        return False
    mask = call.mask if isinstance(call.mask, BoundMask) else call.mask.mask
    expression = mask.mask if isinstance(mask, BoundMask) else mask
    few = bool(expression._max_intervals <= MAX_GRAPH_INTERVALS)
    return few and not _uses_triton() and _flex_problem(call) is None


def _flex_problem(call: Call) -> str | None:
    """What FlexAttention does not support of a call, or None."""
    from maskwright.engine.backends import flex  # torch.compile traces a statement

    return find_problem(call, flex.SUPPORT)


@constant_in_graphs
def _uses_triton() -> bool:
    """Whether the Triton kernels are stored as the choice for this GPU; read when a graph is traced."""
    return stored_choice() == "triton"


def _named(call: Call) -> str:
    return "" if call.impl == "auto" else f'requested with impl="{call.impl}"'


def _select_for_arrays(call: Call) -> Backend:
    if call.impl not in ("auto", "native"):
        raise Unsupported(
            f'attention: impl="{call.impl}" takes torch tensors, and q is a numpy array. '
            "Leave impl out, or pass torch tensors.",
            target=call.impl,
        )
    problem = find_problem(call, backend_module("native").SUPPORT)
    if problem is not None:
        raise Unsupported(
            f"attention: numpy arrays are computed by the C kernel, which {problem}. "
            "Pass torch tensors.",
            target="native",
        )
    return Backend("native", "the backend of numpy arrays")


def refused(call: Call, problem: str) -> Unsupported:
    """The error for a backend that is named by `impl` and does not support the call."""
    return Unsupported(
        f'attention: impl="{call.impl}" {problem}. Leave impl out, or pass impl="blocks".',
        target=call.impl,
        term=repr(call.mask.mask) if isinstance(call.mask, BoundMask) else "",
    )


def needs_no_mask_tensor(mask: BoundMask) -> bool:
    """Whether SDPA computes this mask by itself: no mask, or `is_causal`."""
    return is_full(mask) or is_upper_left_causal(mask)


_warned = False


def warn_without_kernel() -> None:
    """Warn once per process that the C kernel is missing, unless the user disabled it."""
    global _warned
    kernel = loaded()
    if _warned or kernel.module is not None or os.environ.get(ISA_VARIABLE) == "none":
        return
    _warned = True
    warnings.warn(
        "maskwright computes attention without its C kernel, which is faster: "
        f"{kernel.reason}. Install GCC 12 or Clang 12 or newer and run: "
        "pip install --force-reinstall --no-deps --no-cache-dir maskwright. `maskwright doctor` has "
        "the details; MASKWRIGHT_ISA=none disables the kernel and this warning.",
        UserWarning,
        stacklevel=_caller_level(),
    )


def _caller_level() -> int:
    """The `stacklevel` of the first frame outside of maskwright and torch, seen from the caller."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ("maskwright", "torch"):
            break
        frame, level = frame.f_back, level + 1
    return level
