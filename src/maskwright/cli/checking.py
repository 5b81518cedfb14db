"""Verbs that run a model: does it obey its mask, and which masks did it really have?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from maskwright.cli.app import app
from maskwright.cli.front import typer
from maskwright.cli.options import (
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

    maskwright audit hf:./my-checkpoint -o report.html"""
)
def audit(
    target: Model,
    expects: Annotated[
        str,
        typer.Option(
            help="What one layer may see: a mask, causal, bidirectional, encoder-decoder; or auto, "
            "which asks the config of a model of transformers."
        ),
    ] = "auto",
    length: Length = None,
    batch: Sequences = None,
    vocabulary: Vocabulary = None,
    pad_id: PadId = None,
    layers: Annotated[
        int | None, typer.Option(help="How many layers of attention; counted if not given.")
    ] = None,
    probes: Annotated[
        str | None,
        typer.Option(
            help="Only these, by commas: leak, reach, gradient, padding, documents, batch, "
            "steps, numbers, paths, dtype."
        ),
    ] = None,
    seed: Seed = 0,
    form: ReportForm = None,
    output: Output = None,
) -> None:
    """Run a model, and say whether it obeys its mask: code 0 if so, 1 if not, 2 for a wrong call.

    It is run on random ids, unless the target gives its inputs.
    """
    wanted = chosen_form(form, output)
    if wanted not in ("text", "json", "html"):
        raise ArgumentError(f"audit gives text, json or html, not {wanted}. Pass --format.")
    with model_errors():
        import maskwright
        from maskwright.cli.loading import load, make_inputs

        model, inputs = load(target, seed)
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
    emit(_said(report, wanted), output)
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
    """Run a model once, and list every attention call with the mask that it really had."""
    wanted = text_or_json("trace", form, output)
    with model_errors():
        from maskwright.cli.loading import load, make_inputs, run_trace

        model, inputs = load(target, seed)
        if inputs is None:
            sizes = {"length": length, "batch": batch, "vocabulary": vocabulary}
            inputs = make_inputs(model, "auto", **sizes, seed=seed)
        found = run_trace(model, inputs)
    emit(json.dumps(found.as_dict(), indent=2) if wanted == "json" else str(found), output)


def _said(report: AuditReport, form: str) -> str:
    if form == "html":
        from maskwright.auditing.report_html import html_of

        return html_of(report)
    return report.to_json() if form == "json" else str(report)
