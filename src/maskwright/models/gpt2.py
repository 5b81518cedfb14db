"""GPT-2's weights, as Hugging Face keeps them, into a GPT and back.

The architecture is the same, so the logits are. Only the names differ, and that GPT-2 keeps its
linear layers turned around and queries, keys and values in one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import torch

from maskwright.core.files import write_whole
from maskwright.errors import ArgumentError
from maskwright.models.gpt import GPT, GPTConfig

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from maskwright.core.mask import Mask

# What a config must say, or leave to its default, for the architecture to be the same.
SAME: Final[dict[str, tuple[Any, ...]]] = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new",),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}
TURNED: Final = {"attend.mix": "attn.c_proj", "widen": "mlp.c_fc", "narrow": "mlp.c_proj"}
NORMS: Final = {"norm_attend": "ln_1", "norm_think": "ln_2"}
PARTS: Final = ("query", "key", "value")


def from_gpt2(
    config: Mapping[str, Any], weights: Mapping[str, torch.Tensor], mask: Mask | None = None
) -> GPT:
    """A GPT with the weights of a GPT-2, of which `config` is the dictionary.

    >>> from maskwright.models.gpt import GPT, GPTConfig
    >>> from maskwright.models.gpt2 import from_gpt2, to_gpt2
    >>> model = GPT(GPTConfig(vocabulary=40, context=16, width=16, heads=2, layers=1))
    >>> from_gpt2(*to_gpt2(model)).config == model.config
    True
    """
    for name, good in SAME.items():
        if config.get(name, good[0]) not in good:
            raise ArgumentError(
                f"This GPT-2 has {name}={config[name]!r}, and a GPT here has {good[0]!r}. "
                "Run it with transformers, by attn_implementation='maskwright'."
            )
    width = int(config["n_embd"])
    if config.get("n_inner") not in (None, 4 * width):
        raise ArgumentError(
            f"This GPT-2 has n_inner={config['n_inner']}, and a GPT here has {4 * width}. "
            "Run it with transformers, by attn_implementation='maskwright'."
        )
    made = GPTConfig(
        int(config["vocab_size"]),
        int(config["n_positions"]),
        width,
        int(config["n_head"]),
        int(config["n_layer"]),
    )
    model = GPT(made, mask)
    held = {name.removeprefix("transformer."): x for name, x in weights.items()}
    try:
        model.load_state_dict(dict(_ours(held, made.layers)))
    except (KeyError, RuntimeError) as error:
        told = str(error).strip().splitlines()[0]
        raise ArgumentError(f"The weights are not those of this GPT-2: {told[:160]}.") from error
    return model


def to_gpt2(model: GPT) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The config and the weights, as transformers' GPT2LMHeadModel takes them."""
    made = model.config
    config = {
        **{name: good[0] for name, good in SAME.items()},
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": made.vocabulary,
        "n_positions": made.context,
        "n_embd": made.width,
        "n_head": made.heads,
        "n_layer": made.layers,
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), made.dropout),
    }
    held = {name: x.detach().cpu() for name, x in model.state_dict().items()}
    weights = {"transformer.wte.weight": held["words.weight"]}
    weights["transformer.wpe.weight"] = held["places.weight"]
    for kind in ("weight", "bias"):
        weights[f"transformer.ln_f.{kind}"] = held[f"norm.{kind}"]
        for n in range(made.layers):
            ours, theirs = f"blocks.{n}.", f"transformer.h.{n}."
            for own, name in NORMS.items():
                weights[f"{theirs}{name}.{kind}"] = held[f"{ours}{own}.{kind}"]
            for own, name in TURNED.items():
                weights[f"{theirs}{name}.{kind}"] = _turned(held[f"{ours}{own}.{kind}"])
            joined = torch.cat([held[f"{ours}attend.{part}.{kind}"] for part in PARTS])
            weights[f"{theirs}attn.c_attn.{kind}"] = _turned(joined)
    return config, weights


def load_gpt2(folder: Path, mask: Mask | None = None) -> GPT:
    """A GPT-2 checkpoint that lies in a folder: config.json and model.safetensors."""
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
    return from_gpt2(config, weights, mask)


def save_gpt2(model: GPT, folder: Path) -> None:
    """Write a checkpoint that transformers can load."""
    from safetensors.torch import save

    config, weights = to_gpt2(model)
    folder.mkdir(parents=True, exist_ok=True)
    packed = {name: x.contiguous() for name, x in weights.items()}
    write_whole(folder / "model.safetensors", save(packed, metadata={"format": "pt"}))
    write_whole(folder / "config.json", json.dumps(config, indent=2) + "\n")


def _ours(held: Mapping[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    """Their weights under our names."""
    found = {"words.weight": held["wte.weight"], "places.weight": held["wpe.weight"]}
    for kind in ("weight", "bias"):
        found[f"norm.{kind}"] = held[f"ln_f.{kind}"]
        for n in range(layers):
            ours, theirs = f"blocks.{n}.", f"h.{n}."
            for own, name in NORMS.items():
                found[f"{ours}{own}.{kind}"] = held[f"{theirs}{name}.{kind}"]
            for own, name in TURNED.items():
                found[f"{ours}{own}.{kind}"] = _turned(held[f"{theirs}{name}.{kind}"])
            joined = _turned(held[f"{theirs}attn.c_attn.{kind}"])
            for part, x in zip(PARTS, joined.chunk(3), strict=True):
                found[f"{ours}attend.{part}.{kind}"] = x
    return found


def _turned(x: torch.Tensor) -> torch.Tensor:
    """A matrix turned around; a bias stays as it is."""
    return x.T.contiguous() if x.dim() == 2 else x
