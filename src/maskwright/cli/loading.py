"""Loading what the command line names: a model by its module and name, or a local one of transformers.

What may enter here: from text to a model, and inputs for it. Nothing is downloaded.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import nn

from maskwright.auditing.expectations import expect, read_expects
from maskwright.auditing.huggingface import LENGTH, inputs_of, is_one
from maskwright.auditing.model_under_test import takes
from maskwright.auditing.probes.answer import brief
from maskwright.core._optional_deps import require
from maskwright.core.expr import Mask
from maskwright.core.validate import describe_type
from maskwright.errors import ArgumentError, MaskError
from maskwright.tracing.trace import trace

if TYPE_CHECKING:
    from maskwright.tracing.trace import Trace

SEQUENCES: Final = 2
WEIGHTS: Final = ("*.safetensors", "pytorch_model*.bin")
GENERATES: Final = ("ForCausalLM", "LMHeadModel")


class Loaded(NamedTuple):
    """A model, and the inputs that came with it, if any did."""

    model: Any
    inputs: Any = None


def load(target: str, seed: int = 0) -> Loaded:
    """The model that a text names: `module:attribute`, or `hf:PATH`.

    >>> load("torch.nn:Identity").model
    Identity()
    >>> load("torch.nn:Identiti")
    Traceback (most recent call last):
    maskwright.errors.ArgumentError: torch.nn has no Identiti. Did you mean Identity?
    """
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise ArgumentError(f"{target!r} names no model. Write module:attribute, or hf:PATH.")
    if module == "hf":
        return Loaded(_of_transformers(Path(name), seed))
    torch.manual_seed(seed)
    found = _found(module, name)
    torch.manual_seed(seed)  # whatever was drawn on importing
    return _built(target, found)


# ── from a module ─────────────────────────────────────────────────────────────────────────────


def _found(module: str, name: str) -> Any:
    """The attribute of a module, which may lie in the current directory."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _unimportable(module, error) from error
        raise ArgumentError(
            f"There is no module {module}, neither in {here} nor installed. Run this where it lies."
        ) from error
    except Exception as error:
        raise _unimportable(module, error) from error
    path = module
    for part in name.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, dir(found), n=1)
            hint = f"Did you mean {near[0]}?" if near else "Name a model, or what builds one."
            raise ArgumentError(f"{path} has no {part}. {hint}")
        found, path = getattr(found, part), f"{path}.{part}"
    return found


def _unimportable(module: str, error: Exception) -> ArgumentError:
    return ArgumentError(f"Importing {module} raises {brief(error)}. Mend that first.")


def _built(target: str, found: Any) -> Loaded:
    """A model as it is, or what is built by a call without arguments."""
    if not isinstance(found, (nn.Module, tuple)):
        if not callable(found):
            raise ArgumentError(
                f"{target} is {describe_type(found)}. Name a module, or a function that builds one."
            )
        needed = _needed(found)
        if needed:
            raise ArgumentError(
                f"{target} needs {', '.join(needed)}. Name a function that takes no arguments."
            )
        try:
            found = found()
        except Exception as error:
            raise ArgumentError(
                f"{target}() raises {brief(error)}. Mend that first, or name another function."
            ) from error
    if isinstance(found, tuple):
        if len(found) != 2 or not callable(found[0]):
            raise ArgumentError(
                f"{target} gives a tuple of {len(found)}. Give a model, or (model, inputs)."
            )
        return Loaded(*found)
    if not callable(found):
        raise ArgumentError(
            f"{target}() gives {describe_type(found)}. Give a model, or (model, inputs)."
        )
    return Loaded(found)


def _needed(builder: Any) -> list[str]:
    """The arguments that a call can't leave out."""
    try:
        parameters = inspect.signature(builder).parameters.values()
    except (TypeError, ValueError):  # some builtins tell nothing
        return []
    loose = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in loose]


# ── of transformers ───────────────────────────────────────────────────────────────────────────


def _of_transformers(path: Path, seed: int) -> Any:
    """A local checkpoint; or a model with random weights, where there is only a config."""
    config = path / "config.json" if path.is_dir() else path
    if not config.is_file():
        raise ArgumentError(
            f"There is no {config}. Give a directory with a config.json, or such a file; nothing is "
            "downloaded."
        )
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with require("hf"):
        import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    kept = any(next(config.parent.glob(kind), None) for kind in WEIGHTS)
    try:
        read = transformers.AutoConfig.from_pretrained(config, local_files_only=True)
        auto = getattr(transformers, _auto(read))
        if kept:
            model = auto.from_pretrained(config.parent, local_files_only=True)
        else:
            torch.manual_seed(seed)
            model = auto.from_config(read)
    except json.JSONDecodeError as error:
        raise ArgumentError(
            f"{config} is no JSON: {error}. Give one that transformers wrote."
        ) from error
    except Exception as error:
        raise ArgumentError(
            f"transformers can't load {path}: {brief(error)}. Give what its save_pretrained wrote."
        ) from error
    return model.eval()


def _auto(config: Any) -> str:
    """The class that makes a model of this config, with the head that it was trained with."""
    kind = next(iter(getattr(config, "architectures", None) or ()), "")
    if kind.endswith("ForConditionalGeneration") and config.is_encoder_decoder:
        return "AutoModelForSeq2SeqLM"
    return "AutoModelForCausalLM" if kind.endswith(GENERATES) else "AutoModel"


# ── inputs ────────────────────────────────────────────────────────────────────────────────────


def make_inputs(
    model: Any,
    expects: Any = "causal",
    *,
    length: int | None = None,
    batch: int | None = None,
    vocabulary: int | None = None,
    pad_id: int | None = None,
    seed: int = 0,
) -> Any:
    """Random ids for a model, with padding where the expected mask has some.

    >>> model = torch.nn.Embedding(10, 4)
    >>> make_inputs(model, "padding(lengths=[1, 3])", length=3, pad_id=0) == 0
    tensor([[False,  True,  True],
            [False, False, False]])
    """
    length = LENGTH if length is None else length
    for name, value in (("length", length), ("batch", batch)):
        if value is not None and value < 1:
            raise ArgumentError(f"{name}={value} is less than 1. Give a whole number of 1 or more.")
    expected = read_expects(expects)
    if is_one(model) and (expected == "auto" or model.config.is_encoder_decoder):
        given = {"batch": batch, "vocabulary": vocabulary, "pad_id": pad_id}
        for name, value in given.items():
            if value is not None:
                raise ArgumentError(
                    f"{name}={value} is for other models: this one's config says it. Leave it out."
                )
        return inputs_of(model, length)
    mask = expected if isinstance(expected, Mask) else None
    if batch is None:
        own = 1 if mask is None else mask.on(length).frame.batch
        batch = own if own > 1 else SEQUENCES
    source = torch.Generator().manual_seed(seed)
    kinds = _kinds(model, vocabulary, pad_id)
    ids = kinds[torch.randint(kinds.numel(), (batch, length), generator=source)]
    if expected == "encoder-decoder":
        return ids, kinds[torch.randint(kinds.numel(), (batch, length), generator=source)]
    first, told = _arguments(model)
    hidden = torch.zeros(batch, length, dtype=torch.bool)
    if mask is not None:
        hidden = torch.from_numpy(~expect(mask, length, length, batch, layers=1).direct.any(1))
    if bool(hidden.any()):
        if pad_id is None and not told:
            raise ArgumentError(
                "The mask expects padding, and the model would not know of any. Pass pad_id=..., or "
                "let the target give (model, inputs)."
            )
        ids = ids.masked_fill(hidden, 0 if pad_id is None else pad_id)
    return {first: ids, "attention_mask": (~hidden).long()} if told else ids


def run_trace(model: Any, inputs: Any) -> Trace:
    """The attention calls of one pass; inputs are a tensor, a tuple of arguments, or a dict of them.

    >>> run_trace(torch.nn.Identity(), torch.ones(1, 2))
    no attention calls
    """
    try:
        if isinstance(inputs, Mapping):
            return trace(model, **inputs)
        return trace(model, *(inputs if isinstance(inputs, (tuple, list)) else (inputs,)))
    except MaskError:
        raise
    except Exception as error:
        raise ArgumentError(
            f"The model raises {brief(error)}. Let the target give (model, inputs) that fit."
        ) from error


def _arguments(model: Any) -> tuple[str, bool]:
    """The name of the model's first argument, and whether it takes an attention_mask beside it."""
    called = model.forward if isinstance(model, nn.Module) else model
    try:
        first = next(iter(inspect.signature(called).parameters), "")
    except (TypeError, ValueError):
        first = ""
    return first, first not in ("", "attention_mask") and takes(model, "attention_mask")


def _kinds(model: Any, vocabulary: int | None, pad_id: int | None) -> torch.Tensor:
    """The ids to draw from: 1 and on, without those that mean something else."""
    taken = {pad_id}
    if is_one(model):
        config = model.config.get_text_config()
        taken |= {getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos")}
    words = _vocabulary(model) if vocabulary is None else vocabulary
    kinds = [word for word in range(1, words) if word not in taken]
    if len(kinds) < 2:
        raise ArgumentError(
            f"vocabulary={words} leaves {len(kinds)} ids to draw from. Give a larger one."
        )
    return torch.tensor(kinds)


def _vocabulary(model: Any) -> int:
    """How many ids the model's embedding knows."""
    if is_one(model):
        return int(model.get_input_embeddings().num_embeddings)
    fix = "Let the target give (model, inputs), or pass vocabulary=... if it takes ids."
    named = model.named_parameters() if isinstance(model, nn.Module) else iter(())
    name, _ = next(named, ("", None))
    if not name:
        raise ArgumentError(f"The model has no nn.Embedding to read ids. {fix}")
    owner = model.get_submodule(name.rpartition(".")[0])
    if not isinstance(owner, nn.Embedding):
        raise ArgumentError(
            f"The model's first weight, {name}, is no nn.Embedding's: it seems to take numbers. {fix}"
        )
    return int(owner.num_embeddings)
