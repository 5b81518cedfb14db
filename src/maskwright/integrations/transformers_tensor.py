"""A bound mask that travels through a model where transformers expects a bool tensor.

It has the shape, dtype and device of the tensor that transformers' own "sdpa" mask would be, and no
memory behind them. Cutting or combining it gives the cells as they are. What takes them for numbers,
or True for "hidden", is refused: models written for "eager" alone do that, and would go wrong.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from maskwright.errors import Unsupported

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

# Of these a mask is again a mask, cell by cell.
CUTS = frozenset(
    {"alias", "clone", "detach", "expand", "index", "permute", "repeat", "select", "slice"}
    | {"squeeze", "transpose", "unsqueeze", "view", "_to_copy", "_unsafe_view"}
)
TURNS = frozenset({"bitwise_not", "logical_not"})
JOINS = frozenset({"bitwise_and", "bitwise_or", "logical_and", "logical_or"})


class MaskTensor(torch.Tensor):
    """(batch, heads or 1, queries, keys) of truth values, True where a query may see a key.

    >>> import maskwright as mw
    >>> from maskwright.integrations.transformers_tensor import MaskTensor
    >>> mask = MaskTensor(mw.causal().on(3), batch=2)
    >>> mask
    MaskTensor((causal()).on(3, kv_len=3, batch=1, heads=1, q_start=0), batch=2)
    >>> mask.shape, mask[:, :, :, :2]
    (torch.Size([2, 1, 3, 3]),
     MaskTensor((causal()).on(3, kv_len=3, batch=1, heads=1, q_start=0).rows(0, 3, kv_len=2), batch=2))
    >>> mask + 1.0
    Traceback (most recent call last):
    maskwright.errors.Unsupported: This model computes with its mask (aten.add), which holds truth \
values, True for what is seen. Load it with attn_implementation="eager".
    """

    content: BoundMask | torch.Tensor
    turned: bool  # True hides, after a `~`
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(
        cls,
        content: BoundMask | torch.Tensor,
        batch: int = 1,
        device: object = "cpu",
        turned: bool = False,
    ) -> MaskTensor:
        """A bound mask for `batch` sequences, or cells that came of one."""
        if isinstance(content, torch.Tensor):
            shape, device = content.shape, content.device
        else:
            shape = (batch, *content.shape[1:])
        self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)
        self.content, self.turned = content, turned
        return self  # type: ignore[no-any-return]

    def cells(self) -> torch.Tensor:
        """The plain bool tensor that this stands for."""
        if isinstance(self.content, torch.Tensor):
            return self.content
        return torch.from_numpy(self.content.dense()).to(self.device).expand(self.shape)

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """What torch calls in place of an operation of its own."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        kept = _still_bound(name, args, kwargs)
        if kept is not None:
            return kept
        masks = [arg for arg in args if isinstance(arg, MaskTensor)]
        stays = _stays_mask(name, args, kwargs)
        if not stays and not _hides_by(name, args):
            raise Unsupported(
                f"This model computes with its mask (aten.{name}), which holds truth values, True "
                'for what is seen. Load it with attn_implementation="eager".'
            )
        plain, named = pytree.tree_map_only(MaskTensor, MaskTensor.cells, (args, kwargs))
        result = func(*plain, **named)
        if not stays:
            return result
        turned = all(mask.turned for mask in masks) != (name in TURNS)
        return MaskTensor(result, turned=turned)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        if isinstance(self.content, torch.Tensor):
            return f"MaskTensor({self.content!r})"
        return f"MaskTensor({self.content!r}, batch={self.shape[0]})"


@torch.compiler.assume_constant_result
def asks_the_interface(config_module: str) -> bool:
    """Do the models that have their configuration in this module ask which attention to use?

    A plain tensor can't refuse to be taken for numbers, so this is asked before one is given.
    """
    models = sys.modules.get(config_module.replace("configuration_", "modeling_"))
    return models is None or hasattr(models, "ALL_ATTENTION_FUNCTIONS")


def _still_bound(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> MaskTensor | None:
    """What needs no cells: another device, fewer keys, or nothing changed at all."""
    mask = args[0] if args else None
    if not isinstance(mask, MaskTensor) or isinstance(mask.content, torch.Tensor):
        return None
    bound, batch = mask.content, int(mask.shape[0])
    if name in ("alias", "detach", "clone"):
        return MaskTensor(bound, batch, mask.device)
    if name == "_to_copy" and kwargs.get("dtype") in (None, torch.bool):
        return MaskTensor(bound, batch, kwargs.get("device") or mask.device)
    if name == "slice":
        dim, start, stop, step = list(args[1:]) + [0, None, None, 1][len(args) - 1 :]
        size = int(mask.shape[dim])
        first, last, _ = slice(start, stop).indices(size)
        if step == 1 and first == 0 and last == size:
            return MaskTensor(bound, batch, mask.device)
        if step == 1 and first == 0 and dim in (3, -1):
            part = bound.rows(0, bound.frame.q_len, kv_len=last)
            return MaskTensor(part, batch, mask.device)
    return None


def _stays_mask(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Is what comes of it again a mask?"""
    if name in JOINS:
        return all(isinstance(arg, torch.Tensor) and arg.dtype == torch.bool for arg in args[:2])
    if not (args and isinstance(args[0], MaskTensor)):
        return False
    other = kwargs.get("dtype") or next((a for a in args if isinstance(a, torch.dtype)), torch.bool)
    return name in TURNS or (name in CUTS and other == torch.bool)


def _hides_by(name: str, args: tuple[Any, ...]) -> bool:
    """Does it put a number in place of what the mask hides, and only of that?"""
    if name in ("masked_fill", "masked_fill_"):
        return isinstance(args[1], MaskTensor) and args[1].turned
    if name == "where" and len(args) == 3 and isinstance(args[0], MaskTensor):
        # Nothing but such a number tells which of the two is meant for hidden cells.
        return _is_least(args[1 if args[0].turned else 2])
    return False


def _is_least(value: Any) -> bool:
    """Is it one number, so low that it leaves no weight to what has it?"""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or isinstance(value, MaskTensor):
            return False
        value = value.item()
    return bool(value <= torch.finfo(torch.float16).min)
