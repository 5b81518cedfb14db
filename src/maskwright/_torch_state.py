"""Questions to PyTorch about the modes of a call: compiling, transforms, forward mode, autocast.

This is the only module that reads `torch._C`. Where a version of PyTorch lacks a private function,
its answer is that of a version without the feature. It imports torch, so modules that need numpy
only import it inside functions.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch._subclasses import fake_tensor as _fake_tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from maskwright.core.mask_registry import constant_in_graphs
from maskwright.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

AUTOCAST_DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16)


def _none(*_: Any) -> Any:
    """The answer of a version of PyTorch that does not have the feature."""
    return 0


def _private(name: str, missing: Any = _none) -> Any:
    """An attribute of `torch._C` by its path, or `missing`."""
    attribute: Any = torch._C
    for part in name.split("."):
        attribute = getattr(attribute, part, None)
    return missing if attribute is None else attribute


no_torch_function: Final = _private("DisableTorchFunctionSubclass")  # a context
disabled_torch_function: Final = _private("_disabled_torch_function_impl")
is_wrapper_subclass: Final = is_traceable_wrapper_subclass  # whose data is in other tensors
is_functorch_wrapped: Final = _private("_functorch.is_functorch_wrapped_tensor")
is_fake: Final = _fake_tensor.is_fake
_unwrapped: Final = _private("_functorch.get_unwrapped")
_is_mapped: Final = _private("_functorch.is_batchedtensor")
_is_legacy_batched: Final = _private("_functorch.is_legacy_batchedtensor")
_interpreter_stack: Final = _private("_functorch.get_interpreter_stack")
_transforms_active: Final = _private("_are_functorch_transforms_active")
_num_dispatch_modes: Final = _private("_len_torch_dispatch_stack")
_num_function_modes: Final = _private("_len_torch_function_stack")
_tracing_state: Final = _private("_get_tracing_state", lambda: None)
_saved_tensor_hooks: Final = _private("_autograd._top_saved_tensors_default_hooks", lambda _: None)
_NO_CONTEXT: Final = nullcontext()
_graph_task: Final = _private("_current_graph_task_id", lambda: -1)


# ── graphs ────────────────────────────────────────────────────────────────────────────────────────


def is_exporting() -> bool:
    """Whether torch.export traces; PyTorch has no function for it before 2.7."""
    return hasattr(torch.compiler, "is_exporting") and torch.compiler.is_exporting()


def is_traced() -> bool:
    """Whether torch.compile or torch.jit.trace is tracing."""
    return bool(torch.compiler.is_compiling() or torch.jit.is_tracing())


def is_recorded(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether a dispatch mode such as make_fx sees a call, or it has no values to compute with."""
    if _num_dispatch_modes() or q.is_meta or k.is_meta or v.is_meta:
        return True
    if type(q) is type(k) is type(v) is Tensor and not _transforms_active():
        return False  # what is_fake would find after a longer search
    return bool(is_fake(q) or is_fake(k) or is_fake(v))


def has_values(x: Tensor) -> bool:
    """Whether the values of a tensor can be read: not in graphs, transforms, fake and meta tensors."""
    if torch.compiler.is_compiling() or x.is_meta or _is_mode_active("PROXY"):
        return False
    if is_functorch_wrapped(x) or _is_legacy_batched(x):
        return False
    return type(x) is Tensor or not (is_fake(x) or is_wrapper_subclass(x))


def _is_mode_active(name: str) -> bool:
    """Whether one of PyTorch's own dispatch modes is active: PROXY, of make_fx, or FAKE."""
    if not _num_dispatch_modes():
        return False
    key = getattr(_private("_TorchDispatchModeKey", None), name, None)
    return key is not None and torch._C._get_dispatch_mode(key) is not None


def has_storage(*tensors: Tensor) -> bool:
    """Whether tensors have memory, or need none: it may have been freed, as by FSDP."""
    for x in tensors:
        if is_functorch_wrapped(x) or x._is_zerotensor():  # they have none of their own
            continue
        if not x.untyped_storage().nbytes() and x.numel():
            return False
    return True


def is_opaque(x: Tensor) -> bool:
    """Whether a tensor of a subclass has no memory that a kernel can read."""
    if torch.compiler.is_compiling() or _num_dispatch_modes() or x.is_meta:
        return False
    if not x.numel() or is_fake(x):
        return False
    try:
        return not x.data_ptr() and x.untyped_storage().nbytes() > 0
    except RuntimeError:
        return True


# ── transforms and modes ──────────────────────────────────────────────────────────────────────────


def is_transformed() -> bool:
    """Whether a transform of torch.func or forward-mode AD has to see the call."""
    return bool(_transforms_active() or forward_ad._current_level >= 0)


def is_in_transform() -> bool:
    """Whether a transform of torch.func is active, such as grad or vmap."""
    return bool(_transforms_active())


def is_fake_mode() -> bool:
    """Whether tensors are made in FakeTensorMode."""
    return _is_mode_active("FAKE")


def is_observed() -> bool:
    """Whether a transform, forward-mode AD, a mode or a tracer has to see the call."""
    return bool(
        _num_dispatch_modes()
        or _num_function_modes()
        or _transforms_active()
        or forward_ad._current_level >= 0
        or _tracing_state() is not None
    )


def may_require_grad(x: Tensor) -> bool:
    """Whether a gradient may be asked for; within a transform of torch.func it may be."""
    if torch.compiler.is_compiling():
        return bool(x.requires_grad)
    return bool(x.requires_grad or _transforms_active())


def is_in_backward() -> bool:
    """Whether autograd runs a backward pass in this thread."""
    return bool(_graph_task() != -1)


def has_saved_tensor_hooks() -> bool:
    """Whether tensors that autograd saves go through hooks, as in gradient checkpointing."""
    return _saved_tensor_hooks(True) is not None


def autocast(*tensors: Any) -> tuple[Any, ...]:
    """The tensors in the dtype of autocast where it is enabled, as SDPA casts them."""
    first = tensors[0]
    if not isinstance(first, Tensor) or first.is_meta:
        return tensors
    device = first.device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        x.to(dtype) if getattr(x, "dtype", None) in AUTOCAST_DTYPES else x for x in tensors
    )


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """A context in which autocast is disabled on a type of device."""
    if not torch.is_autocast_enabled(device):
        return _NO_CONTEXT  # which takes less time
    context: AbstractContextManager[Any] = torch.autocast(device, enabled=False)
    return context


# ── forward mode ──────────────────────────────────────────────────────────────────────────────────


def is_forward_mode() -> bool:
    """Whether forward-mode AD is active in this thread."""
    return bool(forward_ad._current_level >= 0)


@constant_in_graphs
def is_traced_in_forward_mode() -> bool:
    """Whether the code that torch.compile traces is within forward-mode AD, such as torch.func.jvp."""
    names = [str(x.key()) for x in _interpreter_stack() or ()]
    return is_forward_mode() or any(name.endswith("Jvp") for name in names)


def has_tangent(*tensors: Tensor) -> bool:
    """Whether forward-mode AD differentiates a tensor, at any level of torch.func."""
    for x in tensors:
        inner = x
        while True:
            # vmap has no rule for the tangent of its own tensors, which wrap those with tangents.
            if not _is_mapped(inner) and (
                forward_ad.unpack_dual(inner, level=0).tangent is not None
            ):
                return True
            if not is_functorch_wrapped(inner):
                break
            inner = _unwrapped(inner)
    return False


# ── gradients in batches ──────────────────────────────────────────────────────────────────────────
#
# For `torch.autograd.grad(..., is_grads_batched=True)` and `jacobian(vectorize=True)` PyTorch maps the
# backward pass by its older vmap. That does not know the `vmap` of an autograd function, and its
# tensors have no memory that a kernel can read.


def is_batched(*grads: Tensor | None) -> bool:
    """Whether a gradient is a batch of gradients."""
    return any(x is not None and _is_legacy_batched(x) for x in grads)


def map_batched(
    function: Callable[..., tuple[Tensor | None, ...]], *grads: Tensor | None
) -> tuple[Tensor | None, ...]:
    """The results of a function of gradients whose first dimension is that of the batch.

    Args:
        function: Takes the gradients, (count, ...) each, or None. It returns tensors (count, ...),
            or None.
        *grads: Gradients, of which `is_batched` is true.

    Returns:
        The results, as batches.

    Raises:
        Unsupported: The gradients are batches of batches.
    """
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    present = [x for x in grads if x is not None]
    # A tensor that is no batch at this level is expanded to the size that is passed, 0.
    count = max(torch._remove_batch_dim(x, level, 0, 0).shape[0] for x in present)
    plain = [x if x is None else torch._remove_batch_dim(x, level, count, 0) for x in grads]
    if is_batched(*plain):
        raise Unsupported(
            "attention: gradients are batches of batches. Call torch.autograd.grad with "
            "is_grads_batched=True once, or use torch.func.jacrev and torch.func.vmap.",
            target="is_grads_batched",
        )
    results = function(*plain)
    return tuple(x if x is None else torch._add_batch_dim(x, 0, level) for x in results)
