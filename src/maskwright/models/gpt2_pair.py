"""A Seq2Seq as transformers knows it: an EncoderDecoderModel of two GPT-2s, with the same logits.

The decoder is a GPT-2 with cross-attention. The encoder is a GPT-2 whose config says
`is_causal=False`: every token sees all real ones. A transformers that does not know that word runs
the encoder causally.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from maskwright.errors import ArgumentError
from maskwright.models.gpt2_form import (
    BLOCK,
    CROSS_BLOCK,
    Form,
    Sizes,
    check_causal,
    give_weights,
    read_config,
    read_folder,
    take_weights,
    write_config,
    write_folder,
)
from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from maskwright.core.expr import Mask

ENCODER: Final = Form(
    words="source_words",
    places="source_places",
    blocks="encoder",
    norm="encoder_norm",
    block=BLOCK,
    says={"is_causal": False, "add_cross_attention": False},
)
DECODER: Final = Form(
    words="target_words",
    places="target_places",
    blocks="decoder",
    norm="decoder_norm",
    block=CROSS_BLOCK,
    says={"is_causal": True, "add_cross_attention": True},
)
FORMS: Final = {"encoder.": ENCODER, "decoder.transformer.": DECODER}


def from_gpt2_pair(
    config: Mapping[str, Any], weights: Mapping[str, torch.Tensor], mask: Mask | None = None
) -> Seq2Seq:
    """A Seq2Seq with the weights of two GPT-2s, of which `config` is the dictionary.

    >>> from maskwright.models.gpt2_pair import from_gpt2_pair, to_gpt2_pair
    >>> from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig
    >>> model = Seq2Seq(Seq2SeqConfig(30, 40, context=16, width=16, heads=2, layers=1))
    >>> from_gpt2_pair(*to_gpt2_pair(model)).config == model.config
    True
    """
    if config.get("model_type") != "encoder-decoder":
        raise ArgumentError(
            f"This config has model_type={config.get('model_type')!r}. "
            "Give that of an EncoderDecoderModel of two GPT-2s."
        )
    encoder = read_config(config["encoder"], ENCODER)
    decoder = read_config(config["decoder"], DECODER)
    if encoder[1:] != decoder[1:]:
        raise ArgumentError(
            f"The encoder has {encoder} and the decoder {decoder}, and a Seq2Seq has both alike. "
            "Give a pair that differs in vocabulary only."
        )
    made = Seq2SeqConfig(
        encoder.vocabulary,
        *decoder,
        pad=_token(config, "pad_token_id", "pad_token_id"),
        begin=_token(config, "decoder_start_token_id", "bos_token_id"),
        end=_token(config, "eos_token_id", "eos_token_id"),
    )
    model = Seq2Seq(made, mask)
    take_weights(model, weights, FORMS, made.layers)
    return model


def to_gpt2_pair(model: Seq2Seq) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The config and the weights, as transformers' EncoderDecoderModel takes them."""
    check_causal(model.mask)
    if model.pointer is not None:
        raise ArgumentError(
            "The model copies from its source, which two GPT-2s don't. Make it with copies=False."
        )
    made = model.config
    alike = (made.context, made.width, made.heads, made.layers)
    tokens = {"pad_token_id": made.pad, "bos_token_id": made.begin, "eos_token_id": made.end}
    encoder = write_config(Sizes(made.source_vocabulary, *alike), ENCODER, made.dropout)
    decoder = write_config(Sizes(made.target_vocabulary, *alike), DECODER, made.dropout)
    config = {
        "model_type": "encoder-decoder",
        "architectures": ["EncoderDecoderModel"],
        "is_encoder_decoder": True,
        "encoder": {**encoder, "architectures": ["GPT2Model"], **tokens},
        "decoder": {**decoder, "architectures": ["GPT2LMHeadModel"], "is_decoder": True, **tokens},
        "decoder_start_token_id": made.begin,
        **tokens,
    }
    return config, give_weights(model, FORMS, made.layers)


def load_gpt2_pair(folder: Path, mask: Mask | None = None) -> Seq2Seq:
    """A checkpoint of two GPT-2s that lies in a folder: config.json and model.safetensors.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from maskwright.models.gpt2_pair import load_gpt2_pair, save_gpt2_pair
    >>> from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig
    >>> model = Seq2Seq(Seq2SeqConfig(20, 30, context=8, width=16, heads=2, layers=1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_gpt2_pair(model, Path(folder))
    ...     load_gpt2_pair(Path(folder)).config == model.config
    True
    """
    return from_gpt2_pair(*read_folder(folder), mask)


def save_gpt2_pair(model: Seq2Seq, folder: Path) -> None:
    """Write a checkpoint that transformers can load as an EncoderDecoderModel.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from maskwright.models.gpt2_pair import save_gpt2_pair
    >>> from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig
    >>> model = Seq2Seq(Seq2SeqConfig(20, 30, context=8, width=16, heads=2, layers=1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_gpt2_pair(model, Path(folder))
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['config.json', 'model.safetensors']
    """
    write_folder(folder, *to_gpt2_pair(model))


def _token(config: Mapping[str, Any], name: str, in_decoder: str) -> int:
    """An id that the config gives, or else its decoder."""
    for found in (config.get(name), config["decoder"].get(in_decoder)):
        if isinstance(found, int):
            return found
    raise ArgumentError(f"The config has no {name}. Put the id of that token into it.")
