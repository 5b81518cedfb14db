"""Tangents of forward-mode AD, which the backends do not compute: an error in place of wrong ones."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from maskwright._torch_state import has_tangent, is_forward_mode
from maskwright.errors import Unsupported

if TYPE_CHECKING:
    import torch


class _Checked(threading.local):
    """Thread-local flag: the caller of an operator has checked its tensors for tangents."""

    tangents = False


_checked = _Checked()


def refuse_tangents(*tensors: torch.Tensor) -> None:
    """Raise within forward-mode AD of a tensor, which would return wrong tangents."""
    if is_forward_mode() and has_tangent(*tensors):
        raise forward_mode_unsupported()


def refuse_tangents_in_operator(*tensors: torch.Tensor) -> None:
    """The same in an operator, which a compiled function may call."""
    if not is_forward_mode() or _checked.tangents:
        return
    try:
        refused = has_tangent(*tensors)
    except RuntimeError:  # compiled code runs below autograd, where tangents cannot be read
        refused = True
    if refused:
        raise forward_mode_unsupported()


def with_checked_tangents(operator: Any, tensors: Any, *args: Any, **settings: Any) -> Any:
    """Call an operator after a check of these tensors, outside of a compiled function."""
    refuse_tangents(*tensors)
    before, _checked.tangents = _checked.tangents, True
    try:
        return operator(*args, **settings)
    finally:
        _checked.tangents = before


def forward_mode_unsupported() -> Unsupported:
    """The error for forward-mode AD of a backend that has none."""
    return Unsupported(
        "attention: forward-mode AD (torch.func.jvp, forward_ad) is not supported by this "
        'backend. Use reverse mode, or pass impl="reference"; load a transformers model with '
        'attn_implementation="eager".',
        target="jvp",
    )
