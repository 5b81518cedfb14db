"""GPT-2's weights, as Hugging Face keeps them, into a GPT and back.

The architecture is the same, so the logits are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from maskwright.models.gpt import GPT, GPTConfig
from maskwright.models.gpt2_form import (
    BLOCK,
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

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from maskwright.core.expr import Mask

ALONE: Final = Form(
    words="words",
    places="places",
    blocks="blocks",
    norm="norm",
    block=BLOCK,
    says={"is_causal": True, "add_cross_attention": False},
)


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
    model = GPT(GPTConfig(*read_config(config, ALONE)), mask)
    held = {name.removeprefix("transformer."): x for name, x in weights.items()}
    take_weights(model, held, {"": ALONE}, model.config.layers)
    return model


def to_gpt2(model: GPT) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The config and the weights, as transformers' GPT2LMHeadModel takes them."""
    check_causal(model.mask)
    made = model.config
    sizes = Sizes(made.vocabulary, made.context, made.width, made.heads, made.layers)
    config = write_config(sizes, ALONE, made.dropout) | {"architectures": ["GPT2LMHeadModel"]}
    return config, give_weights(model, {"transformer.": ALONE}, made.layers)


def load_gpt2(folder: Path, mask: Mask | None = None) -> GPT:
    """A GPT-2 checkpoint that lies in a folder: config.json and model.safetensors.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from maskwright.models.gpt import GPT, GPTConfig
    >>> from maskwright.models.gpt2 import load_gpt2, save_gpt2
    >>> model = GPT(GPTConfig(vocabulary=40, context=16, width=16, heads=2, layers=1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_gpt2(model, Path(folder))
    ...     load_gpt2(Path(folder)).config == model.config
    True
    """
    return from_gpt2(*read_folder(folder), mask)


def save_gpt2(model: GPT, folder: Path) -> None:
    """Write a checkpoint that transformers can load.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from maskwright.models.gpt import GPT, GPTConfig
    >>> from maskwright.models.gpt2 import save_gpt2
    >>> model = GPT(GPTConfig(vocabulary=40, context=16, width=16, heads=2, layers=1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_gpt2(model, Path(folder))
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['config.json', 'model.safetensors']
    """
    write_folder(folder, *to_gpt2(model))
