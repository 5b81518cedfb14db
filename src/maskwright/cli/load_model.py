"""Models for the command line: `module:attribute`, or a local checkpoint of transformers.

Also makes inputs for them. Nothing is downloaded.
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

from maskwright._optional_deps import require
from maskwright.auditing.expectations import expect, read_expects
from maskwright.auditing.huggingface import LENGTH, is_transformers_model
from maskwright.auditing.huggingface import make_inputs as make_transformers_inputs
from maskwright.auditing.model_under_test import accepts_argument
from maskwright.auditing.probes import brief
from maskwright.core.expr import Mask
from maskwright.core.validate import describe_type
from maskwright.errors import ArgumentError, MaskError
from maskwright.tracing.trace import trace

if TYPE_CHECKING:
    from maskwright.tracing.trace import Trace

BATCH: Final = 2
WEIGHT_FILES: Final = ("*.safetensors", "pytorch_model*.bin")
CAUSAL_LM: Final = ("ForCausalLM", "LMHeadModel")


class Loaded(NamedTuple):
    """A model, and its inputs if the target provides them."""

    model: Any
    inputs: Any = None


def load_model(target: str, seed: int = 0) -> Loaded:
    """Loads a model from `module:attribute` or `hf:PATH`.

    Raises:
        ArgumentError: If the target is not a model, or it cannot be built.

    >>> load_model("torch.nn:Identity").model
    Identity()
    >>> load_model("torch.nn:Identiti")
    Traceback (most recent call last):
    maskwright.errors.ArgumentError: torch.nn has no Identiti. Did you mean Identity?
    """
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise ArgumentError(f"{target!r} is not a model. Expected module:attribute or hf:PATH.")
    if module == "hf":
        return Loaded(_load_checkpoint(Path(name), seed))
    torch.manual_seed(seed)
    found = _import_attribute(module, name)
    torch.manual_seed(seed)  # importing may have drawn numbers
    return _build(target, found)


# ── from a module ─────────────────────────────────────────────────────────────────────────────


def _import_attribute(module: str, name: str) -> Any:
    """An attribute of a module, which may be in the current directory."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _import_error(module, error) from error
        raise ArgumentError(
            f"There is no module {module}, neither in {here} nor installed. Run this in its directory."
        ) from error
    except Exception as error:
        raise _import_error(module, error) from error
    path = module
    for part in name.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, dir(found), n=1)
            hint = (
                f"Did you mean {near[0]}?"
                if near
                else "Pass a model, or a function that builds one."
            )
            raise ArgumentError(f"{path} has no {part}. {hint}")
        found, path = getattr(found, part), f"{path}.{part}"
    return found


def _import_error(module: str, error: Exception) -> ArgumentError:
    return ArgumentError(f"Importing {module} raises {brief(error)}. Fix that first.")


def _build(target: str, found: Any) -> Loaded:
    """A model itself, or what a function without arguments returns."""
    if not isinstance(found, (nn.Module, tuple)):
        if not callable(found):
            raise ArgumentError(
                f"{target} is {describe_type(found)}. Pass a module, or a function that builds one."
            )
        needed = _required_arguments(found)
        if needed:
            raise ArgumentError(
                f"{target} needs {', '.join(needed)}. Pass a function without required arguments."
            )
        try:
            found = found()
        except Exception as error:
            raise ArgumentError(
                f"{target}() raises {brief(error)}. Fix that first, or pass another function."
            ) from error
    if isinstance(found, tuple):
        if len(found) != 2 or not callable(found[0]):
            raise ArgumentError(
                f"{target} returns a tuple of {len(found)}. Return a model, or (model, inputs)."
            )
        return Loaded(*found)
    if not callable(found):
        raise ArgumentError(
            f"{target}() returns {describe_type(found)}. Return a model, or (model, inputs)."
        )
    return Loaded(found)


def _required_arguments(builder: Any) -> list[str]:
    """A function's arguments without default."""
    try:
        parameters = inspect.signature(builder).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


# ── transformers ──────────────────────────────────────────────────────────────────────────────


def _load_checkpoint(path: Path, seed: int) -> Any:
    """A local checkpoint; or a model with random weights, if there is only a config."""
    config = path / "config.json" if path.is_dir() else path
    if not config.is_file():
        raise ArgumentError(
            f"There is no {config}. Pass a directory with a config.json, or its path. Nothing is "
            "downloaded."
        )
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with require("hf"):
        import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    has_weights = any(next(config.parent.glob(kind), None) for kind in WEIGHT_FILES)
    try:
        read = transformers.AutoConfig.from_pretrained(config, local_files_only=True)
        auto = getattr(transformers, _auto(read))
        if has_weights:
            model = auto.from_pretrained(config.parent, local_files_only=True)
        else:
            torch.manual_seed(seed)
            model = auto.from_config(read)
    except json.JSONDecodeError as error:
        raise ArgumentError(
            f"{config} is not JSON: {error}. Pass a config that transformers wrote."
        ) from error
    except Exception as error:
        raise ArgumentError(
            f"transformers cannot load {path}: {brief(error)}. Pass what save_pretrained wrote."
        ) from error
    return model.eval()


def _auto(config: Any) -> str:
    """The auto class of a config, with the head that the model was trained with."""
    kind = next(iter(getattr(config, "architectures", None) or ()), "")
    if kind.endswith("ForConditionalGeneration") and config.is_encoder_decoder:
        return "AutoModelForSeq2SeqLM"
    return "AutoModelForCausalLM" if kind.endswith(CAUSAL_LM) else "AutoModel"


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

    Raises:
        ArgumentError: If the model does not take ids, or an option does not apply to it.

    >>> model = torch.nn.Embedding(10, 4)
    >>> make_inputs(model, "padding(lengths=[1, 3])", length=3, pad_id=0) == 0
    tensor([[False,  True,  True],
            [False, False, False]])
    """
    length = LENGTH if length is None else length
    for name, value in (("length", length), ("batch", batch)):
        if value is not None and value < 1:
            raise ArgumentError(f"{name}={value} is less than 1. Pass an integer of at least 1.")
    expected = read_expects(expects)
    if is_transformers_model(model) and (expected == "auto" or model.config.is_encoder_decoder):
        given = {"batch": batch, "vocabulary": vocabulary, "pad_id": pad_id}
        for name, value in given.items():
            if value is not None:
                raise ArgumentError(
                    f"{name}={value} cannot be combined with this model: its config has it. Omit it."
                )
        return make_transformers_inputs(model, length)
    mask = expected if isinstance(expected, Mask) else None
    if batch is None:
        own = 1 if mask is None else mask.on(length).frame.batch
        batch = own if own > 1 else BATCH
    generator = torch.Generator().manual_seed(seed)
    known = _usable_ids(model, vocabulary, pad_id)
    ids = known[torch.randint(known.numel(), (batch, length), generator=generator)]
    if expected == "encoder-decoder":
        return ids, known[torch.randint(known.numel(), (batch, length), generator=generator)]
    first, has_mask = _arguments(model)
    padded = torch.zeros(batch, length, dtype=torch.bool)
    if mask is not None:
        padded = torch.from_numpy(~expect(mask, length, length, batch, layers=1).direct.any(1))
    if bool(padded.any()):
        if pad_id is None and not has_mask:
            raise ArgumentError(
                "The mask expects padding, and the model has no attention_mask. Pass pad_id=..., or "
                "let the target return (model, inputs)."
            )
        ids = ids.masked_fill(padded, 0 if pad_id is None else pad_id)
    return {first: ids, "attention_mask": (~padded).long()} if has_mask else ids


def run_trace(model: Any, inputs: Any) -> Trace:
    """Traces one pass; inputs are a tensor, a tuple of arguments, or a dict of them.

    Raises:
        ArgumentError: If the model raises.

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
            f"The model raises {brief(error)}. Let the target return (model, inputs) that fit."
        ) from error


def _arguments(model: Any) -> tuple[str, bool]:
    """The name of the model's first argument, and whether it accepts an attention_mask too."""
    called = model.forward if isinstance(model, nn.Module) else model
    try:
        first = next(iter(inspect.signature(called).parameters), "")
    except (TypeError, ValueError):
        first = ""
    return first, first not in ("", "attention_mask") and accepts_argument(model, "attention_mask")


def _usable_ids(model: Any, vocabulary: int | None, pad_id: int | None) -> torch.Tensor:
    """The ids to draw from: 1 and more, without special ids."""
    special = {pad_id}
    if is_transformers_model(model):
        config = model.config.get_text_config()
        special |= {getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos")}
    size = _vocab_size(model) if vocabulary is None else vocabulary
    known = [n for n in range(1, size) if n not in special]
    if len(known) < 2:
        raise ArgumentError(
            f"vocabulary={size} leaves {len(known)} ids to draw from. Pass a larger one."
        )
    return torch.tensor(known)


def _vocab_size(model: Any) -> int:
    """The number of ids of the model's embedding."""
    if is_transformers_model(model):
        return int(model.get_input_embeddings().num_embeddings)
    fix = "Let the target return (model, inputs), or pass vocabulary=... if it takes ids."
    named = model.named_parameters() if isinstance(model, nn.Module) else iter(())
    name, _ = next(named, ("", None))
    if not name:
        raise ArgumentError(f"The model has no nn.Embedding. {fix}")
    owner = model.get_submodule(name.rpartition(".")[0])
    if not isinstance(owner, nn.Embedding):
        raise ArgumentError(
            f"The model's first weight, {name}, is not an nn.Embedding's: it may not take ids. {fix}"
        )
    return int(owner.num_embeddings)
