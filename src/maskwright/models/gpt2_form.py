"""The form of a GPT-2 checkpoint: its names for our layers, its config, and its files.

GPT-2 keeps its linear layers turned around, and queries, keys and values in one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from maskwright._atomic_write import write_atomic
from maskwright._optional_deps import require
from maskwright.core.atoms import causal
from maskwright.core.expr import brief
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import nn

    from maskwright.core.expr import Mask

# What a config must say, or leave to its default, for the architecture to be the same.
SAME: Final[dict[str, Any]] = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
}
BLOCK: Final[dict[str, tuple[str, ...]]] = {  # theirs: what of ours stands in it
    "ln_1": ("norm_attend",),
    "attn.c_attn": ("attend.query", "attend.key", "attend.value"),
    "attn.c_proj": ("attend.mix",),
    "ln_2": ("norm_think",),
    "mlp.c_fc": ("widen",),
    "mlp.c_proj": ("narrow",),
}
CROSS_BLOCK: Final = BLOCK | {
    "ln_cross_attn": ("norm_cross",),
    "crossattention.q_attn": ("cross.query",),
    "crossattention.c_attn": ("cross.key", "cross.value"),
    "crossattention.c_proj": ("cross.mix",),
}


class Form(NamedTuple):
    """What a GPT-2 is called in one of our models, and what its config says beyond `SAME`."""

    words: str
    places: str
    blocks: str
    norm: str
    block: Mapping[str, tuple[str, ...]]
    says: Mapping[str, bool]


class Sizes(NamedTuple):
    """How large a GPT-2 is."""

    vocabulary: int
    context: int
    width: int
    heads: int
    layers: int


def read_config(config: Mapping[str, Any], form: Form) -> Sizes:
    """The sizes that a config gives; refused if the architecture is another."""
    for name, good in {**SAME, **form.says}.items():
        # What a config leaves out is as usual: causal, and without cross-attention.
        usual = {"is_causal": True, "add_cross_attention": False}.get(name, good)
        _check_same(name, config.get(name, usual), good)
    width = int(config["n_embd"])
    if config.get("n_inner") is not None:
        _check_same("n_inner", config["n_inner"], 4 * width)
    names = ("vocab_size", "n_positions", "n_embd", "n_head", "n_layer")
    return Sizes(*(int(config[name]) for name in names))


def write_config(sizes: Sizes, form: Form, dropout: float) -> dict[str, Any]:
    """The config of a GPT-2 of these sizes."""
    names = ("vocab_size", "n_positions", "n_embd", "n_head", "n_layer")
    rates = ("attn_pdrop", "embd_pdrop", "resid_pdrop")
    sized = dict(zip(names, sizes, strict=True))
    return {**SAME, **form.says, **sized, **dict.fromkeys(rates, dropout)}


def take_weights(
    model: nn.Module, held: Mapping[str, torch.Tensor], forms: Mapping[str, Form], layers: int
) -> None:
    """Load their weights; each form's lie under the prefix that is its key."""
    found: dict[str, torch.Tensor] = {}
    try:
        for prefix, form in forms.items():
            for theirs, ours in _names(form, layers):
                x = held[prefix + theirs]
                parts = [x] if _is_table(theirs) else _turned(x).chunk(len(ours))
                found |= zip(ours, parts, strict=True)
        model.load_state_dict(found)
    except (KeyError, RuntimeError, ValueError) as error:
        told = str(error).strip().splitlines()[0]
        raise ArgumentError(
            f"The weights are not those of this GPT-2: {told[:160]}. "
            "Give those that belong to its config."
        ) from error


def give_weights(
    model: nn.Module, forms: Mapping[str, Form], layers: int
) -> dict[str, torch.Tensor]:
    """Our weights under their names; each form's get the prefix that is its key."""
    held = {name: x.detach().cpu() for name, x in model.state_dict().items()}
    weights: dict[str, torch.Tensor] = {}
    for prefix, form in forms.items():
        for theirs, ours in _names(form, layers):
            x = torch.cat([held[name] for name in ours])
            weights[prefix + theirs] = x if _is_table(theirs) else _turned(x)
    return weights


def check_causal(mask: Mask) -> None:
    """Refuse a model under another mask than GPT-2's: elsewhere it would run under that."""
    if mask != causal():
        raise ArgumentError(
            f"This model is under {brief(mask)}, and a GPT-2 is under causal(). "
            "Save its state_dict() instead."
        )


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """A checkpoint's config and weights: config.json and model.safetensors."""
    with require("GPT-2 checkpoints"):
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        weights = load_file(folder / "model.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise ArgumentError(
            f"{folder} holds no GPT-2: {str(error)[:160]}. Name a folder with config.json and "
            "model.safetensors."
        ) from error
    return config, weights


def write_folder(
    folder: Path, config: Mapping[str, Any], weights: Mapping[str, torch.Tensor]
) -> None:
    """A checkpoint that transformers can load."""
    with require("GPT-2 checkpoints"):
        from safetensors.torch import save
    folder.mkdir(parents=True, exist_ok=True)
    packed = {name: x.contiguous() for name, x in weights.items()}
    write_atomic(folder / "model.safetensors", save(packed, metadata={"format": "pt"}))
    write_atomic(folder / "config.json", json.dumps(config, indent=2) + "\n")


def _names(form: Form, layers: int) -> list[tuple[str, list[str]]]:
    """Every weight of theirs, and those of ours that stand in it."""
    pairs = [("wte.weight", [f"{form.words}.weight"]), ("wpe.weight", [f"{form.places}.weight"])]
    for kind in ("weight", "bias"):
        pairs.append((f"ln_f.{kind}", [f"{form.norm}.{kind}"]))
        pairs += [
            (f"h.{n}.{theirs}.{kind}", [f"{form.blocks}.{n}.{name}.{kind}" for name in ours])
            for n in range(layers)
            for theirs, ours in form.block.items()
        ]
    return pairs


def _is_table(theirs: str) -> bool:
    """Is it an embedding, which is kept as ours are?"""
    return theirs in ("wte.weight", "wpe.weight")


def _turned(x: torch.Tensor) -> torch.Tensor:
    """A matrix turned around; a bias stays as it is."""
    return x.T.contiguous() if x.dim() == 2 else x


def _check_same(name: str, given: object, good: object) -> None:
    if given != good:
        raise ArgumentError(
            f"This GPT-2 has {name}={given!r}, and a model here has {good!r}. "
            "Run it with transformers, by attn_implementation='maskwright'."
        )
