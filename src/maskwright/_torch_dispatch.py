"""Masks as arguments of torch functions: `__torch_function__` of `Mask` and `BoundMask`.

PyTorch calls it in place of one of its own functions that received a mask. The integration, which
imports PyTorch, is imported then: by a statement, which torch.compile can execute while it traces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask


def torch_function(
    cls: type,  # noqa: ARG001 - the signature of __torch_function__
    func: Callable[..., Any],
    types: object,  # noqa: ARG001
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """The result of a torch function that received a mask: attention is computed, the rest refused."""
    from maskwright.integrations.torch_function import call_with_mask

    return call_with_mask(func, args, kwargs or {})


def install(*classes: type[Mask] | type[BoundMask]) -> None:
    """Makes PyTorch call `torch_function` for instances of these classes."""
    for cls in classes:
        cls.__torch_function__ = classmethod(torch_function)
