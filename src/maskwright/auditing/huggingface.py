"""Models of transformers: what their config says about their masks, and inputs to run them on.

Nothing is imported: a model is known by what it has.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import torch

from maskwright.auditing.expectations import Some
from maskwright.auditing.model_under_test import takes
from maskwright.core.atoms import causal, chunks, dense, everything, padding, window
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from maskwright.core.expr import Mask

LENGTH = 24
SEQUENCES = 2
SHORTER = 7  # positions of padding in the second sequence
SPECIAL = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
KINDS = ("layer_types", "attention_layers", "layers_block_type")  # where a config lists its layers
NEAR = ("sliding_attention", "local", "attention")  # and calls those that have the window


def is_one(model: Any) -> bool:
    """Is this a model of transformers?"""
    config = getattr(model, "config", None)
    return hasattr(config, "model_type") and hasattr(model, "get_input_embeddings")


def inputs_of(model: Any, length: int = LENGTH) -> dict[str, torch.Tensor]:
    """Ids for a model of transformers: two sequences, the second padded at its end.

    There is no padding where the model has no way to be told of it.
    """
    if not is_one(model):
        raise ArgumentError(
            "audit: inputs were left out, which only models of transformers allow. "
            "Give a tensor, a tuple of arguments, or a dict of keyword arguments."
        )
    config = model.config.get_text_config()
    words = int(config.vocab_size)
    special = {getattr(config, name, None) for name in SPECIAL}
    plain = [word for word in range(min(3, words - 1), words) if word not in special]
    source = torch.Generator().manual_seed(0)

    def draw(count: int) -> torch.Tensor:
        drawn = torch.randint(len(plain), (SEQUENCES, count), generator=source)
        return torch.tensor(plain)[drawn]

    ids = draw(length)
    given = {"input_ids": ids}
    if takes(model, "attention_mask") or not takes(model, "input_ids"):
        keep = torch.ones_like(ids)
        keep[1, length - min(SHORTER, length // 2) :] = 0
        pad = getattr(config, "pad_token_id", None)
        ids = ids.masked_fill(keep == 0, pad if isinstance(pad, int) and pad >= 0 else 0)
        given = {"input_ids": ids, "attention_mask": keep}
    if _ends_it(model):
        given["input_ids"] = _with_ends(ids, given.get("attention_mask"), int(config.eos_token_id))
        given["decoder_input_ids"] = draw(length)
    elif model.config.is_encoder_decoder:
        given["decoder_input_ids"] = draw(max(length - 5, 2))
    if takes(model, "bbox"):
        given["bbox"] = _boxes(config, source, length)
    return given


def _ends_it(model: Any) -> bool:
    """Is its one output that of the decoder where the source has its end, at the same place?"""
    judges = type(model).__name__.endswith("ForSequenceClassification")
    ends = isinstance(getattr(model.config, "eos_token_id", None), int)
    return bool(model.config.is_encoder_decoder and judges and ends)


def _with_ends(ids: torch.Tensor, keep: torch.Tensor | None, end: int) -> torch.Tensor:
    """Every sequence with an end as its last real token."""
    ids = ids.clone()
    last = ids.shape[1] if keep is None else keep.sum(1)
    ids[torch.arange(len(ids)), last - 1] = end
    return ids


def _boxes(config: Any, source: torch.Generator, length: int) -> torch.Tensor:
    """Where on a page each token stands: left, top, right, bottom; in parts of it, or whole numbers."""
    corners = torch.rand(SEQUENCES, length, 2, 2, generator=source).sort(2).values.flatten(2)
    most = getattr(config, "max_2d_position_embeddings", None)
    return corners if most is None else (corners * most).long()


def expectation_of(model: Any, inputs: Any = None) -> Any:
    """The masks of a model's layers, by its config; and the padding of its inputs."""
    if not is_one(model):
        raise ArgumentError(
            'audit: expects="auto" asks the config of a model of transformers, and this is none. '
            'Give a mask, such as "causal()".'
        )
    config = model.config
    given = inputs.get("attention_mask") if isinstance(inputs, dict) else None
    keep = None
    if isinstance(given, torch.Tensor) and given.dim() == 2 and bool((given == 0).any()):
        keep = given.bool().cpu()
    real = None if keep is None else padding(keep=keep.numpy())
    if config.is_encoder_decoder:
        source = everything() if real is None else real
        # An output at the end of a sequence knows of all of it.
        target = source if _ends_it(model) else causal()
        return {"input_ids": source, "decoder_input_ids": target}
    if getattr(config, "model_type", None) == "reformer":
        layers = _hashed_layers(model, inputs)
    else:
        layers = _layers(model, config.get_text_config(), keep)
    masks = tuple(mask if real is None else _joined(mask, real) for mask in layers)
    return masks if len(set(masks)) > 1 else masks[0]


def _joined(mask: Mask | Some, real: Mask) -> Mask | Some:
    return Some(mask.mask & real) if isinstance(mask, Some) else mask & real


def _hashed_layers(model: Any, inputs: Any) -> list[Mask | Some]:
    """Reformer's: chunks that see those beside them, in a circle; and some chosen by hashes."""
    config = model.config
    own: Mask = causal() if is_causal(model) else everything()
    given = inputs.get("input_ids") if isinstance(inputs, dict) else inputs
    length = int(given.shape[1]) if isinstance(given, torch.Tensor) else LENGTH
    sizes = [getattr(config, f"{kind}_attn_chunk_length") for kind in set(config.attn_layers)]
    size, whole = int(config.local_attn_chunk_length), math.lcm(*sizes)
    if length <= min(sizes):
        return [own] * len(config.attn_layers)
    count = math.ceil(length / whole) * whole // size
    at = torch.arange(length) // size
    back = (at[:, None] - at) % count
    near = back <= config.local_num_chunks_before
    near |= (-back) % count <= config.local_num_chunks_after
    local = own & dense(near[None, None].numpy())
    return [local if kind == "local" else Some(own) for kind in config.attn_layers]


def _layers(model: Any, config: Any, keep: torch.Tensor | None) -> list[Mask | Some]:
    own: Mask = causal() if is_causal(model) else everything()
    near = _near(config, own)
    kinds = next((found for name in KINDS if (found := getattr(config, name, None))), None)
    if not kinds:
        return [near if getattr(config, "use_sliding_window", True) else own]
    size = getattr(config, "attention_chunk_size", None)
    apart = own & _chunks(int(size), keep) if size else own
    return [
        near if kind in NEAR else apart if kind == "chunked_attention" else own for kind in kinds
    ]


def _near(config: Any, own: Mask) -> Mask:
    """The window of those layers that have one."""
    wide = getattr(config, "sliding_window", None)
    if wide is None and hasattr(config, "attention_layers"):
        wide = getattr(config, "window_size", None)
    if not isinstance(wide, int) or wide < 1:
        return own
    if own == causal():
        return window(back=wide - 1)
    side = wide - 1 if getattr(config, "use_bidirectional_attention", None) else wide
    return window(back=side, ahead=side)


def _chunks(size: int, keep: torch.Tensor | None) -> Mask:
    """Chunks are counted from each sequence's first token, behind its padding."""
    if keep is None or bool(keep[:, 0].all()):
        return chunks(size)
    first = keep.int().argmax(1, keepdim=True)
    own = (torch.arange(keep.shape[1]) - first).div(size, rounding_mode="floor")
    return dense((own[:, None, :, None] == own[:, None, None, :]).numpy())


def is_causal(model: Any) -> bool:
    """Does it hide the future?

    Its config may say so. If not, a model that generates does; else its attention tells, or other
    models of its kind: those that only ever generate do.
    """
    config = model.config.get_text_config()
    if getattr(model.config, "is_decoder", False):
        return True
    if _sees_all(config):
        return False
    if hasattr(model, "can_generate") and model.can_generate():
        return True
    said = {getattr(part, "is_causal", None) for part in model.modules()} - {None}
    if said:
        return True in said
    homes = {sys.modules.get(kind.__module__) for kind in type(model).__mro__}
    kin = [name for home in homes for name in getattr(home, "__dict__", ())]
    makes = any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in kin)
    return makes and not any(name.endswith("ForMaskedLM") for name in kin)


def _sees_all(config: Any) -> bool:
    """Does its config say that the future is not hidden? There are several words for it."""
    return (
        getattr(config, "use_bidirectional_attention", None) in (True, "all")
        or getattr(config, "is_causal", None) is False
        or getattr(config, "causal", None) is False
        or getattr(config, "attn_type", None) == "bi"
    )
