"""`select_backend`: the only place that decides how an attention call is computed."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from maskwright._optional_deps import missing
from maskwright.engine.gpu_choice import stored_choice
from maskwright.engine.native import ISA_VARIABLE, loaded
from maskwright.errors import Unsupported
from maskwright.targets.predicates import is_full, is_upper_left_causal

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.engine.params import AttentionParams

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
        """The module that implements it: `unsupported`, `forward`, and mostly `backward`."""
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


def select_backend(params: AttentionParams) -> Backend:
    """Select the backend of an attention call.

    An explicit `impl` is used or refused. With "auto", calls on the CPU go to the C kernel, and to
    blocks of rows where the kernel is missing or does not support the call. On other devices it is
    SDPA where that needs no mask tensor, else FlexAttention, and blocks where neither applies. On a
    GPU for which `maskwright doctor --verify` stored the Triton kernels, it is those. In a graph of
    torch.compile, `flex_graph.is_default` decides before whether the call is FlexAttention instead.

    Args:
        params: The parameters of the call.

    Returns:
        The backend's name and the reason.

    Raises:
        Unsupported: The backend named by `impl` does not support the call.
    """
    if params.impl != "auto":
        module = backend_module(params.impl)
        problem = module.unsupported(params)
        if params.explicit_backward and not hasattr(module, "backward"):
            problem = "has no backward pass that is called with saved tensors"
        if problem is None:
            return Backend(params.impl, f'requested with impl="{params.impl}"')
        raise Unsupported(
            f'attention: impl="{params.impl}" {problem}. Leave impl out, or pass impl="blocks".',
            target=params.impl,
            term=repr(params.mask.mask),
        )
    if params.device == "cpu":
        problem = backend_module("native").unsupported(params)
        if problem is None:
            return Backend("native", "the fastest backend on the CPU")
        return Backend("blocks", f"the C kernel {problem}")
    if params.device == "cuda" and stored_choice() == "triton":
        problem = backend_module("triton").unsupported(params)
        if problem is None:
            return Backend("triton", "verified on this GPU by `maskwright doctor`")
    if params.explicit_backward:
        return Backend("blocks", f"the only one on {params.device} for graphs and partial results")
    if needs_no_mask_tensor(params.mask) and backend_module("sdpa").unsupported(params) is None:
        return Backend("sdpa", f"on {params.device}, and SDPA needs no mask tensor here")
    problem = backend_module("flex").unsupported(params)
    if problem is None:
        return Backend(
            "flex", f"on {params.device}, under a mask that SDPA would need a tensor for"
        )
    return Backend("blocks", f"on {params.device}, and flex {problem}")


def needs_no_mask_tensor(mask: BoundMask) -> bool:
    """Whether SDPA computes this mask by itself: no mask, or `is_causal`."""
    return is_full(mask) or is_upper_left_causal(mask)


_warned = False


def warn_without_kernel() -> None:
    """Warn once per process that the C kernel is missing, unless the user disabled it."""
    global _warned
    kernel = loaded()
    if _warned or kernel.library is not None or os.environ.get(ISA_VARIABLE) == "none":
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
