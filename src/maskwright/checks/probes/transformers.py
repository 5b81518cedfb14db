"""Models of transformers: what their config says about their masks, and inputs to run them on.

Nothing is imported: a model is known by what it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskwright.core.atoms import causal, chunks, everything, padding, window
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from maskwright.core.mask import Mask

LENGTH = 24
SEQUENCES = 2
SHORTER = 7  # positions of padding in the second sequence


def is_one(model: Any) -> bool:
    """Is this a model of transformers?"""
    config = getattr(model, "config", None)
    return hasattr(config, "model_type") and hasattr(model, "get_input_embeddings")


def inputs_of(model: Any, length: int = LENGTH) -> dict[str, torch.Tensor]:
    """Ids for a model of transformers: two sequences, the second padded at its end."""
    if not is_one(model):
        raise ArgumentError(
            "audit: inputs were left out, which only models of transformers allow. "
            "Give a tensor, a tuple of arguments, or a dict of keyword arguments."
        )
    config = model.config.get_text_config()
    words = int(config.vocab_size)
    taken = {
        getattr(config, name, None) for name in ("pad_token_id", "bos_token_id", "eos_token_id")
    }
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(min(3, words - 1), words, (SEQUENCES, length), generator=source)
    for special in taken:
        if isinstance(special, int):
            ids[ids == special] = (special + 7) % words
    keep = torch.ones_like(ids)
    keep[1, length - SHORTER :] = 0
    pad = getattr(config, "pad_token_id", None)
    ids = ids.masked_fill(keep == 0, pad if isinstance(pad, int) and pad >= 0 else 0)
    given = {"input_ids": ids, "attention_mask": keep}
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = torch.randint(
            min(3, words - 1), words, (SEQUENCES, length - 5), generator=source
        )
    return given


def expectation_of(model: Any, inputs: Any = None) -> Any:
    """The masks of a model's layers, by its config; and the padding of its inputs."""
    if not is_one(model):
        raise ArgumentError(
            'audit: expects="auto" asks the config of a model of transformers, and this is none. '
            'Give a mask, such as "causal()".'
        )
    config = model.config
    keep = inputs.get("attention_mask") if isinstance(inputs, dict) else None
    real = None
    if isinstance(keep, torch.Tensor) and keep.dim() == 2 and bool((keep == 0).any()):
        real = padding(keep=keep.bool().numpy())

    def padded(mask: Mask) -> Mask:
        return mask if real is None else mask & real

    if config.is_encoder_decoder:
        source = everything() if real is None else real
        return {"input_ids": source, "decoder_input_ids": causal()}
    masks = tuple(padded(mask) for mask in _layers(model, config.get_text_config()))
    return masks if len(set(masks)) > 1 else masks[0]


def _layers(model: Any, config: Any) -> list[Mask]:
    forward = is_causal(model)
    own: Mask = causal() if forward else everything()
    kinds = getattr(config, "layer_types", None)
    wide = getattr(config, "sliding_window", None)
    if not kinds:
        used = getattr(config, "use_sliding_window", True)
        return [window(back=int(wide) - 1) if forward and wide and used else own]
    found = []
    for kind in kinds:
        if kind == "sliding_attention" and wide:
            both = int(wide) // 2 if not hasattr(config, "local_attention") else None
            side = int(config.local_attention) // 2 if both is None else both
            found.append(window(back=int(wide) - 1) if forward else window(back=side, ahead=side))
        elif kind == "chunked_attention" and getattr(config, "attention_chunk_size", None):
            found.append(own & chunks(int(config.attention_chunk_size)))
        else:
            found.append(own)
    return found


def is_causal(model: Any) -> bool:
    """Does it hide the future? A model that generates does; else its attention says so itself."""
    if getattr(model.config, "is_decoder", False):
        return True
    if hasattr(model, "can_generate") and model.can_generate():
        return True
    said = [getattr(part, "is_causal", None) for part in model.modules()]
    return True in said
