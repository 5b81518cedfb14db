"""The mask of a forward pass, as transformers asks an attention implementation for it.

It is a `MaskTensor` with a bound mask, or in graphs of torch.compile a bool tensor with the handle of the
mask, see `transformers_graph`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskwright._torch_state import is_exporting, is_fake_mode, is_in_transform, is_traced
from maskwright.errors import Unsupported
from maskwright.integrations.transformers_dense import has_values
from maskwright.integrations.transformers_functions import View, read_function
from maskwright.integrations.transformers_graph import bind_in_graph, with_handle
from maskwright.integrations.transformers_packing import ORIGIN, mask_origin
from maskwright.integrations.transformers_tensor import MaskTensor, uses_attention_interface
from maskwright.integrations.transformers_unsupported import UNSUPPORTED_MODELS, unsupported_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def mask_for_layers(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: torch.Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **hints: Any,
) -> Any:
    """The mask of a forward pass, with the signature of the mask interface of transformers.

    A `MaskTensor`, or a bool tensor for traced code and for steps that may be compiled. Never None,
    because the meaning of None depends on the model. The other keyword arguments
    (`allow_is_causal_skip`, `local_size`, …) only concern when to return None.

    >>> from maskwright.integrations.transformers_masks import mask_for_layers
    >>> from transformers.masking_utils import sliding_window_causal_mask_function
    >>> window = sliding_window_causal_mask_function(3)
    >>> mask_for_layers(1, 2, 6, q_offset=4, mask_function=window)
    MaskTensor((window(back=2)).on(2, kv_len=6, batch=1, heads=1, q_start=4), batch=1)
    """
    from transformers import masking_utils

    function = masking_utils.causal_mask_function if mask_function is None else mask_function
    if _needs_tensor(q_length, q_offset, device, attention_mask):
        _check_plain_tensor(hints.get("config"))
        mask = masking_utils.sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=function,
            attention_mask=attention_mask,
            use_vmap=use_vmap,
            device=device,
            **{**hints, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False},
        )
        if is_compiled(mask) and not use_vmap:  # vmap is for functions of the user
            function = _with_padding(function, attention_mask, kv_length, kv_offset)
            bind_in_graph(mask, function, [batch_size, q_length, kv_length, kv_offset], q_offset)
    else:
        function = _with_padding(function, attention_mask, kv_length, kv_offset)
        shift, where = int(kv_offset), torch.device(device)
        start = int(q_offset) - shift
        view = View(batch_size, q_length, kv_length, start, shift, use_vmap, where)
        bound = read_function(function, view)
        if q_length == 1 and _may_be_compiled(q_offset, hints):
            _check_plain_tensor(hints.get("config"))
            mask = with_handle(bound, batch_size)
        else:
            mask = MaskTensor(bound, batch_size, device)
    if q_length != 1:  # a single query is never packed
        setattr(mask, ORIGIN, mask_origin(attention_mask, q_length, q_offset, kv_offset))
    return mask


def _check_plain_tensor(config: Any) -> None:
    """Raises Unsupported if the model uses its mask as numbers, which a plain tensor cannot refuse."""
    if config is None:  # the mask is not made for a model
        return
    model_type = getattr(config, "model_type", "")
    # Only the layers of DeepSeek V4 with compressed keys do.
    is_supported = model_type == "deepseek_v4" and not any(
        "compressed" in kind for kind in config.layer_types
    )
    if model_type in UNSUPPORTED_MODELS and not is_supported:
        raise unsupported_model(model_type)
    if not uses_attention_interface(type(config).__module__):
        raise Unsupported(
            "This model does not use the attention interface of transformers. "
            'Load it with attn_implementation="eager".'
        )


def _with_padding(
    function: Callable[..., Any], attention_mask: Any, kv_length: int, kv_offset: int
) -> Callable[..., Any]:
    """The mask function and the padding mask (batch, tokens) of the caller, if there is one."""
    from transformers import masking_utils

    kept = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if kept is None:
        return function
    both: Callable[..., Any] = masking_utils.and_masks(
        function, masking_utils.padding_mask_function(kept)
    )
    return both


def is_compiled(x: torch.Tensor) -> bool:
    """Whether torch.compile traces a call on the CPU, which the operator for graphs computes."""
    return torch.compiler.is_compiling() and not is_exporting() and x.device.type == "cpu"


def _may_be_compiled(q_offset: Any, hints: Mapping[str, Any]) -> bool:
    """Whether the mask may be passed to a compiled decode step, which takes plain tensors only.

    It is made before such a step, for a static cache: its offset is a tensor, and the mask must not be
    left out.
    """
    return isinstance(q_offset, torch.Tensor) or hints.get("allow_is_causal_skip") is False


def _needs_tensor(
    q_length: int, q_offset: Any, device: Any, attention_mask: torch.Tensor | None
) -> bool:
    """Whether the mask is used in traced code, or values cannot be read; both need a tensor."""
    kind = torch.device(device).type
    if is_traced() or is_in_transform() or is_fake_mode() or kind == "meta":
        return True
    if attention_mask is not None and not has_values(attention_mask):
        return True
    # On other devices than the CPU, generate() compiles decode steps with a static cache; their
    # offset is a tensor.
    return isinstance(q_offset, torch.Tensor) and q_length == 1 and kind != "cpu"
