"""Models of transformers: the masks that their config describes, and inputs to run them on.

transformers is not imported: its models are recognized by their attributes.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, Final

import torch

from maskwright.auditing.expectations import SubsetOf
from maskwright.auditing.model_under_test import SIGNALS, accepts_argument, forward_parameters
from maskwright.core.atoms import causal, chunks, dense, everything, padding, window
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from maskwright.core.expr import Mask

LENGTH: Final = 24
BATCH: Final = 2
NUM_PADDED: Final = 7  # positions of padding in the second sequence
SPECIAL_IDS: Final = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
LAYER_TYPES: Final = ("layer_types", "attention_layers", "layers_block_type")  # config attributes
CAUSAL_TEXT_ENCODERS: Final = (  # model types of CLIP, whose configs do not say that they are causal
    *("clip_text_model", "clipseg_text_model", "groupvit_text_model", "metaclip_2_text_model"),
    *("owlvit_text_model", "owlv2_text_model", "xclip_text_model", "aimv2_text_model"),
)
SLIDING: Final = ("sliding_attention", "local", "attention")  # layer types that have the window
FULL: Final = (  # layer types that may attend to everything before, or read it in a state
    *("full_attention", "global", "linear_attention", "mamba", "mamba2", "recurrent", "conv"),
    *("moe", "mlp", "hybrid", "m", "a", "attn"),
)
SELECTING: Final = ("index_topk", "index_topk_blocks", "sparse_attention_config")  # attributes


def is_transformers_model(model: Any) -> bool:
    """Whether this is a model of transformers."""
    config = getattr(model, "config", None)
    return hasattr(config, "model_type") and hasattr(model, "get_input_embeddings")


def make_inputs(model: Any, length: int = LENGTH) -> dict[str, torch.Tensor]:
    """Ids for a model of transformers: two sequences, the second one padded on the right.

    There is no padding if the model accepts no attention_mask.

    Raises:
        ArgumentError: If it is not a model of transformers.
    """
    if not is_transformers_model(model):
        raise ArgumentError(
            "audit: inputs may be omitted only for models of transformers. "
            "Pass a tensor, a tuple of arguments, or a dict of keyword arguments."
        )
    config = model.config.get_text_config()
    vocab_size = getattr(config, "vocab_size", None)
    main = getattr(model, "main_input_name", "input_ids")
    if not isinstance(vocab_size, int) or (main in SIGNALS and not model.config.is_encoder_decoder):
        raise ArgumentError(
            f"audit: {type(model).__name__} reads {main}, which the audit does not generate. "
            "Pass inputs, and output= if the outputs are not one per position."
        )
    special = {getattr(config, name, None) for name in SPECIAL_IDS}
    plain = [n for n in range(min(3, vocab_size - 1), vocab_size) if n not in special]
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> torch.Tensor:
        drawn = torch.randint(len(plain), (BATCH, count), generator=generator)
        return torch.tensor(plain)[drawn]

    ids = draw(length)
    given = {"input_ids": ids}
    if accepts_argument(model, "attention_mask") or not accepts_argument(model, "input_ids"):
        keep = torch.ones_like(ids)
        keep[1, length - min(NUM_PADDED, length // 2) :] = 0
        pad = getattr(config, "pad_token_id", None)
        ids = ids.masked_fill(keep == 0, pad if isinstance(pad, int) and pad >= 0 else 0)
        given = {"input_ids": ids, "attention_mask": keep}
    if _reads_output_at_eos(model):
        given["input_ids"] = _with_eos(ids, given.get("attention_mask"), int(config.eos_token_id))
        given["decoder_input_ids"] = draw(length)
    elif model.config.is_encoder_decoder:
        given["decoder_input_ids"] = draw(max(length - 5, 2))
    if accepts_argument(model, "bbox"):
        given["bbox"] = _boxes(config, generator, length)
    return given


def _reads_output_at_eos(model: Any) -> bool:
    """Whether the only output is that of the decoder at the position of the source's EOS."""
    classifies = type(model).__name__.endswith("ForSequenceClassification")
    has_eos = isinstance(getattr(model.config, "eos_token_id", None), int)
    return bool(model.config.is_encoder_decoder and classifies and has_eos)


def _with_eos(ids: torch.Tensor, keep: torch.Tensor | None, eos: int) -> torch.Tensor:
    """The ids with EOS as the last token of each sequence."""
    ids = ids.clone()
    last = ids.shape[1] if keep is None else keep.sum(1)
    ids[torch.arange(len(ids)), last - 1] = eos
    return ids


def _boxes(config: Any, generator: torch.Generator, length: int) -> torch.Tensor:
    """Bounding boxes of tokens on a page: left, top, right, bottom; relative, or integers."""
    corners = torch.rand(BATCH, length, 2, 2, generator=generator).sort(2).values.flatten(2)
    size = getattr(config, "max_2d_position_embeddings", None)
    return corners if size is None else (corners * size).long()


def expected_masks(model: Any, inputs: Any = None) -> Any:
    """The masks of a model's layers by its config, with the padding of its inputs.

    Raises:
        ArgumentError: If it is not a model of transformers.
    """
    if not is_transformers_model(model):
        raise ArgumentError(
            'audit: expects="auto" reads the config of a model of transformers, and this model has '
            'none. Pass a mask, such as "causal()".'
        )
    config = model.config
    given = inputs.get("attention_mask") if isinstance(inputs, dict) else None
    keep = None
    if isinstance(given, torch.Tensor) and given.dim() == 2 and bool((given == 0).any()):
        keep = given.bool().cpu()
    real = None if keep is None else padding(keep=keep.numpy())
    signals = [name for name in SIGNALS if isinstance(inputs, dict) and name in inputs]
    if config.is_encoder_decoder and signals:
        return {"decoder_input_ids": causal()}
    if config.is_encoder_decoder:
        source = everything() if real is None else real
        # An output at the end of a sequence depends on all of it.
        target = source if _reads_output_at_eos(model) else causal()
        return {"input_ids": source, "decoder_input_ids": target}
    if getattr(config, "model_type", None) == "reformer":
        layers = _reformer_layers(model, inputs)
    else:
        try:
            layers = _layers(model, config.get_text_config(), keep)
        except Exception:  # a config of another kind: what is not known is not required
            layers = [SubsetOf(causal() if is_causal(model) else everything())]
    masks = tuple(mask if real is None else _with_padding(mask, real) for mask in layers)
    return masks if len(set(masks)) > 1 else masks[0]


def _with_padding(mask: Mask | SubsetOf, real: Mask) -> Mask | SubsetOf:
    return SubsetOf(mask.mask & real) if isinstance(mask, SubsetOf) else mask & real


def _reformer_layers(model: Any, inputs: Any) -> list[Mask | SubsetOf]:
    """Reformer: chunks that attend to neighbouring chunks, cyclically, and layers of LSH attention."""
    config = model.config
    own: Mask = causal() if is_causal(model) else everything()
    given = inputs.get("input_ids") if isinstance(inputs, dict) else inputs
    length = int(given.shape[1]) if isinstance(given, torch.Tensor) else LENGTH
    sizes = [getattr(config, f"{name}_attn_chunk_length") for name in set(config.attn_layers)]
    size, multiple = int(config.local_attn_chunk_length), math.lcm(*sizes)
    if length <= min(sizes):
        return [own] * len(config.attn_layers)
    count = math.ceil(length / multiple) * multiple // size
    chunk = torch.arange(length) // size
    back = (chunk[:, None] - chunk) % count
    near = back <= config.local_num_chunks_before
    near |= (-back) % count <= config.local_num_chunks_after
    local = own & dense(near[None, None].numpy())
    return [local if name == "local" else SubsetOf(own) for name in config.attn_layers]


def _layers(model: Any, config: Any, keep: torch.Tensor | None) -> list[Mask | SubsetOf]:
    own: Mask = causal() if is_causal(model) else everything()
    sliding = _sliding_window(config, own)
    types = next((found for name in LAYER_TYPES if (found := getattr(config, name, None))), None)
    if any(getattr(config, name, None) for name in SELECTING) or "block_sparse" in (
        getattr(config, "attention_type", None),
        getattr(config, "attn_type", None),
    ):
        return [SubsetOf(own)]  # an indexer chooses the keys, or blocks are drawn at random
    if not isinstance(types, (list, tuple)) or not types:
        return [sliding if getattr(config, "use_sliding_window", True) else own]
    size = getattr(config, "attention_chunk_size", None)
    chunked = own & _chunks(int(size), keep) if size else own
    masks: dict[str, Mask | SubsetOf] = {
        **dict.fromkeys(SLIDING, sliding),
        **dict.fromkeys(FULL, own),
        "chunked_attention": chunked,
    }
    # A layer of a type that is not known may attend to less.
    return [masks.get(name, SubsetOf(own)) for name in types]


def _sliding_window(config: Any, own: Mask) -> Mask:
    """The mask of layers with a sliding window."""
    size = getattr(config, "sliding_window", None)
    if size is None and hasattr(config, "attention_layers"):
        size = getattr(config, "window_size", None)
    if not isinstance(size, int) or size < 1:
        return own
    if own == causal():
        return window(back=size - 1)
    side = size - 1 if getattr(config, "use_bidirectional_attention", None) else size
    return window(back=side, ahead=side)


def _chunks(size: int, keep: torch.Tensor | None) -> Mask:
    """Chunks, which start at the first token of each sequence, after its padding."""
    if keep is None or bool(keep[:, 0].all()):
        return chunks(size)
    first = keep.int().argmax(1, keepdim=True)
    own = (torch.arange(keep.shape[1]) - first).div(size, rounding_mode="floor")
    return dense((own[:, None, :, None] == own[:, None, None, :]).numpy())


def is_causal(model: Any) -> bool:
    """Whether a model of transformers uses a causal mask.

    Its config may say so. Otherwise a model that generates does; else its attention modules tell,
    or other models in its source file: if these only generate, it is causal.
    """
    config = model.config.get_text_config()
    chosen = forward_parameters(model).get("is_decoder")
    if chosen is not None and isinstance(chosen.default, bool):
        return chosen.default  # an argument of each call: BLIP
    if getattr(model.config, "is_decoder", False) or config.model_type in CAUSAL_TEXT_ENCODERS:
        return True
    if _is_bidirectional(config):
        return False
    if hasattr(model, "can_generate") and model.can_generate():
        return True
    flags = {getattr(part, "is_causal", None) for part in model.modules()} - {None}
    if flags:
        return True in flags
    modules = {sys.modules.get(one.__module__) for one in type(model).__mro__}
    classes = [name for module in modules for name in getattr(module, "__dict__", ())]
    generates = any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in classes)
    return generates and not any(name.endswith("ForMaskedLM") for name in classes)


def _is_bidirectional(config: Any) -> bool:
    """Whether a config says that attention is bidirectional; it has several names for that."""
    return (
        getattr(config, "use_bidirectional_attention", None) in (True, "all")
        or getattr(config, "is_causal", None) is False
        or getattr(config, "causal", None) is False
        or getattr(config, "attn_type", None) == "bi"
    )
