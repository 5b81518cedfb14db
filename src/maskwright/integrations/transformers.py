"""The attention implementation "maskwright" for transformers models.

    from maskwright.integrations.transformers import register

    register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="maskwright")

transformers describes a mask by a function of (batch, head, query, key). `transformers_functions` converts
it to an expression, `transformers_tensor` passes that through the model, and this module computes
attention under it. In graphs of torch.compile, `transformers_graph` does both with operators. The engine
also computes what a layer adds to its scores: `softcap` (Gemma 2), sinks (`s_aux`, gpt-oss) and
`position_bias` (T5, one value per distance). These cases need the mask as a tensor, and are computed by
SDPA, or from dense scores if there is a soft cap or a sink, or within transforms of torch.func:

    float masks of the caller that are no masks: with values other than 0 and the lowest
    in graphs of torch.compile: masks that the caller or the model made, and mask functions of the user
    graphs of torch.compile on other devices than the CPU, of torch.export and of torch.jit.trace
    calls within transforms of torch.func (grad, vmap, jvp), and tensors without values

Models that do not use the attention interface of transformers cannot run on another attention:
`UNSUPPORTED_MODELS` lists them with the reason. They raise an error or ignore the setting.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from functools import lru_cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import torch
from torch.nn import functional

from maskwright._torch_state import autocast, is_in_transform, is_traced
from maskwright.core.atoms import causal, dense, everything
from maskwright.engine.api import attention
from maskwright.engine.call import AttentionOptions
from maskwright.errors import ArgumentError, FrameError, MaskError, MissingError, Unsupported
from maskwright.integrations.tensor_cache import TensorCache
from maskwright.integrations.transformers_bias import PositionBias, read_position_bias
from maskwright.integrations.transformers_dense import (
    LayerInputs,
    MaskInput,
    has_values,
    run_dense,
    run_sdpa,
    run_with_weights,
    wants_weights,
)
from maskwright.integrations.transformers_graph import (
    BOUND,
    HANDLE,
    attend_handle,
    bind_mask,
    pack_in_graph,
)
from maskwright.integrations.transformers_masks import is_compiled, mask_for_layers
from maskwright.integrations.transformers_packing import (
    ORIGIN,
    Origin,
    Packing,
    pack_bound,
    pack_dense,
    read_packing,
)
from maskwright.integrations.transformers_tensor import MaskTensor
from maskwright.integrations.transformers_unsupported import (
    OWN_TABLES,
    UNSUPPORTED_MODELS,
    unsupported_model,
)

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from maskwright.core.bound import BoundMask

__all__ = ["NAME", "UNSUPPORTED_MODELS", "attention_forward", "register"]

NAME: Final = "maskwright"

# Arguments of the attention interface that are not supported.
UNSUPPORTED_ARGUMENTS: Final = {
    "alibi_slopes": "a bias per head",
    "block_indices": "blocks of keys selected in the layer",
    "block_mask": "a BlockMask of FlexAttention",
    "cache": "a paged KV cache, as in continuous batching",
    "head_mask": "a factor per head",
    "indices": "keys selected in the layer",
    "score_mod": "a function that changes scores",
}

MIN_ROWS_TO_READ: Final = 64  # a mask tensor with fewer rows is passed to SDPA as it is

CAUSAL: Final = causal()
_BOUND_BY_TENSOR: Final = TensorCache()  # the bound masks of mask tensors


def register() -> None:
    """Registers the attention implementation "maskwright" for all transformers models.

    Calling it again has no effect.

    Raises:
        MissingError: If transformers is not installed, or is too old.

    >>> import torch
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from maskwright.integrations.transformers import register
    >>> register()
    >>> config = LlamaConfig(
    ...     vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
    ...     num_attention_heads=4, num_key_value_heads=2, attn_implementation="maskwright",
    ... )
    >>> model = LlamaForCausalLM(config).eval()
    >>> tokens = torch.tensor([[0, 0, 5, 7], [3, 1, 4, 1]])
    >>> padding = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    >>> ours = model(tokens, attention_mask=padding).logits
    >>> model.set_attn_implementation("eager")
    >>> theirs = model(tokens, attention_mask=padding).logits
    >>> torch.allclose(ours[padding.bool()], theirs[padding.bool()], atol=1e-5)
    True
    """
    attention_functions, mask_functions = _interfaces()
    attention_functions[NAME] = attention_forward
    mask_functions[NAME] = mask_for_layers
    for model_type, name in OWN_TABLES.items():
        with suppress(Exception):  # a release without this model, or one whose module fails
            module = import_module(f"transformers.models.{name}")
            table = next(x for x in vars(module) if x.endswith("ATTENTION_CLASSES"))
            getattr(module, table)[NAME] = partial(_refuse_model, model_type)


def _refuse_model(model_type: str, *_: object, **__: object) -> NoReturn:
    """Raises Unsupported in place of an attention layer: an entry of `OWN_TABLES`."""
    raise unsupported_model(model_type)


def _interfaces() -> tuple[MutableMapping[str, Any], MutableMapping[str, Any]]:
    """The registries of attention functions and of mask functions of all models."""
    fix = "Run: pip install -U 'maskwright[transformers]'"
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise MissingError(f"register: {error.name} is not installed. {fix}") from error
    try:
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
        from transformers.modeling_utils import AttentionInterface
    except ImportError as error:
        raise MissingError(
            f"register: transformers {transformers.__version__} has no attention interface. {fix}"
        ) from error
    missing = {"q_length", "q_offset", "use_vmap"} - set(inspect.signature(sdpa_mask).parameters)
    if missing:
        raise MissingError(
            f"register: transformers {transformers.__version__} is too old: its mask functions "
            f"have no argument {min(missing)}. {fix}"
        )
    # The mappings that all instances share, so that models with their own instance use them too.
    return AttentionInterface._global_mapping, AttentionMaskInterface._global_mapping


# ── attention ─────────────────────────────────────────────────────────────────────────────────


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention of one layer, with the signature of the attention interface of transformers.

    A sliding window is part of the mask. The second result is the attention weights (batch, heads,
    queries, keys), after dropout, if `output_attentions=True` requests them, and else None. With weights
    the layer is computed from dense scores.

    >>> import torch
    >>> from maskwright.integrations.transformers import attention_forward
    >>> x = torch.ones(1, 2, 3, 4)
    >>> out, weights = attention_forward(torch.nn.Identity(), x, x, x, None)
    >>> out.shape, weights
    (torch.Size([1, 3, 2, 4]), None)
    >>> _, weights = attention_forward(torch.nn.Identity(), x, x, x, None, output_attentions=True)
    >>> weights[0, 0, 1]
    tensor([0.5000, 0.5000, 0.0000])
    """
    layer = LayerInputs(query, key, value, scaling, dropout, softcap, s_aux, position_bias)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
        if attention_mask is None and is_causal and type(module).__name__.startswith("BridgeTower"):
            raise unsupported_model("bridgetower")
    if torch.compiler.is_compiling():
        return _attend_layer(layer, attention_mask, is_causal, kwargs)
    try:
        return _attend_layer(layer, attention_mask, is_causal, kwargs)
    except MaskError as error:
        _name_layer(error, module)
        raise


def _name_layer(error: MaskError, module: torch.nn.Module) -> None:
    """Begin the message of an error with the attention implementation and the layer."""
    index = getattr(module, "layer_idx", None)
    name = type(module).__name__ if index is None else f"{type(module).__name__}, layer {index}"
    message = str(error).removeprefix(f'attn_implementation="{NAME}": ')
    error.args = (f'attn_implementation="{NAME}" ({name}): {message}',)


def _attend_layer(
    layer: LayerInputs,
    attention_mask: torch.Tensor | None,
    is_causal: Any,
    arguments: dict[str, Any],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The output (batch, queries, heads, head_dim) of a layer, and its weights if they are requested."""
    _check_unsupported(arguments)
    query, key, value = autocast(*layer[:3])
    query, scale = _float_scale(query, layer.scale)
    layer = layer._replace(query=query, key=key, value=value, scale=scale)
    with_weights = wants_weights(arguments)
    kv_len = key.shape[2]
    # In a graph, weights are computed with the mask as a tensor.
    needs_tensor = _needs_tensor(query) and (with_weights or not is_compiled(query))
    if attention_mask is None:
        layer, mask_input = _without_mask(layer, bool(is_causal), needs_tensor)
    else:
        mask_input = _read_mask(attention_mask, layer, needs_tensor)
    packing = read_packing(arguments, query.shape[0], query.shape[2])
    origin = Origin(None, 0) if attention_mask is None else getattr(attention_mask, ORIGIN, None)
    # A mask of the caller is complete: position ids do not change it, as those of a tree of tokens.
    if packing is not None and (packing.positions is None or origin is not None):
        mask_input = _pack(mask_input, packing, layer, origin or Origin(None, 0), needs_tensor)
    if not with_weights:
        return _run(layer, mask_input).transpose(1, 2).contiguous(), None
    out, weights = run_with_weights(layer, mask_input)
    if weights.shape[3] < kv_len:  # keys of a static cache that are not written yet
        weights = functional.pad(weights, (0, kv_len - weights.shape[3]))
    return out.transpose(1, 2).contiguous(), weights


def _run(layer: LayerInputs, mask_input: MaskInput) -> torch.Tensor:
    """Computes a layer by the engine, or with a mask tensor where it cannot take the inputs."""
    if is_compiled(layer.query):
        if mask_input.handle is not None:
            return _run_handle(layer, mask_input.handle)
        if mask_input.tensor is None:
            return _run_engine(layer, mask_input, layer.bias)
    elif mask_input.tensor is None and not _needs_tensor(layer.query):
        bias = _engine_bias(layer)
        if bias.is_finite:
            return _run_engine(layer, mask_input, bias.bias)
    if layer.softcap is not None or layer.sinks is not None or _is_transformed():
        return run_dense(layer, mask_input)
    return run_sdpa(layer, mask_input)


def _check_unsupported(kwargs: dict[str, Any]) -> None:
    for name, what in UNSUPPORTED_ARGUMENTS.items():
        if kwargs.get(name) is not None:
            raise Unsupported(
                f'attn_implementation="maskwright": {name}, {what}, is not supported. '
                'Load the model with attn_implementation="eager" or "sdpa".'
            )


def _float_scale(query: torch.Tensor, scale: Any) -> tuple[torch.Tensor, float | None]:
    """The scale as a number; a tensor (a learned scale) is multiplied into the queries instead."""
    return (query * scale, 1.0) if isinstance(scale, torch.Tensor) else (query, scale)


def _needs_tensor(query: torch.Tensor) -> bool:
    """Whether torch.compile or torch.jit.trace is tracing, or values of tensors cannot be read."""
    return is_traced() or not has_values(query)


def _is_transformed() -> bool:
    """Whether torch.func transforms the call outside of a graph; SDPA has no rule for its vmap."""
    return not is_traced() and is_in_transform()


# ── masks ─────────────────────────────────────────────────────────────────────────────────────


def _without_mask(
    layer: LayerInputs, is_causal: bool, needs_tensor: bool
) -> tuple[LayerInputs, MaskInput]:
    """As "sdpa" of transformers without a mask: causal, aligned at the upper left, or no mask."""
    q_len, kv_len = layer.query.shape[2], layer.key.shape[2]
    if not is_causal or q_len == 1:
        return layer, MaskInput()
    if kv_len > q_len:  # prefill of a static cache: the other keys are not written yet
        bias = None if layer.bias is None else layer.bias[..., :q_len]
        key, value = layer.key[:, :, :q_len], layer.value[:, :, :q_len]
        layer, kv_len = layer._replace(key=key, value=value, bias=bias), q_len
    if needs_tensor:
        rows, keys = (torch.arange(n, device=layer.key.device) for n in (q_len, kv_len))
        return layer, MaskInput(tensor=rows[:, None] >= keys)
    if is_compiled(layer.query):
        return layer, MaskInput(mask=CAUSAL, q_start=0)
    return layer, MaskInput(mask=_upper_left(q_len, kv_len))


@lru_cache(maxsize=16)
def _upper_left(q_len: int, kv_len: int) -> BoundMask:
    return CAUSAL.on(q_len, kv_len, q_start=0)


def _read_mask(mask: torch.Tensor, layer: LayerInputs, needs_tensor: bool) -> MaskInput:
    """The mask that the model passed: a `MaskTensor`, or a tensor that the caller made.

    Raises:
        ArgumentError: If it is a tensor of integers.
    """
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ArgumentError(
            f'attn_implementation="maskwright": attention_mask has dtype {mask.dtype}, expected bool '
            "(True for visible keys) or a floating dtype (added to the scores). "
            "Pass attention_mask.bool()."
        )
    if needs_tensor:
        return MaskInput(tensor=mask.cells() if isinstance(mask, MaskTensor) else mask)
    if is_compiled(layer.query):
        handle = getattr(mask, HANDLE, None)
        return MaskInput(tensor=mask) if handle is None else MaskInput(handle=handle)
    q_len, kv_len = layer.query.shape[2], layer.key.shape[2]
    if isinstance(mask, MaskTensor):
        if not isinstance(mask.content, torch.Tensor):
            return _read_bound(mask.content, q_len, kv_len)
        mask = mask.content
    bound = getattr(mask, BOUND, None)
    if bound is not None:
        return _read_bound(bound, q_len, kv_len)
    if q_len < MIN_ROWS_TO_READ or mask.requires_grad or mask.is_inference():
        return MaskInput(tensor=mask)
    bound = _read_tensor(mask, q_len, kv_len)
    return MaskInput(tensor=mask) if bound is None else MaskInput(mask=bound)


def _read_bound(bound: BoundMask, q_len: int, kv_len: int) -> MaskInput:
    """The mask of the model, with the sizes of the layer.

    "sdpa" of transformers leaves out masks that hide no key. Some are shorter or longer than the keys:
    those of Recurrent Gemma's decode steps, and of the caller's padding mask in an encoder.

    Raises:
        FrameError: If it hides keys, and has another number of keys.
    """
    frame = bound.frame
    if frame.kv_len != kv_len:
        if not bound.equals(everything()):
            raise FrameError(
                f'attn_implementation="maskwright": the mask of the model has {frame.kv_len} keys, '
                f"expected the {kv_len} of the layer. Pass an attention_mask for {kv_len} keys; in "
                "generate, omit padding."
            )
        return MaskInput()
    if frame.q_len == 1 != q_len:  # one row for all queries, as of BridgeTower's text
        return MaskInput(mask=dense(bound.dense()).on(q_len, kv_len))
    return MaskInput(mask=bound)


def _read_tensor(tensor: torch.Tensor, q_len: int, kv_len: int) -> BoundMask | None:
    """The bound mask with the cells of a tensor, or None if it has other values; cached per tensor."""
    return _BOUND_BY_TENSOR.get(tensor, (q_len, kv_len), lambda: _read_cells(tensor, q_len, kv_len))


def _read_cells(tensor: torch.Tensor, q_len: int, kv_len: int) -> BoundMask | None:
    if tensor.ndim != 4 or any(
        size not in (1, whole)
        for size, whole in zip(tensor.shape[2:], (q_len, kv_len), strict=True)
    ):
        return None
    visible = tensor
    if tensor.dtype != torch.bool:
        # The lowest number of the dtype gives a weight of 0, except in a fully masked row.
        visible = tensor == 0
        is_mask = bool((visible | (tensor <= torch.finfo(tensor.dtype).min)).all())
        if not is_mask or not bool(visible.any(-1).all()):
            return None
    return dense(visible.cpu().numpy()).on(q_len, kv_len)


def _pack(
    mask_input: MaskInput, packing: Packing, layer: LayerInputs, origin: Origin, needs_tensor: bool
) -> MaskInput:
    """The mask of a layer within the documents of its packing."""
    batch, _, q_len, _ = layer.query.shape
    kv_len = layer.key.shape[2]
    if mask_input.tensor is not None or needs_tensor:
        tensor = pack_dense(mask_input.tensor, packing, layer.query, kv_len, origin)
        return MaskInput(tensor=tensor)
    if is_compiled(layer.query):
        handle = mask_input.handle
        if handle is None:
            formula = "('true',)" if mask_input.mask is None else "('le', 'k', 'q')"
            handle = bind_mask([layer.query], None, formula, [1, q_len, kv_len, 0, 0])
        return MaskInput(handle=pack_in_graph(handle, packing, batch, origin.padding))
    mask = everything().on(q_len, kv_len, q_start=0) if mask_input.mask is None else mask_input.mask
    return MaskInput(mask=pack_bound(cast("BoundMask", mask), packing, batch, origin.padding))


# ── implementations ───────────────────────────────────────────────────────────────────────────


def _engine_bias(layer: LayerInputs) -> PositionBias:
    return PositionBias(None) if layer.bias is None else read_position_bias(layer.bias)


def _run_engine(layer: LayerInputs, mask_input: MaskInput, bias: Any) -> torch.Tensor:
    """`maskwright.attention`, with soft cap, bias and sinks."""
    q, k, v = layer.query, layer.key, layer.value
    out: torch.Tensor = attention(
        q,
        k,
        v,
        mask_input.mask,
        scale=layer.scale,
        softcap=layer.softcap,
        bias=bias,
        sinks=layer.sinks,
        dropout_p=layer.dropout,
        enable_gqa=bool(q.shape[1] != k.shape[1]),
        q_start=mask_input.q_start,
    )
    return out


def _run_handle(layer: LayerInputs, handle: torch.Tensor) -> torch.Tensor:
    """The same in a graph, with the handle of the mask."""
    options = AttentionOptions(
        layer.scale,
        layer.dropout,
        enable_gqa=True,
        softcap=layer.softcap,
        bias=layer.bias,
        sinks=layer.sinks,
    )
    return attend_handle((layer.query, layer.key, layer.value), handle, options)
