"""`audit`: does a model obey its mask? What is given is read here; the asking is in `case`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from maskwright.auditing.case import PROBES, Case
from maskwright.auditing.expectations import read_expects
from maskwright.auditing.model_under_test import Key, make_subject
from maskwright.auditing.probes.stillness import still
from maskwright.core.atoms import causal, everything
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from maskwright.auditing.report import AuditReport


def audit(
    model: Any,
    inputs: Any = None,
    *,
    expects: Any = "auto",
    output: Callable[[Any], Any] | None = None,
    layers: int | None = None,
    pad_id: int | None = None,
    step: Callable[[Any, Any, Any], tuple[Any, Any]] | None = None,
    paths: Mapping[str, Callable[..., Any]] | None = None,
    probes: Sequence[str] | None = None,
    seed: int = 0,
) -> AuditReport:
    """Run a model, as a black box, and say whether it obeys the mask that it should.

    Inputs are changed where an output must not know of them, and where it must; padding is changed,
    added, taken away and moved to the other side; sequences are run alone and together, in pieces
    with a cache, in other dtypes, compiled and by other paths. What is wrong is put down to a layer,
    a cause and a fix, from the masks that the model's attention really used. Dropout is off, random
    numbers are fixed, and the model is afterwards as it was.

    Args:
        model: A module, or any function of tensors.
        inputs: A tensor, a tuple of arguments, or a dict of keyword arguments. Positions are the
            second axis of ids (batch, positions) or of floats (batch, positions, features). For a
            model of transformers it may be left out.
        expects: What one layer may see, as a mask or its text; "causal", "bidirectional",
            "encoder-decoder", or "auto", which asks the config of a model of transformers; or a dict
            of masks by the names of inputs, each of what the whole model's outputs may depend on.
        output: Takes the output, (batch, positions, …), out of what the model gives.
        layers: How many layers of attention there are; if not given, they are counted.
        pad_id: The id of padding, where padding is told by the ids.
        step: step(model, piece, state) runs the next positions with a cache, and gives the output
            and the new state, which is None at first. Models of transformers need none.
        paths: Other ways to run the model which must give the same, by name: each a function of
            the model and its inputs.
        probes: Only these: leak, reach, gradient, padding, documents, batch, steps, numbers, paths,
            dtype.
        seed: Of all random numbers.

    >>> import torch, maskwright as mw
    >>> def mean_so_far(x):
    ...     return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
    >>> mw.audit(mean_so_far, torch.randn(2, 8, 4), expects="causal").ok
    True
    >>> report = mw.audit(lambda x: mean_so_far(x.flip(1)).flip(1), torch.randn(2, 8, 4), expects="causal")
    >>> report.ok, report.findings[0].probe
    (False, 'leak')
    """
    wanted = _read_probes(probes)
    began = time.perf_counter()
    expected = read_expects(expects)
    made = inputs is None
    if inputs is None or expected == "auto":
        from maskwright.auditing.huggingface import expectation_of, inputs_of

        inputs = inputs_of(model) if inputs is None else inputs
        expected = expectation_of(model, inputs) if expected == "auto" else expected
    names = _names(expected, inputs)
    if expected == "encoder-decoder":
        expected = {names[0]: everything(), names[1]: causal()}
    subject = make_subject(model, inputs, names=names, output=output, pad_id=pad_id, seed=seed)
    case = Case(subject, expected, layers, made)
    with still(model):
        answers = case.ask(wanted, step, paths)
        return case.report(answers, lambda: time.perf_counter() - began)


def _read_probes(probes: Sequence[str] | None) -> tuple[str, ...]:
    if probes is None:
        return PROBES
    wanted = (probes,) if isinstance(probes, str) else tuple(probes)
    for probe in wanted:
        if probe not in PROBES:
            raise ArgumentError(
                f"audit: there is no probe {probe!r}. Choose from {', '.join(PROBES)}."
            )
    return wanted


def _names(expected: Any, inputs: Any) -> tuple[Key, ...]:
    """The inputs whose positions are changed; the last is the one that outputs go along with."""
    if isinstance(expected, dict):
        return tuple(expected)
    if expected != "encoder-decoder":
        return ()
    held = inputs.items() if isinstance(inputs, dict) else enumerate(inputs)
    ids = [name for name, x in held if isinstance(x, torch.Tensor) and x.dim() in (2, 3)]
    if len(ids) < 2:
        raise ArgumentError(
            'audit: expects="encoder-decoder" needs two inputs with positions, the source first. '
            "Give both, as a tuple or a dict."
        )
    return ids[0], ids[1]
