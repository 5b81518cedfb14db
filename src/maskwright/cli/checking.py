"""Commands that run a model: `audit` tests its mask, `trace` lists the masks that it used."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from maskwright.cli.app import app
from maskwright.cli.front import typer
from maskwright.cli.options import (
    Lang,
    Length,
    Model,
    Output,
    PadId,
    ReportForm,
    Seed,
    Sequences,
    TextForm,
    Vocabulary,
    model_errors,
)
from maskwright.cli.output import chosen_form, emit, text_or_json
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from maskwright.auditing.report import AuditReport


@app.command(
    epilog="""Examples:

    maskwright audit mypkg.models:build --expects "causal()" --length 64

    maskwright audit mypkg.models:build --expects "causal() & padding(lengths=[5, 9])" -n 9 --pad-id 0

    maskwright audit hf:./my-checkpoint -o report.html --lang zh"""
)
def audit(
    target: Model,
    expects: Annotated[
        str,
        typer.Option(
            help="The mask of one layer: a mask, causal, bidirectional, encoder-decoder; or auto, "
            "which reads the config of a model of transformers."
        ),
    ] = "auto",
    length: Length = None,
    batch: Sequences = None,
    vocabulary: Vocabulary = None,
    pad_id: PadId = None,
    layers: Annotated[
        int | None, typer.Option(help="Number of attention layers; counted by default.")
    ] = None,
    probes: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated probes to run, by default all: leak, reach, gradient, padding, "
            "documents, batch, steps, numbers, paths, dtype."
        ),
    ] = None,
    seed: Seed = 0,
    lang: Lang = "en",
    form: ReportForm = None,
    output: Output = None,
) -> None:
    """Test whether a model respects its mask: exit code 0 if so, 1 if not, 2 for a usage error.

    It runs on random ids, unless the target provides its inputs.
    """
    wanted = chosen_form(form, output)
    if wanted not in ("text", "json", "html"):
        raise ArgumentError(f"audit writes text, json or html, not {wanted}. Pass --format.")
    with model_errors():
        import maskwright
        from maskwright.cli.load_model import load_model, make_inputs

        model, inputs = load_model(target, seed)
        if inputs is None:
            sizes = {"length": length, "batch": batch, "vocabulary": vocabulary, "pad_id": pad_id}
            inputs = make_inputs(model, expects, **sizes, seed=seed)
        chosen = None if probes is None else [probe.strip() for probe in probes.split(",")]
        report = maskwright.audit(
            model,
            inputs,
            expects=expects,
            layers=layers,
            pad_id=pad_id,
            probes=chosen,
            seed=seed,
        )
    emit(_rendered(report, wanted, lang), output)
    if not report.ok:
        raise typer.Exit(1)


@app.command(
    epilog="""Examples:

    maskwright trace mypkg.models:build --length 64

    maskwright trace hf:./my-checkpoint --format json"""
)
def trace(
    target: Model,
    length: Length = None,
    batch: Sequences = None,
    vocabulary: Vocabulary = None,
    seed: Seed = 0,
    form: TextForm = None,
    output: Output = None,
) -> None:
    """Run a model once, and list every attention call with the mask that it used."""
    wanted = text_or_json("trace", form, output)
    with model_errors():
        from maskwright.cli.load_model import load_model, make_inputs, run_trace

        model, inputs = load_model(target, seed)
        if inputs is None:
            sizes = {"length": length, "batch": batch, "vocabulary": vocabulary}
            inputs = make_inputs(model, "auto", **sizes, seed=seed)
        found = run_trace(model, inputs)
    emit(json.dumps(found.as_dict(), indent=2) if wanted == "json" else str(found), output)


def _rendered(report: AuditReport, form: str, lang: str) -> str:
    if form == "html":
        return report.to_html(lang)
    return report.to_json(lang) if form == "json" else report.text(lang)
