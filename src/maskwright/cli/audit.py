"""Commands that run a model: `audit` tests its mask, `trace` lists the masks that it used.

Also loads models, from `module:attribute` or a local checkpoint of transformers, and makes inputs
for them. Nothing is downloaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from maskwright.cli import options as opt
from maskwright.cli.errors import UsageError
from maskwright.cli.main import command
from maskwright.cli.output import status, table, write
from maskwright.errors import FrameError, MaskError

if TYPE_CHECKING:
    import torch

    from maskwright.auditing import Progress
    from maskwright.core.expr import Mask
    from maskwright.tracing import Trace

DEFAULT_LENGTH: Final = 24
DEFAULT_BATCH: Final = 2
WEIGHT_FILES: Final = ("*.safetensors", "pytorch_model*.bin")
CAUSAL_LM: Final = ("ForCausalLM", "LMHeadModel")

BatchSize = Annotated[int | None, opt.option("Batch size. Default: that of the mask, or 2.", min=1)]
VocabSize = Annotated[
    int | None, opt.option("Number of ids. Default: that of the model's embedding.", min=1)
]


@dataclass(frozen=True)
class InputSizes(opt.OptionGroup):
    """The sizes of random inputs, as arguments of `make_inputs`."""

    length: Annotated[int, opt.option("Sequence length.", "--length", "-n", min=1)] = DEFAULT_LENGTH
    batch: BatchSize = None
    vocab_size: VocabSize = None


@command(
    'maskwright audit models:build --expects "causal()" --length 64',
    'maskwright audit models:build --expects "causal() & padding(lengths=[5, 9])" -n 9 --pad-id 0',
    "maskwright audit hf:./checkpoint -o report.html --lang zh",
    "maskwright audit models:build --expects causal --baseline report.json -o audit.sarif",
)
def audit(
    target: opt.Model,
    expects: Annotated[
        str,
        opt.option(
            "The mask of every layer: an expression, some(expression) for layers that choose keys, "
            "causal, bidirectional or encoder-decoder; auto reads the config of a transformers model, "
            "and reports what other models behave like."
        ),
    ] = "auto",
    *,
    sizes: InputSizes,
    pad_id: Annotated[int | None, opt.option("Padding id, if ids mark the padding.")] = None,
    layers: Annotated[
        int | None, opt.option("Number of attention layers. Default: counted.")
    ] = None,
    probes: Annotated[
        str | None,
        opt.option(
            "Comma-separated probes to run, by default all: leak, reach, gradient, padding, "
            "documents, batch, prefix, steps, numbers, paths, dtype."
        ),
    ] = None,
    budget: Annotated[
        str | None,
        opt.option(
            "The time that the audit may take, such as 90s or 2min. Probes that do not fit are not "
            "tested. Default: no limit, and fewer passes if one takes long.",
            metavar="TIME",
        ),
    ] = None,
    seed: opt.Seed = 0,
    lang: opt.Lang = "en",
    baseline: Annotated[
        Path | None,
        opt.option(
            "A JSON report of an earlier audit: only findings that it does not have fail.",
            metavar="FILE",
        ),
    ] = None,
    form: opt.ReportFormat = None,
    output: opt.ReportFile = None,
) -> None:
    """Test whether a model respects its mask.

    Exit code 0 if so, 1 if not, 2 for a usage error, and 3 if nothing was found but a probe was
    not run, or not tested (too much noise, or the time was up). With --baseline, 1 means new
    findings, and 3 means that a probe lost its result.

    It runs on random ids, unless MODEL provides its inputs.
    """
    chosen = opt.choose_format(form, output, opt.REPORT)
    from maskwright.auditing import report_ci

    known = None if baseline is None else report_ci.read_baseline(baseline)
    with status(f"Auditing {target} ...") as update:
        import maskwright

        model, inputs = _load_with_inputs(target, expects, seed, **vars(sizes), pad_id=pad_id)
        report = maskwright.audit(
            model,
            inputs,
            expects=expects,
            layers=layers,
            pad_id=pad_id,
            probes=None if probes is None else [probe.strip() for probe in probes.split(",")],
            seed=seed,
            budget=budget,
            progress=lambda at: update(_progress_text(target, at)),
        )

    def as_sarif(lang: str) -> str:
        reports = {report.subject: report.as_dict(lang)}
        return report_ci.sarif(reports, artifact=_source_file(target), baseline=known)

    formats = {
        "text": report.text,
        "json": report.to_json,
        "html": report.to_html,
        "junit": report.to_junit,
        "sarif": as_sarif,
    }
    write(formats[chosen](lang), output)
    if output is not None:
        typer.echo(report.text(lang).partition("\n")[0])  # the verdict
    code = report.exit_code
    if known is not None:
        data = report.as_dict()
        new = report_ci.new_findings(data, known)
        typer.echo(
            f"{len(data['findings'])} findings, {len(new)} of them not in {baseline}", err=True
        )
        for finding in new:
            typer.echo(
                f"new: {finding['probe']}: {finding['cause']}: {finding['message']}", err=True
            )
        code = report_ci.exit_code(data, known)
    if code:
        raise typer.Exit(code)


def _source_file(target: str) -> str | None:
    """The file of a target `module:attribute`, relative to the current directory if it is there."""
    module = sys.modules.get(target.partition(":")[0])
    path = getattr(module, "__file__", None)
    if path is None:
        return None
    try:
        return Path(path).resolve().relative_to(Path.cwd().resolve()).as_posix()
    except ValueError:  # installed elsewhere
        return None


def _progress_text(target: str, at: Progress) -> str:
    """The line that is shown while an audit runs."""
    return (
        f"Auditing {target}: {at.probe} ({at.done + 1} of {at.total}), {at.passes} passes, "
        f"{at.seconds:.0f} s, about {at.seconds_left:.0f} s left"
    )


@command(
    "maskwright trace models:build --length 64", "maskwright trace hf:./checkpoint --format json"
)
def trace(
    target: opt.Model,
    *,
    sizes: InputSizes,
    seed: opt.Seed = 0,
    output: opt.TextOutput,
) -> None:
    """Run a model once, and list every attention call with the mask that it used."""
    with status(f"Tracing {target} ..."):
        calls = run_trace(*_load_with_inputs(target, "auto", seed, **vars(sizes)))
    output.write(_trace_text(calls), calls.as_dict())


def _trace_text(calls: Trace) -> str:
    from maskwright.tracing import COLUMNS, table_row

    if not calls:
        return str(calls)
    rows = [list(table_row(call)) for call in calls]
    for row in rows:
        row[2] = row[2].replace(", ", ",")  # a table breaks lines at spaces
    return "\n".join([table(rows, COLUMNS), *calls.differences])


def run_trace(model: Any, inputs: Any) -> Trace:
    """Traces one forward pass. Inputs are a tensor, a tuple of arguments, or a dict of them.

    Raises:
        UsageError: If the model raises.

    >>> import torch
    >>> run_trace(torch.nn.Identity(), torch.ones(1, 2))
    no attention calls
    """
    from maskwright.auditing.probes import brief
    from maskwright.tracing import trace

    try:
        if isinstance(inputs, Mapping):
            return trace(model, **inputs)
        return trace(model, *(inputs if isinstance(inputs, (tuple, list)) else (inputs,)))
    except MaskError:
        raise
    except Exception as error:
        raise UsageError("model_raises", error=brief(error)) from error


# ── models ────────────────────────────────────────────────────────────────────────────────────


class Loaded(NamedTuple):
    """A model, and its inputs if MODEL provides them."""

    model: Any
    inputs: Any = None


def _load_with_inputs(target: str, expects: str, seed: int, **sizes: Any) -> Loaded:
    """A model, with random inputs unless MODEL provides them."""
    model, inputs = load_model(target, seed)
    if inputs is None:
        inputs = make_inputs(model, expects, **sizes, seed=seed)
    return Loaded(model, inputs)


def load_model(target: str, seed: int = 0) -> Loaded:
    """Loads a model from `module:attribute` or `hf:PATH`.

    Raises:
        UsageError: If the target is not a model, or it cannot be built.

    >>> load_model("torch.nn:Identity").model
    Identity()
    >>> load_model("torch.nn:Identiti")
    Traceback (most recent call last):
    maskwright.cli.errors.UsageError: torch.nn has no Identiti. Did you mean Identity?
    """
    import torch

    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise UsageError("not_a_target", target=target)
    if module == "hf":
        return Loaded(_load_checkpoint(name, seed))
    torch.manual_seed(seed)
    value = _import_attribute(module, name)
    torch.manual_seed(seed)  # importing may have drawn numbers
    return _build(target, value)


def _import_attribute(module: str, name: str) -> Any:
    """An attribute of a module, which may be in the current directory."""
    import difflib
    import importlib

    from maskwright.auditing.probes import brief

    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        value: Any = importlib.import_module(module)
    except Exception as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name is not None
        if absent and f"{module}.".startswith(f"{error.name}."):  # type: ignore[attr-defined]
            raise UsageError("no_module", module=module, here=here) from error
        raise UsageError("import_raises", module=module, error=brief(error)) from error
    path = module
    for part in name.split("."):
        if not hasattr(value, part):
            near = difflib.get_close_matches(part, dir(value), n=1)
            if near:
                raise UsageError("attribute_like", path=path, name=part, near=near[0])
            raise UsageError("no_attribute", path=path, name=part)
        value, path = getattr(value, part), f"{path}.{part}"
    return value


def _build(target: str, value: Any) -> Loaded:
    """A model itself, or what a function without arguments returns."""
    from torch import nn

    from maskwright.auditing.probes import brief
    from maskwright.core.validate import describe_type

    if not isinstance(value, (nn.Module, tuple)):
        if not callable(value):
            raise UsageError("not_a_model", target=target, kind=describe_type(value))
        try:
            value = value()
        except Exception as error:
            raise UsageError("target_raises", target=target, error=brief(error)) from error
    loaded = Loaded(*value) if isinstance(value, tuple) and len(value) == 2 else Loaded(value)
    if not callable(loaded.model):
        kind = f"a tuple of {len(value)}" if isinstance(value, tuple) else describe_type(value)
        raise UsageError("target_returns", target=target, kind=kind)
    return loaded


def _load_checkpoint(name: str, seed: int) -> Any:
    """A local checkpoint; or a model with random weights, if there is only a config."""
    import torch

    from maskwright._optional_deps import require
    from maskwright.auditing.probes import brief

    path = Path(name)
    config = path / "config.json" if path.is_dir() else path
    if not config.is_file():
        raise UsageError("no_config", path=config)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with require("hf"):
        import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    has_weights = any(next(config.parent.glob(kind), None) for kind in WEIGHT_FILES)
    try:
        read = transformers.AutoConfig.from_pretrained(config, local_files_only=True)
        auto = getattr(transformers, _auto_class(read))
        if has_weights:
            model = auto.from_pretrained(config.parent, local_files_only=True)
        else:
            torch.manual_seed(seed)
            model = auto.from_config(read)
    except Exception as error:
        raise UsageError("not_a_checkpoint", path=name, error=brief(error)) from error
    return model.eval()


def _auto_class(config: Any) -> str:
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
    length: int = DEFAULT_LENGTH,
    batch: int | None = None,
    vocab_size: int | None = None,
    pad_id: int | None = None,
    seed: int = 0,
) -> Any:
    """Returns random ids for a model, with padding where the expected mask has some.

    Raises:
        UsageError: If the model does not take ids, or an option does not apply to it.

    >>> import torch
    >>> model = torch.nn.Embedding(10, 4)
    >>> make_inputs(model, "padding(lengths=[1, 3])", length=3, pad_id=0) == 0
    tensor([[False,  True,  True],
            [False, False, False]])
    """
    import torch

    from maskwright.auditing import huggingface
    from maskwright.auditing.expectations import expect, read_expects
    from maskwright.core.expr import Mask

    expected = read_expects(expects)
    if huggingface.is_transformers_model(model) and (
        expected == "auto" or model.config.is_encoder_decoder
    ):
        options = {"--batch": batch, "--vocab-size": vocab_size, "--pad-id": pad_id}
        for option, value in options.items():
            if value is not None:
                raise UsageError("set_by_config", option=option, value=value)
        return huggingface.make_inputs(model, length)
    mask = expected if isinstance(expected, Mask) else None
    if batch is None:
        batch = max(DEFAULT_BATCH, _batch_of(mask, length))
    generator = torch.Generator().manual_seed(seed)
    known = _usable_ids(model, vocab_size, pad_id)
    ids = known[torch.randint(known.numel(), (batch, length), generator=generator)]
    if expected == "encoder-decoder":
        return ids, known[torch.randint(known.numel(), (batch, length), generator=generator)]
    first, has_mask = _arguments(model)
    padded = torch.zeros(batch, length, dtype=torch.bool)
    if mask is not None:
        padded = torch.from_numpy(~expect(mask, length, length, batch, layers=1).direct.any(1))
    if bool(padded.any()):
        if pad_id is None and not has_mask:
            raise UsageError("no_padding")
        ids = ids.masked_fill(padded, 0 if pad_id is None else pad_id)
    return {first: ids, "attention_mask": (~padded).long()} if has_mask else ids


def _batch_of(mask: Mask | None, length: int) -> int:
    """The batch size of a mask's data."""
    if mask is None:
        return 1
    try:
        return mask.on(length).frame.batch
    except FrameError as error:
        raise FrameError(f"--length {length}: {error}") from error


def _arguments(model: Any) -> tuple[str, bool]:
    """The name of the model's first argument, and whether it accepts an attention_mask too."""
    from maskwright.auditing.model_under_test import forward_parameters

    names = list(forward_parameters(model))
    return next(iter(names), ""), "attention_mask" in names[1:]


def _usable_ids(model: Any, vocab_size: int | None, pad_id: int | None) -> torch.Tensor:
    """The ids to draw from: 1 and more, without special ids."""
    import torch

    from maskwright.auditing.huggingface import is_transformers_model

    special = {pad_id}
    if is_transformers_model(model):
        config = model.config.get_text_config()
        special |= {getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos")}
    size = _vocab_size(model) if vocab_size is None else vocab_size
    known = [n for n in range(1, size) if n not in special]
    if len(known) < 2:
        raise UsageError("vocab_size", size=size, count=len(known))
    return torch.tensor(known)


def _vocab_size(model: Any) -> int:
    """The number of ids of the model's embedding."""
    from torch import nn

    from maskwright.auditing.huggingface import is_transformers_model

    if is_transformers_model(model):
        return int(model.get_input_embeddings().num_embeddings)
    named = model.named_parameters() if isinstance(model, nn.Module) else iter(())
    name, _ = next(named, ("", None))
    if not name:
        raise UsageError("no_embedding")
    owner = model.get_submodule(name.rpartition(".")[0])
    if not isinstance(owner, nn.Embedding):
        raise UsageError("first_weight", name=name)
    return int(owner.num_embeddings)
