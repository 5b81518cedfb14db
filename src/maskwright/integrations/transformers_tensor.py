"""A bound mask that is passed through a model where transformers expects a bool tensor.

It has the shape, dtype and device of the mask of "sdpa" in transformers, but no storage. Slicing and
combining return a mask. Operations that use it as numbers, or read True as "masked", raise an error:
models that support only "eager" do that, and their output would be wrong.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from maskwright._torch_state import disabled_torch_function
from maskwright.errors import Unsupported
from maskwright.integrations.transformers_packing import ORIGIN

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

# Operations whose result is a mask if their input is
VIEW_OPS = frozenset(
    {"alias", "clone", "detach", "expand", "index", "permute", "repeat", "select", "slice"}
    | {"squeeze", "transpose", "unsqueeze", "view", "_to_copy", "_unsafe_view"}
)
INVERT_OPS = frozenset({"bitwise_not", "logical_not"})
COMBINE_OPS = frozenset({"bitwise_and", "bitwise_or", "logical_and", "logical_or"})


class MaskTensor(torch.Tensor):
    """A bool tensor (batch, heads or 1, queries, keys) without storage, True for visible keys.

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
    maskwright.errors.Unsupported: This model uses its mask as numbers (aten.add), but it \
is a bool mask, True for visible keys. Load it with attn_implementation="eager".
    """

    content: BoundMask | torch.Tensor
    inverted: bool  # True means masked, after `~`
    __torch_function__ = disabled_torch_function

    @staticmethod
    def __new__(
        cls,
        content: BoundMask | torch.Tensor,
        batch: int = 1,
        device: object = "cpu",
        inverted: bool = False,
    ) -> MaskTensor:
        """Wraps a bound mask for `batch` sequences, or a bool tensor derived from one."""
        if isinstance(content, torch.Tensor):
            shape, device = content.shape, content.device
        else:
            shape = (batch, *content.shape[1:])
        self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)
        self.content, self.inverted = content, inverted
        return self  # type: ignore[no-any-return]

    def cells(self) -> torch.Tensor:
        """The mask as a plain bool tensor."""
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
        """Computes an operation on masks, or refuses it."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        masks = [arg for arg in pytree.tree_leaves(args) if isinstance(arg, MaskTensor)]
        kept = _bound_result(name, args, kwargs)
        if kept is not None:
            return _with_origin(kept, masks)
        stays = _returns_mask(name, args, kwargs)
        if not stays and not _fills_masked_cells(name, args) and not _reduces_rows(name, args):
            raise Unsupported(
                f"This model uses its mask as numbers (aten.{name}), but it is a bool mask, True for "
                'visible keys. Load it with attn_implementation="eager".'
            )
        plain, named = pytree.tree_map_only(MaskTensor, MaskTensor.cells, (args, kwargs))
        result = func(*plain, **named)
        if not stays:
            return result
        inverted = all(mask.inverted for mask in masks) != (name in INVERT_OPS)
        mask = MaskTensor(result, inverted=inverted)
        # The keys of several masks are no longer those of one sequence, as its origin says.
        return mask if name == "cat" else _with_origin(mask, masks)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        if isinstance(self.content, torch.Tensor):
            return f"MaskTensor({self.content!r})"
        return f"MaskTensor({self.content!r}, batch={self.shape[0]})"


def _with_origin(result: MaskTensor, masks: list[MaskTensor]) -> MaskTensor:
    """The result of an operation on masks, which is still a mask of the model."""
    for mask in masks:
        if hasattr(mask, ORIGIN):
            setattr(result, ORIGIN, getattr(mask, ORIGIN))
    return result


@torch.compiler.assume_constant_result
def uses_attention_interface(config_module: str) -> bool:
    """Whether the models of a configuration module use the attention interface.

    A plain tensor cannot refuse to be used as numbers, so this is checked before one is returned.
    """
    models = sys.modules.get(config_module.replace("configuration_", "modeling_"))
    return models is None or hasattr(models, "ALL_ATTENTION_FUNCTIONS")


def _bound_result(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> MaskTensor | None:
    """The result of operations that need no cells: another device, fewer keys, a copy; else None."""
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


def _returns_mask(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the result of an operation is a mask."""
    if name in COMBINE_OPS:
        return all(isinstance(arg, torch.Tensor) and arg.dtype == torch.bool for arg in args[:2])
    if name == "cat":  # as T5Gemma 2 does with the masks of the decoder and of the encoder
        # A plain tensor may be True for masked keys, as that of DeepSeek V4's compressed keys.
        are_masks = all(isinstance(arg, MaskTensor) for arg in args[0])
        return are_masks and len({mask.inverted for mask in args[0]}) == 1
    if not (args and isinstance(args[0], MaskTensor)):
        return False
    other = kwargs.get("dtype") or next((a for a in args if isinstance(a, torch.dtype)), torch.bool)
    return name in INVERT_OPS or (name in VIEW_OPS and other == torch.bool)


def _fills_masked_cells(name: str, args: tuple[Any, ...]) -> bool:
    """Whether the operation replaces exactly the masked cells by a number."""
    if name in ("masked_fill", "masked_fill_"):
        return isinstance(args[1], MaskTensor) and args[1].inverted
    if name == "where" and len(args) == 3 and isinstance(args[0], MaskTensor):
        # Only a mask value shows which of the two is meant for masked cells.
        return _is_mask_value(args[1 if args[0].inverted else 2])
    return False


def _reduces_rows(name: str, args: tuple[Any, ...]) -> bool:
    """Whether the operation asks if a key is visible, `any(mask)`, or if all are masked, `all(~mask)`."""
    mask = args[0] if args else None
    return isinstance(mask, MaskTensor) and name == ("all" if mask.inverted else "any")


def _is_mask_value(value: Any) -> bool:
    """Whether it is a single number so low that the softmax weight is 0."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or isinstance(value, MaskTensor):
            return False
        value = value.item()
    return bool(value <= torch.finfo(torch.float16).min)
