"""Paths: the same model, run another way, gives the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import nn
from torch.overrides import TorchFunctionMode

from maskwright.auditing.measure import RESHAPED
from maskwright.auditing.model_under_test import Change
from maskwright.auditing.probes.answer import Answer, Trouble, brief
from maskwright.auditing.probes.leaks import clear_of, hidden_from, hidden_pairs
from maskwright.auditing.probes.ways import built_in, in_training, seen_by
from maskwright.tracing.trace import recording

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from maskwright.auditing.expectations import Expectation
    from maskwright.auditing.measure import Meter
    from maskwright.auditing.model_under_test import Subject
    from maskwright.auditing.probes.ways import Path


def paths(
    meter: Meter, expected: Expectation, own: Mapping[str, Path] | None, *, sound: bool = True
) -> Answer:
    """Run every path that there is, and compare with the model at rest.

    A model that is not sound as it is need not be compiled, which takes longest.
    """
    answer = Answer("paths")
    ways = built_in(meter.subject)
    if not sound and ways.pop("compiled", None) is not None:
        answer.notes.append("compiled: not asked, as the model is wrong uncompiled")
    judged = torch.from_numpy(expected.judged)
    tried = []
    wild = False
    for name, by in {**ways, **(own or {})}.items():
        try:
            out = run_path(meter.subject, by)
        except Exception as error:
            answer.notes.append(f"{name}: not run, {brief(error)}")
            continue
        if out.shape != meter.rest.shape:
            answer.notes.append(f"{name}: an output of shape {tuple(out.shape)} is not compared")
            continue
        tried.append(name)
        far = torch.where(judged, meter.apart(out, meter.rest, RESHAPED), 0.0)
        answer.worst = max(answer.worst, float(far.max()) if far.numel() else 0.0)
        if not bool((far > 0).any()):
            continue
        b, i = (int(x) for x in np.unravel_index(int(far.argmax()), far.shape))
        if _is_random(meter, by, out):
            wild = True
            tried.pop()
            answer.notes.append(f"{name}: not compared, it is random by more than dropout")
            continue

        def again(other: Meter, by: Path = by) -> float:
            found = run_path(other.subject, by)
            return float(torch.where(judged, other.apart(found, other.rest, RESHAPED), 0.0).max())

        if by is in_training and _same_masks(meter.subject, by):
            answer.notes.append(f"{name}: the output differs, and the masks do not")
            continue
        if meter.confirmed(float(far.max()), again):
            answer.troubles.append(
                Trouble(
                    "paths",
                    f"path {name}",
                    f"{name}: position {i} differs by {float(far[b, i]):.2g} (batch {b})",
                    float(far[b, i]),
                    b,
                    i,
                    by=lambda subject, by=by: run_path(subject, seen_by(by)),
                )
            )
    trouble = _leak_in_training(meter, expected, wild)
    if trouble is not None:
        answer.troubles.append(trouble)
    answer.tried = ", ".join(tried)
    return answer


def _is_random(meter: Meter, by: Path, out: torch.Tensor) -> bool:
    """Does it give something else with other random numbers? A router may add some in training."""
    other = meter.subject.of(seed=meter.subject.seed + 1)
    found = run_path(other, by)
    meter.subject.passes += other.passes
    return found.shape == out.shape and bool((meter.apart(found, out) > 0).any())


def _leak_in_training(meter: Meter, expected: Expectation, wild: bool) -> Trouble | None:
    """Training with dropout as it is: drawn alike in every run, it leaves what is hidden hidden."""
    subject = meter.subject
    module, name = subject.module, subject.main
    if module is None or expected.whole or not (wild or any(_rates(module))):
        return None
    hidden = hidden_pairs(meter, expected, name)
    rows = np.flatnonzero(hidden.any((0, 2)))
    if not rows.size:
        return None
    found: Trouble | None = None
    module.train()
    try:
        with _Dropped() as dropped:
            rest = subject.run()
        tokens = {subject.batch * subject.length(key) for key in subject.seats}
        if any(len(shape) == 2 and shape[0] not in tokens for shape in dropped.shapes):
            return None  # experts, each with tokens of its own: dropout goes by who gets which
        if not torch.equal(rest, subject.run()):
            return None  # a state that changes while it trains
        for n, row in enumerate(rows[[0, rows.size // 2, -1]]):
            where = hidden_from(hidden, expected.judged, int(row))
            clear = clear_of(expected, where)
            change = Change(name, torch.from_numpy(where), "noise", seed=n)
            with _Dropped() as otherwise:
                out = subject.run(change=change)
            if otherwise.shapes != dropped.shapes:
                return None  # drawn otherwise
            moved = torch.where(torch.from_numpy(clear), meter.apart(out, rest), 0.0)
            if found is None and meter.certain(float(moved.max())):
                b, i = (int(x) for x in np.unravel_index(int(moved.argmax()), moved.shape))
                message = f"in training, position {i} depends on what is hidden from it (batch {b})"
                far = float(moved.max())
                found = Trouble("paths", "path training", message, far, b, i, by=_train)
    except Exception:  # a model that can't be trained as it is
        return None
    finally:
        module.eval()
    return found


class _Dropped(TorchFunctionMode):  # type: ignore[misc]
    """The shapes of all that dropout is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run it, and take note of what is dropped."""
        if func is F.dropout and args:
            self.shapes.append(tuple(args[0].shape))
        return func(*args, **(kwargs or {}))


def _train(subject: Subject) -> Any:
    assert subject.module is not None
    subject.module.train()
    try:
        return subject.run()
    finally:
        subject.module.eval()


def _rates(model: nn.Module) -> Iterator[float]:
    """Every probability of dropout."""
    for part in model.modules():
        for name, value in vars(part).items():
            own = isinstance(part, nn.modules.dropout._DropoutNd) and name == "p"
            if isinstance(value, float) and (own or "drop" in name.lower()):
                yield value


def run_path(subject: Subject, by: Path) -> torch.Tensor:
    """The output, had another way."""
    with torch.no_grad():
        return subject.read(subject.call(by=by))


def _same_masks(subject: Subject, by: Path) -> bool:
    """Is the attention that is run on this path the same as at rest, if there is any?"""
    with recording(subject.model) as rest:
        subject.run()
    with recording(subject.model) as other:
        run_path(subject, by)
    pairs = list(zip(rest.calls, other.calls, strict=False))
    same = len(rest.calls) == len(other.calls) > 0
    return same and all(np.array_equal(one.seen, two.seen) for one, two in pairs)
