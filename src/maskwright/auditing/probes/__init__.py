"""Probes: each changes something that must, or must not, affect the outputs, and runs the model again.

A probe is a function from a `ProbeContext` to a `ProbeResult`, and one entry in `PROBES`. What its
failures mean is in `auditing.diagnose`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

import torch

from maskwright._registry import Registry
from maskwright.auditing.measure import Status as Status
from maskwright.messages import Reason, render

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maskwright.auditing.expectations import Expectation
    from maskwright.auditing.measure import Meter
    from maskwright.auditing.model_under_test import Change, Inputs, Key, ModelUnderTest
    from maskwright.tracing import AttentionCall

    Step = Callable[[Any, Any, Any], tuple[Any, Any]]


class Symptom(Enum):
    """What a probe observed, for which `auditing.diagnose` finds the cause."""

    RAISES = auto()
    NOT_DETERMINISTIC = auto()
    LEAK = auto()  # an output depends on a masked position
    NO_DEPENDENCE = auto()  # an output does not depend on a visible position
    IGNORES_INPUT = auto()  # no output depends on any position
    PADDING_CONTENT = auto()  # an output depends on the content of padding
    PADDING_REMOVED = auto()  # an output differs without padding
    PADDING_ADDED = auto()  # an output differs with more padding
    PADDING_SIDE = auto()  # left and right padding give different outputs
    DOCUMENT_ALONE = auto()  # a packed document gives different outputs by itself
    ACROSS_BATCH = auto()  # an output depends on another sequence
    SEQUENCE_ALONE = auto()  # a sequence gives different outputs by itself
    BATCH_ORDER = auto()
    BATCH_SIZE = auto()
    PREFIX = auto()  # an output differs if later positions are removed, added or changed
    CACHE_RAISES = auto()
    CACHE_MISMATCH = auto()  # decoding with a cache differs from one pass
    NOT_FINITE = auto()
    GRADIENT_NOT_FINITE = auto()
    DTYPE_OVERFLOW = auto()  # a value of the model is out of range of half precision
    HALF_NOT_FINITE = auto()
    HALF_DIFFERS = auto()
    HALF_LEAK = auto()
    VARIANT_DIFFERS = auto()  # another way to run the model gives different outputs
    TRAINING_LEAK = auto()  # a leak in training mode only


@dataclass(frozen=True)
class Location:
    """Where a failure was observed: positions, and the input that was changed."""

    batch: int | None = None
    output: int | None = None
    input: int | None = None
    name: Key | None = None  # of the input


@dataclass(frozen=True)
class Rerun:
    """How to repeat the run in which a failure was observed.

    Args:
        change: What was changed in the inputs.
        inputs: Other inputs than those of the audit.
        run: Another way to run the model.
        tested: Another model than that of the audit: a copy in half precision.
        rows: The sequences of the audit that `inputs` consists of.
        columns: The positions of the audit that `inputs` consists of, if some were removed.
        order: The same for each sequence, if positions were moved.
    """

    change: Change | None = None
    inputs: Inputs | None = None
    run: Callable[[ModelUnderTest], Any] | None = None
    tested: ModelUnderTest | None = None
    rows: list[int] | None = None
    columns: list[int] | None = None
    order: list[list[int]] | None = None


NOWHERE: Final = Location()
SAME_RUN: Final = Rerun()


@dataclass(frozen=True)
class Failure:
    """A symptom that a probe observed, where, and how to observe it again."""

    probe: str
    symptom: Symptom
    message: Reason
    size: float = 0.0  # how far an output moved
    where: Location = NOWHERE
    rerun: Rerun = SAME_RUN
    reproduce: str = ""  # Python code for the user


@dataclass(frozen=True)
class Case:
    """One comparison of a probe.

    Args:
        what: What was compared.
        status: Its result.
        why: Why it has no result, if it has none.
        optional: A model need not support it, such as compilation. If it could not run, the probe
            passes by its other cases.
    """

    what: Reason
    status: Status
    why: Reason | None = None
    optional: bool = False


@dataclass
class ProbeResult:
    """What a probe did, the result of each of its comparisons, and the failures that it observed.

    Args:
        probe: Its name.
        tried: What it did, as text.
        failures: What it observed that must not be.
        notes: Remarks.
        cases: Its comparisons. A probe without failures passed if one passed, and none that is not
            optional has no result.
        skipped: Whether there is nothing to test.
        passes: Number of times that the model was run.
        worst: The largest movement where there must be none.
        limit: The largest movement that noise and rounding can cause; None if not measured.
        sensitivity: How far an output moves if one visible position is changed: a planted leak.
        measured: (batch, outputs, inputs), if each position was changed by itself.
    """

    probe: str
    tried: Reason | None = None
    failures: list[Failure] = field(default_factory=list)
    notes: list[Reason] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)
    skipped: bool = False
    passes: int = 0
    worst: float = 0.0
    limit: float | None = None
    sensitivity: float | None = None
    measured: Any = None

    @property
    def status(self) -> Status:
        """The result of the probe."""
        if self.failures:
            return Status.FAILED
        if self.skipped:
            return Status.NOT_APPLICABLE
        found = [case.status for case in self.cases]
        needed = [case.status for case in self.cases if not case.optional]
        for status in (Status.NOT_RUN, Status.NOT_TESTED):
            if status in needed:
                return status
        if Status.PASSED in found:
            return Status.PASSED
        return found[0] if found else Status.NOT_APPLICABLE

    def add_case(
        self,
        what: Reason,
        status: Status = Status.PASSED,
        code: str | None = None,
        *,
        optional: bool = False,
        **params: Any,
    ) -> None:
        """Adds the result of a comparison; `code` is the message of why it has none.

        Without a code, one that was not tested has noise that exceeds a planted leak.
        """
        if status is Status.NOT_TESTED and code is None:
            code = "audit.noise" if self.sensitivity else "audit.noise.no_effect"
            if self.sensitivity is None:
                code = "audit.noise.unknown"
            params = {"limit": self.limit or 0.0, "sensitivity": self.sensitivity}
        why = None if code is None else _reason(code, params)
        self.cases.append(Case(what, status, why, optional))
        if status in (Status.PASSED, Status.FAILED):
            before = () if self.tried is None else self.tried.params["parts"]
            self.tried = Reason("audit.tried", {"parts": (*before, what)})

    def fail(
        self,
        symptom: Symptom,
        code: str,
        where: Location = NOWHERE,
        size: float = 0.0,
        rerun: Rerun = SAME_RUN,
        reproduce: str = "",
        **params: Any,
    ) -> None:
        """Adds a failure, whose message has these parameters, the size, and the positions."""
        at = {"batch": where.batch, "output": where.output, "input": where.input}
        message = _reason(code, {**at, "size": size, **params})
        failure = Failure(self.probe, symptom, message, size, where, rerun, reproduce)
        self.failures.append(failure)

    def note(self, code: str, **params: Any) -> None:
        """Adds a note, by the code of its message."""
        self.notes.append(_reason(code, params))

    def describe(self, lang: str = "en") -> str:
        """What the probe did, what has no result and why, and its notes, as one line of text.

        A probe that stopped at its first comparison is described by its failure.
        """
        parts: tuple[Reason, ...] = () if self.tried is None else (self.tried,)
        if not parts and self.failures:
            parts = (self.failures[0].message,)
        groups: dict[str, list[Case]] = {}
        for case in self.cases:
            if not case.status.conclusive:
                groups.setdefault(f"{case.status} {case.why}", []).append(case)
        for first, *others in groups.values():
            status = Reason(f"audit.status.{first.status.value}")
            what = Reason("audit.cases", {"first": first.what, "count": len(others)})
            params = {"case": what if others else first.what, "status": status, "why": first.why}
            code = "audit.case" if first.why is None else "audit.case.why"
            parts += (Reason(code, params),)
        parts += tuple(self.notes)
        return render(Reason("audit.tried", {"parts": parts}), lang) if parts else ""


@dataclass(frozen=True)
class ProbeContext:
    """What a probe tests: a model at its baseline, and the mask expected on one of its inputs."""

    meter: Meter
    expected: Expectation
    name: Key  # of the input whose positions are changed
    has_attention: bool = True  # attention calls were recorded
    num_heads: int | None = None
    step: Step | None = None
    variants: Mapping[str, Callable[..., Any]] | None = None
    failed: bool = False  # an earlier probe failed
    calls: Sequence[AttentionCall] = ()  # of one pass
    half: ModelUnderTest | None = None  # the model in half precision, if a copy is audited

    @property
    def judged(self) -> torch.Tensor:
        """(batch, outputs): the outputs that are tested."""
        return torch.from_numpy(self.expected.judged)

    def result(self, probe: str) -> ProbeResult:
        """An empty result, with the detection limit and the planted leak of this model."""
        return ProbeResult(probe, limit=self.meter.limit, sensitivity=self.meter.planted)


Probe = Callable[[ProbeContext], ProbeResult]

PROBES: Final[Registry[Probe]] = Registry(
    "probe",
    "maskwright.auditing.probes",
    {
        "leak": "leak:leak",
        "reach": "leak:reach",
        "gradient": "leak:gradient",
        "padding": "padding:padding",
        "documents": "padding:documents",
        "batch": "splits:batch",
        "prefix": "splits:prefix",
        "steps": "splits:steps",
        "numbers": "numerics:numbers",
        "paths": "variants:paths",
        "dtype": "numerics:dtype",
    },
)


def skip(probe: str, code: str, **params: Any) -> ProbeResult:
    """The result of a probe that does not apply; the note says why."""
    return ProbeResult(probe, notes=[_reason(code, params)], skipped=True)


def per_input(probe: Probe) -> Probe:
    """Marks a probe that runs once for each input with positions, not only for the main input."""
    probe.per_input = True  # type: ignore[attr-defined]
    return probe


def brief(error: BaseException) -> str:
    """The first line of an error."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]


def _reason(code: str, params: Mapping[str, Any]) -> Reason:
    """A message, in which an error is its first line."""
    texts = {name: brief(x) for name, x in params.items() if isinstance(x, BaseException)}
    return Reason(code, {**params, **texts})
