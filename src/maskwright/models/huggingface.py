"""Checkpoints of transformers: GPT as GPT2LMHeadModel, Seq2Seq as an EncoderDecoderModel of GPT-2s.

The architectures are the same, so the logits are equal. GPT-2 stores its linear layers transposed
(`Conv1D`), and queries, keys and values in one matrix.

The encoder of an EncoderDecoderModel is a GPT-2 whose config has `is_causal=False`; a version of
transformers that ignores this field runs the encoder with a causal mask.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from maskwright._atomic_write import create_folder, write_atomic
from maskwright._optional_deps import require
from maskwright.core.atoms import causal
from maskwright.core.expr import brief
from maskwright.errors import ArgumentError
from maskwright.models.gpt import GPT, GPTConfig
from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from os import PathLike

    from maskwright.core.expr import Mask

# Values that a GPT-2 config must have, or leave out, for the architecture to be ours.
REQUIRED: Final[dict[str, Any]] = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
}
SIZES: Final = ("n_positions", "n_layer", "n_head", "n_embd")  # in the order of our configs
BLOCK: Final[dict[str, tuple[str, ...]]] = {  # a layer of GPT-2: our layers, concatenated
    "ln_1": ("ln_1",),
    "attn.c_attn": ("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    "attn.c_proj": ("attn.out_proj",),
    "ln_2": ("ln_2",),
    "mlp.c_fc": ("mlp.fc",),
    "mlp.c_proj": ("mlp.proj",),
}
CROSS_BLOCK: Final = BLOCK | {
    "ln_cross_attn": ("ln_cross",),
    "crossattention.q_attn": ("cross_attn.q_proj",),
    "crossattention.c_attn": ("cross_attn.k_proj", "cross_attn.v_proj"),
    "crossattention.c_proj": ("cross_attn.out_proj",),
}


class Stack(NamedTuple):
    """One GPT-2: its prefix in the state dict of transformers and in ours, and its flags."""

    theirs: str
    ours: str
    block: Mapping[str, tuple[str, ...]]
    is_causal: bool
    add_cross_attention: bool

    def names(self, n_layer: int) -> Iterator[tuple[str, list[str]]]:
        """Every weight of GPT-2, and ours of which it is the concatenation."""
        yield f"{self.theirs}wte.weight", [f"{self.ours}token_embedding.weight"]
        yield f"{self.theirs}wpe.weight", [f"{self.ours}position_embedding.weight"]
        layers = {"ln_f": ["ln_f"]}
        for n in range(n_layer):
            for theirs, ours in self.block.items():
                layers[f"h.{n}.{theirs}"] = [f"blocks.{n}.{name}" for name in ours]
        for theirs, names in layers.items():
            for kind in ("weight", "bias"):
                yield f"{self.theirs}{theirs}.{kind}", [f"{self.ours}{x}.{kind}" for x in names]


GPT_STACK: Final = Stack("transformer.", "", BLOCK, True, False)
ENCODER: Final = Stack("encoder.", "encoder.", BLOCK, False, False)
DECODER: Final = Stack("decoder.transformer.", "decoder.", CROSS_BLOCK, True, True)


def load_gpt2(folder: str | PathLike[str], mask: Mask | None = None) -> GPT:
    """Loads a GPT-2 checkpoint: a folder with config.json and model.safetensors.

    Args:
        folder: The folder of the checkpoint.
        mask: Mask of the model; causal by default.

    Returns:
        The model, in eval mode.

    Raises:
        ArgumentError: The folder has no GPT-2, or one of another architecture.

    >>> import tempfile
    >>> from maskwright.models.gpt import GPT, GPTConfig
    >>> from maskwright.models.huggingface import load_gpt2, save_gpt2
    >>> model = GPT(GPTConfig(vocab_size=40, n_layer=1, n_head=2, n_embd=16))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_gpt2(model, folder)
    ...     load_gpt2(folder).config == model.config
    True
    """
    return from_gpt2(*_read_folder(Path(folder)), mask)


def save_gpt2(model: GPT, folder: str | PathLike[str]) -> None:
    """Writes a checkpoint that transformers loads as a GPT2LMHeadModel.

    Args:
        model: The model.
        folder: The folder to write to.

    Raises:
        ArgumentError: The model's mask is not causal.

    >>> import os, tempfile
    >>> from maskwright.models.gpt import GPT, GPTConfig
    >>> from maskwright.models.huggingface import save_gpt2
    >>> model = GPT(GPTConfig(vocab_size=40, n_layer=1, n_head=2, n_embd=16))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_gpt2(model, folder)
    ...     sorted(os.listdir(folder))
    ['config.json', 'model.safetensors']
    """
    _write_folder(Path(folder), *to_gpt2(model))


def from_gpt2(
    config: Mapping[str, Any], weights: Mapping[str, torch.Tensor], mask: Mask | None = None
) -> GPT:
    """A GPT from the config and the state dict of a GPT-2.

    >>> from maskwright.models.gpt import GPT, GPTConfig
    >>> from maskwright.models.huggingface import from_gpt2, to_gpt2
    >>> model = GPT(GPTConfig(vocab_size=40, n_layer=1, n_head=2, n_embd=16))
    >>> from_gpt2(*to_gpt2(model)).config == model.config
    True
    """
    model = GPT(GPTConfig(config["vocab_size"], *_read_sizes(config, GPT_STACK)), mask)
    # The state dict of a GPT2Model has no prefix.
    weights = {f"transformer.{name.removeprefix('transformer.')}": x for name, x in weights.items()}
    _load_weights(model, weights, GPT_STACK)
    return model


def to_gpt2(model: GPT) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The config and the state dict for transformers' GPT2LMHeadModel."""
    _check_gpt2(model)
    config = _make_config(model.config, model.config.vocab_size, GPT_STACK, "GPT2LMHeadModel")
    return config, _export_weights(model, GPT_STACK)


def load_gpt2_encoder_decoder(folder: str | PathLike[str], mask: Mask | None = None) -> Seq2Seq:
    """Loads an EncoderDecoderModel of two GPT-2s: a folder with config.json and model.safetensors.

    Args:
        folder: The folder of the checkpoint.
        mask: Mask of the decoder; causal by default.

    Returns:
        The model, in eval mode.

    Raises:
        ArgumentError: The folder has no such model, or one of another architecture.

    >>> import tempfile
    >>> from maskwright.models.huggingface import load_gpt2_encoder_decoder
    >>> from maskwright.models.huggingface import save_gpt2_encoder_decoder
    >>> from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig
    >>> model = Seq2Seq(Seq2SeqConfig(20, 30, n_layer=1, n_head=2, n_embd=16))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_gpt2_encoder_decoder(model, folder)
    ...     load_gpt2_encoder_decoder(folder).config == model.config
    True
    """
    return from_gpt2_encoder_decoder(*_read_folder(Path(folder)), mask)


def save_gpt2_encoder_decoder(model: Seq2Seq, folder: str | PathLike[str]) -> None:
    """Writes a checkpoint that transformers loads as an EncoderDecoderModel.

    Args:
        model: The model.
        folder: The folder to write to.

    Raises:
        ArgumentError: The model has a pointer, or its mask is not causal.

    >>> import os, tempfile
    >>> from maskwright.models.huggingface import save_gpt2_encoder_decoder
    >>> from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig
    >>> model = Seq2Seq(Seq2SeqConfig(20, 30, n_layer=1, n_head=2, n_embd=16))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_gpt2_encoder_decoder(model, folder)
    ...     sorted(os.listdir(folder))
    ['config.json', 'model.safetensors']
    """
    _write_folder(Path(folder), *to_gpt2_encoder_decoder(model))


def from_gpt2_encoder_decoder(
    config: Mapping[str, Any], weights: Mapping[str, torch.Tensor], mask: Mask | None = None
) -> Seq2Seq:
    """A Seq2Seq from the config and the state dict of an EncoderDecoderModel of two GPT-2s.

    >>> from maskwright.models.huggingface import from_gpt2_encoder_decoder
    >>> from maskwright.models.huggingface import to_gpt2_encoder_decoder
    >>> from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig
    >>> model = Seq2Seq(Seq2SeqConfig(30, 40, n_layer=1, n_head=2, n_embd=16))
    >>> from_gpt2_encoder_decoder(*to_gpt2_encoder_decoder(model)).config == model.config
    True
    """
    if config.get("model_type") != "encoder-decoder":
        raise ArgumentError(
            f"config: expected model_type='encoder-decoder', got {config.get('model_type')!r}. "
            "Pass the config of an EncoderDecoderModel of two GPT-2s."
        )
    encoder, decoder = config["encoder"], config["decoder"]
    sizes = _read_sizes(encoder, ENCODER), _read_sizes(decoder, DECODER)
    if sizes[0] != sizes[1]:
        raise ArgumentError(
            f"config: {', '.join(SIZES)} are {sizes[0]} in the encoder and {sizes[1]} in the "
            "decoder. A Seq2Seq has the same in both."
        )
    model_config = Seq2SeqConfig(
        encoder["vocab_size"],
        decoder["vocab_size"],
        *sizes[0],
        pad_token_id=_token_id(config, "pad_token_id", "pad_token_id"),
        bos_token_id=_token_id(config, "decoder_start_token_id", "bos_token_id"),
        eos_token_id=_token_id(config, "eos_token_id", "eos_token_id"),
    )
    model = Seq2Seq(model_config, mask)
    _load_weights(model, weights, ENCODER, DECODER)
    return model


def to_gpt2_encoder_decoder(model: Seq2Seq) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The config and the state dict for transformers' EncoderDecoderModel."""
    _check_gpt2(model)
    if model.pointer is not None:
        raise ArgumentError(
            "The model has a pointer, which GPT-2 does not have. Make it with use_pointer=False."
        )
    model_config = model.config
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    tokens = {name: getattr(model_config, name) for name in names}
    encoder = _make_config(model_config, model_config.src_vocab_size, ENCODER, "GPT2Model")
    decoder = _make_config(model_config, model_config.tgt_vocab_size, DECODER, "GPT2LMHeadModel")
    config = {
        "model_type": "encoder-decoder",
        "architectures": ["EncoderDecoderModel"],
        "is_encoder_decoder": True,
        "encoder": encoder | tokens,
        "decoder": decoder | {"is_decoder": True} | tokens,
        "decoder_start_token_id": model_config.bos_token_id,
        **tokens,
    }
    return config, _export_weights(model, ENCODER, DECODER)


def _read_sizes(config: Mapping[str, Any], stack: Stack) -> tuple[int, int, int, int]:
    """The `SIZES` of a config; raises if the architecture is another."""
    defaults = REQUIRED | {"is_causal": True, "add_cross_attention": False}
    required = REQUIRED | _flags(stack)
    if config.get("n_inner") is not None:
        required["n_inner"] = 4 * config["n_embd"]
    for name, expected in required.items():
        value = config.get(name, defaults.get(name))
        if value != expected:
            raise ArgumentError(
                f"config: expected {name}={expected!r}, got {name}={value!r}, another architecture. "
                "Run the model with transformers and attn_implementation='maskwright'."
            )
    block_size, n_layer, n_head, n_embd = (int(config[name]) for name in SIZES)
    return block_size, n_layer, n_head, n_embd


def _make_config(
    config: GPTConfig | Seq2SeqConfig, vocab_size: int, stack: Stack, architecture: str
) -> dict[str, Any]:
    sizes = (config.block_size, config.n_layer, config.n_head, config.n_embd)
    return {
        **REQUIRED,
        **_flags(stack),
        "vocab_size": vocab_size,
        **dict(zip(SIZES, sizes, strict=True)),
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), config.dropout),
        "architectures": [architecture],
    }


def _flags(stack: Stack) -> dict[str, Any]:
    return {"is_causal": stack.is_causal, "add_cross_attention": stack.add_cross_attention}


def _load_weights(
    model: GPT | Seq2Seq, weights: Mapping[str, torch.Tensor], *stacks: Stack
) -> None:
    state: dict[str, torch.Tensor] = {}
    try:
        for stack in stacks:
            for theirs, ours in stack.names(model.config.n_layer):
                parts = _transposed(theirs, weights[theirs]).chunk(len(ours))
                state |= zip(ours, parts, strict=True)
        state["lm_head.weight"] = weights[f"{stacks[-1].theirs}wte.weight"]  # tied
        model.load_state_dict(state)
    except (KeyError, RuntimeError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise ArgumentError(
            f"The weights do not match the config: {first_line[:160]}. "
            "Pass the config and the state dict of the same model."
        ) from error


def _export_weights(model: GPT | Seq2Seq, *stacks: Stack) -> dict[str, torch.Tensor]:
    state = {name: x.detach().cpu() for name, x in model.state_dict().items()}
    return {
        theirs: _transposed(theirs, torch.cat([state[name] for name in ours]))
        for stack in stacks
        for theirs, ours in stack.names(model.config.n_layer)
    }


def _transposed(name: str, x: torch.Tensor) -> torch.Tensor:
    """Transposes the matrix of a linear layer; embeddings and vectors stay."""
    is_embedding = name.endswith(("wte.weight", "wpe.weight"))
    return x if x.dim() < 2 or is_embedding else x.T.contiguous()


def _check_gpt2(model: GPT | Seq2Seq) -> None:
    """Raises ArgumentError for a mask or positions that GPT-2 does not have."""
    if model.mask != causal():
        raise ArgumentError(
            f"The model's mask is {brief(model.mask)}, but GPT-2's is causal(): transformers would "
            "run it with another mask. Save its state_dict() instead."
        )
    if model.config.position != "learned":
        raise ArgumentError(
            f'The model has position="{model.config.position}", but GPT-2 has learned position '
            "embeddings. Save its state_dict() instead."
        )


def _token_id(config: Mapping[str, Any], name: str, name_in_decoder: str) -> int:
    for value in (config.get(name), config["decoder"].get(name_in_decoder)):
        if isinstance(value, int):
            return value
    raise ArgumentError(f"config: {name} is missing. Set it to the id of that token.")


def _read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    with require("GPT-2 checkpoints"):
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        weights = load_file(folder / "model.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise ArgumentError(
            f"Cannot load a GPT-2 from {folder}: {str(error)[:160]}. "
            "Pass a folder with config.json and model.safetensors."
        ) from error
    return config, weights


def _write_folder(
    folder: Path, config: Mapping[str, Any], weights: Mapping[str, torch.Tensor]
) -> None:
    with require("GPT-2 checkpoints"):
        from safetensors.torch import save
    create_folder(folder)
    packed = {name: x.contiguous() for name, x in weights.items()}
    write_atomic(folder / "model.safetensors", save(packed, metadata={"format": "pt"}))
    write_atomic(folder / "config.json", json.dumps(config, indent=2) + "\n")
