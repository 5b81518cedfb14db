"""`audit`: probes that test whether a model respects its mask, and the diagnosis of what failed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from maskwright.auditing.expectations import (
    ByLayer,
    Expectation,
    SubsetOf,
    expect,
    own_calls,
    propose,
    read_expects,
)
from maskwright.auditing.frameworks import AuditCall, adapt
from maskwright.auditing.measure import (
    Meter,
    Plan,
    Status,
    influence_by_change,
    make_meter,
    plant,
    read_budget,
)
from maskwright.auditing.model_under_test import (
    Key,
    ModelUnderTest,
    eval_mode,
    find_embeddings,
    first_tensor,
    in_float32,
    make_model_under_test,
)
from maskwright.auditing.probes import (
    PROBES,
    Failure,
    Location,
    Probe,
    ProbeContext,
    ProbeResult,
    Symptom,
    brief,
)
from maskwright.auditing.report import AuditFinding, AuditReport
from maskwright.core.atoms import causal, everything
from maskwright.core.expr import brief as abbreviate
from maskwright.errors import ArgumentError, MaskError
from maskwright.messages import Reason
from maskwright.tracing import Trace, recording

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from maskwright.auditing.probes import Step
    from maskwright.core.expr import Mask
    from maskwright.core.validate import BoolArray
    from maskwright.tracing import AttentionCall

MAX_NOISE: Final = 1e-3  # of the outputs' size, between identical runs of a deterministic model
EXPECTING: Final = ("leak", "reach", "gradient")  # probes that test the expected mask alone
MAX_PROPOSED: Final = 256  # positions up to which the dependence of outputs is measured
NUM_PER_PROBE: Final = 10  # passes of a probe, to estimate the time before the first one


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
    budget: str | float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> AuditReport:
    """Tests, as a black box, whether a model respects its attention mask.

    The audit changes inputs on which an output must not depend, and inputs on which it must. It
    changes, adds, removes and moves padding, cuts and extends the sequence, and runs sequences
    alone and in a batch, in steps with a KV cache, in other dtypes, compiled, and with other
    attention implementations. A failure is traced to its layer, cause and fix with the masks that
    the model's attention used. Dropout is off, the random seed is fixed, and the state of the model
    is restored.

    A probe passes only if it could have failed: what one visible position causes is measured, and a
    comparison whose noise is larger is not tested. A model in half precision is audited in a
    float32 copy, or layer by layer if that does not fit into memory.

    Args:
        model: A PyTorch module, a Keras 3 model, a function of tensors or of arrays of NumPy or
            JAX, or the method `generate` of a model of transformers.
        inputs: A tensor or array, a tuple of arguments, or a dict of keyword arguments. Positions
            are the second axis of ids (batch, positions) or of floats (batch, positions, features).
            May be omitted for models of transformers.
        expects: The mask of every layer, or its text; a list with the mask of each layer, or a dict
            of them by the names of modules; "causal", "bidirectional" or "encoder-decoder"; "auto",
            which reads the config of a model of transformers; or a dict with, for each input, the
            mask of the whole model: what its outputs may depend on. `some(mask)` is a layer that
            chooses keys within a mask. Of other models, "auto" reports the masks that the layers
            and outputs behave like, and tests whether these are the same however it is run.
        output: Selects the output, (batch, positions, ...), from what the model returns.
        layers: Number of attention layers; counted by default.
        pad_id: The id of padding, if the model recognizes padding by its ids.
        step: step(model, piece, state) runs the next positions with a cache, and returns the output
            and the new state, which is None at first. Not needed for models of transformers.
        paths: Other ways to run the model that must give the same outputs, by name: functions of
            the model and its inputs.
        probes: The probes to run, by default all: leak, reach, gradient, padding, documents, batch,
            prefix, steps, numbers, paths, dtype.
        seed: Random seed.
        budget: The time that the audit may take: seconds, or text such as "90s" or "2min". Probes
            that do not fit are not tested. By default there is no limit, and fewer positions are
            tested if one pass takes long.
        progress: Called with a `Progress` before each probe.

    Returns:
        An `AuditReport`; `report.ok` is True if every probe that applies passed.

    Raises:
        ArgumentError: If the model, its inputs or an option cannot be used.
        TextError: If `expects` is text that is not a mask.

    >>> import torch, maskwright as mw
    >>> def mean_so_far(x):
    ...     return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
    >>> mw.audit(mean_so_far, torch.randn(2, 8, 4), expects="causal").ok
    True
    >>> report = mw.audit(lambda x: mean_so_far(x.flip(1)).flip(1), torch.randn(2, 8, 4), expects="causal")
    >>> report.ok, report.findings[0].probe
    (False, 'leak')
    """
    plan = Plan(read_budget(budget))
    start = time.perf_counter()
    call = AuditCall(model, inputs, expects, output, step, paths, probes)
    is_module = isinstance(model, torch.nn.Module)
    if not is_module or type(model).__call__ is not torch.nn.Module.__call__:
        call = adapt(call)  # a function, or a model of another framework
    names = _read_probes(call.probes)
    model, inputs, expects = call.model, call.inputs, call.expects
    output, step, paths = call.output, call.step, call.paths
    expected = read_expects(expects)
    generated = inputs is None
    if inputs is None or expected == "auto":
        from maskwright.auditing.huggingface import (
            expected_masks,
            is_transformers_model,
            make_inputs,
        )

        inputs = make_inputs(model) if inputs is None else inputs
        if expected == "auto":
            known = is_transformers_model(model)
            expected = expected_masks(model, inputs) if known else Proposal()
    expected = _by_layer(expected, model, inputs)
    input_names = _input_names(expected, inputs)
    if expected == "encoder-decoder":
        expected = {input_names[0]: everything(), input_names[1]: causal()}
    tested = make_model_under_test(
        model, inputs, names=input_names, output=output, pad_id=pad_id, seed=seed
    )
    with eval_mode(model):
        run = AuditRun(tested, expected, layers, step, paths, generated, plan=plan)
        run.use_float32()
        results = run.run_probes(names, progress)
        findings = run.findings(results)
    return run.report(results, findings, time.perf_counter() - start)


def _by_layer(expected: Any, model: Any, inputs: Any) -> Any:
    """A dict of masks whose keys are modules of the model, and not inputs."""
    known = set(inputs) if isinstance(inputs, dict) else set(range(len(inputs)))
    if not isinstance(expected, dict) or not isinstance(model, torch.nn.Module):
        return expected
    modules = {name for name, _ in model.named_modules()}
    if expected and not set(expected) & known and set(expected) <= modules:
        return ByLayer(expected)
    return expected


@dataclass(frozen=True)
class Progress:
    """How far an audit is: the next probe, and the passes and seconds until now.

    Args:
        probe: The probe that runs next.
        done: Number of probes before it.
        total: Number of all probes.
        passes: Number of times that the model was run.
        seconds: Time since the start.
        seconds_left: Estimated time that the remaining probes take.
    """

    probe: str
    done: int
    total: int
    passes: int
    seconds: float
    seconds_left: float


def _read_probes(probes: Sequence[str] | None) -> tuple[str, ...]:
    if probes is None:
        return tuple(PROBES.entries)
    given = (probes,) if isinstance(probes, str) else tuple(probes)
    names = [PROBES.resolve(name, "audit") for name in given]
    return tuple(name for name in PROBES.entries if name in names)


@cache
def _probe(name: str) -> Probe:
    """A registered probe, imported once."""
    return PROBES[name]


def _input_names(expected: Any, inputs: Any) -> tuple[Key, ...]:
    """The inputs whose positions are changed; the outputs have the positions of the last one."""
    if isinstance(expected, dict):
        return tuple(expected)
    if expected != "encoder-decoder":
        return ()
    held = inputs.items() if isinstance(inputs, dict) else enumerate(inputs)
    ids = [name for name, x in held if isinstance(x, torch.Tensor) and x.dim() in (2, 3)]
    if len(ids) < 2:
        raise ArgumentError(
            'audit: expects="encoder-decoder" needs two inputs with positions, the source first. '
            "Pass both, as a tuple or a dict."
        )
    return ids[0], ids[1]


class Proposal:
    """Stands for the mask of a model of which none is expected, until it has run."""


@dataclass
class AuditRun:
    """One audit: the model, what is expected of it, and its baseline."""

    tested: ModelUnderTest
    expects: Any
    layers: int | None = None
    step: Step | None = None
    variants: Mapping[str, Callable[..., Any]] | None = None
    generated_inputs: bool = False
    plan: Plan = field(default_factory=Plan)
    half: ModelUnderTest | None = None  # the model itself, if a copy in float32 is audited
    proposed: tuple[tuple[str, Mask | None], ...] = ()  # the masks that the model behaves like
    calls: list[AttentionCall] = field(default_factory=list)  # of one pass
    expected: dict[Key, Expectation] = field(default_factory=dict)  # for each input

    def use_float32(self) -> None:
        """Audits a model in half precision in float32, if it runs there."""
        try:
            other = in_float32(self.tested)
        except Exception:  # which the baseline shows again
            return
        if other is not None:
            self.half, self.tested = self.tested, other
            other.passes, self.half.passes = self.half.passes, 0

    def run_probes(
        self, names: Sequence[str], progress: Callable[[Progress], None] | None = None
    ) -> list[ProbeResult]:
        """Runs the model unchanged, and then each probe."""
        meter, failure = self._baseline()
        if meter is None:
            assert failure is not None
            tried = Reason("audit.run.tried", {})
            return [ProbeResult("run", tried, [failure])]
        heads = [call.q_shape[1] for call in self.calls if len(call.q_shape) == 4]
        results: list[ProbeResult] = []
        for n, name in enumerate(names):
            needs_mask = self.proposed and name in EXPECTING
            if progress is not None and not needs_mask:
                progress(self._progress(name, n, len(names)))
            if needs_mask or self.plan.exhausted:
                code = "audit.no_expectation" if needs_mask else "audit.budget"
                results.append(ProbeResult(name))
                results[-1].add_case(Reason("audit.probe"), Status.NOT_TESTED, code)
                continue
            before = self.tested.passes
            probe = _probe(name)
            inputs = self.expected if getattr(probe, "per_input", False) else (self.tested.main,)
            context = partial(
                ProbeContext,
                meter,
                has_attention=bool(self.calls),
                num_heads=max(heads, default=None),
                step=self.step,
                variants=self.variants,
                failed=any(result.failures for result in results),
                calls=self.calls,
                half=self.half,
            )
            try:
                parts = {key: probe(context(self.expected[key], key)) for key in inputs}
                result = _merged(parts)
            except MaskError:
                raise
            except Exception as error:  # of the audit's own call: it says nothing about the model
                result = ProbeResult(name)
                what = Reason("audit.probe")
                result.add_case(what, Status.NOT_RUN, "audit.raises", error=error)
            result.passes = self.tested.passes - before
            results.append(result)
        self._check_masks(results)
        if any(f.symptom is Symptom.LEAK for result in results for f in result.failures):
            for result in results:  # a leak in float32 does not come from half precision
                result.failures = [f for f in result.failures if f.symptom is not Symptom.HALF_LEAK]
        return results

    def _progress(self, probe: str, done: int, total: int) -> Progress:
        """The state before a probe; the time left is that of the probes before, per probe."""
        spent = time.perf_counter() - self.plan.started
        each = spent / done if done else NUM_PER_PROBE * self.plan.seconds_per_pass
        left = each * (total - done)
        limit = self.plan.seconds_left
        left = left if limit is None else min(left, limit)
        return Progress(probe, done, total, self.tested.passes, spent, left)

    def findings(self, results: Sequence[ProbeResult]) -> tuple[AuditFinding, ...]:
        """All failures with their diagnosis."""
        failures = [failure for result in results for failure in result.failures]
        if not failures:
            return ()
        from maskwright.auditing.diagnose import Evidence, diagnose

        evidence = Evidence(self.tested, self.expected, self.calls)
        return tuple(
            AuditFinding.from_failure(failure, diagnose(failure, evidence)) for failure in failures
        )

    def report(
        self, results: Sequence[ProbeResult], findings: tuple[AuditFinding, ...], seconds: float
    ) -> AuditReport:
        """The report."""
        own = self.expected.get(self.tested.main)
        measured = [result.measured for result in results if result.measured is not None]
        return AuditReport(
            findings,
            tuple(results),
            _describe_expected(self.expects),
            self.tested.passes,
            seconds,
            _model_name(self.tested.model),
            Trace(tuple(self.calls)) if self.calls else None,
            None if own is None else own.closure,
            None if own is None else own.judged,
            measured[-1] if measured else None,
            self.proposed,
        )

    # ── the baseline ──────────────────────────────────────────────────────────────────────────

    def _baseline(self) -> tuple[Meter | None, Failure | None]:
        """Runs the model on unchanged inputs: its output, its noise, and its attention calls."""
        try:
            with recording(self.tested.model) as recorder, torch.no_grad():
                output = first_tensor(find_embeddings(self.tested))
            if output is not None and output.device.type == "meta":
                raise RuntimeError("the output is on the meta device, which holds no data")
        except Exception as error:
            code = "audit.run.raises_generated" if self.generated_inputs else "audit.run.raises"
            message = Reason(code, {"error": brief(error)})
            return None, Failure("run", Symptom.RAISES, message)
        self.calls = list(recorder.calls)
        meter = make_meter(self.tested, self.plan)
        if self.half is not None:
            self.half.embeddings = dict(self.tested.embeddings)
            _match_embeddings(self.half, self.tested)
        noise = float(meter.noise.max()) if meter.noise.numel() else 0.0
        if noise > MAX_NOISE * max(meter.size, 1e-30) and noise > 0:
            message = Reason("audit.run.random", {"size": noise})
            return None, Failure("run", Symptom.NOT_DETERMINISTIC, message, noise)
        if isinstance(self.expects, Proposal):
            length = self.tested.length()
            columns: list[int] | None = None if length <= MAX_PROPOSED else []
            size = influence_by_change(meter, columns)
            self.expects, self.proposed = propose(self.calls, size > meter.rounding, length)
        if isinstance(self.expects, ByLayer):
            self.expects = self.expects.of_calls(own_calls(self.calls))
        for name in self.tested.embeddings:
            self.expected[name] = self._expect(name, meter.baseline.shape[1])
        own = self.expected[self.tested.main]
        meter.planted = plant(meter, own.closure, own.judged, self.tested.main)
        return meter, None

    def _expect(self, name: Key, outputs: int) -> Expectation:
        tested = self.tested
        layers = self.layers if self.layers is not None else self._count_layers()
        per_input = isinstance(self.expects, dict)
        mask = self.expects[name] if per_input else self.expects
        length = tested.length(name)
        if per_input and (name != tested.main or outputs != length):
            return expect(mask, outputs, length, tested.batch, whole_model=True)
        if outputs == length:
            return expect(mask, length, length, tested.batch, layers=layers)
        if outputs == 1:
            full = expect(mask, length, length, tested.batch, layers=layers)
            visible = np.logical_or.reduce(full.closure, axis=1) & ~full.padding
            return Expectation(full.masks, (visible[:, None, :],), whole_model=True, rows=full)
        raise ArgumentError(
            f"audit: the output has {outputs} positions, and the input {length}. Pass output=, a "
            "function that selects one output per position."
        )

    def _count_layers(self) -> int | None:
        """Steps of attention over all positions; else modules with attention over some of them."""
        length = self.tested.length()
        own = own_calls(self.calls)
        whole = [call for call in own if call.visible.shape[-2:] == (length, length)]
        steps = {call.step for call in whole}
        return len(steps) or len({call.layer for call in own if call.layer}) or None

    def _check_masks(self, results: Sequence[ProbeResult]) -> None:
        """A visible key that every layer masks, with an effect too small for the probe reach."""
        reach = next((r for r in results if r.probe == "reach" and not r.skipped), None)
        own = self.expected[self.tested.main]
        if reach is None or reach.failures or own.whole_model or len(own.masks) > 1 or own.subset:
            return
        length = self.tested.length()
        shape = (self.tested.batch, length, length)
        calls = [c for c in own_calls(self.calls) if c.visible.shape[-2:] == shape[-2:]]
        calls = [c for c in calls if c.visible.shape[0] in (1, shape[0])]
        if not calls:
            return
        seen = np.logical_or.reduce([np.broadcast_to(c.visible.any(1), shape) for c in calls])
        lost = own.direct & ~seen & own.judged[:, :, None]
        if lost.any() and not _is_permuted(seen, own.direct):
            where = Location(*(int(x) for x in np.argwhere(lost)[0]))
            reach.fail(Symptom.NO_DEPENDENCE, "audit.reach.masked", where)


def _merged(parts: Mapping[Key, ProbeResult]) -> ProbeResult:
    """The results of one probe on several inputs, as one."""
    tested = {key: part for key, part in parts.items() if not part.skipped}
    if len(parts) == 1 or not tested:
        return next(iter(parts.values()))
    tried = tuple(
        Reason("audit.input", {"name": key, "tried": part.tried})
        for key, part in tested.items()
        if part.tried is not None
    )
    return ProbeResult(
        next(iter(tested.values())).probe,
        Reason("audit.tried", {"parts": tried}) if tried else None,
        [failure for part in tested.values() for failure in part.failures],
        [note for part in tested.values() for note in part.notes],
        [
            replace(case, what=Reason("audit.input", {"name": key, "tried": case.what}))
            for key, part in tested.items()
            for case in part.cases
        ],
        worst=max(part.worst for part in tested.values()),
        measured=next(
            (p.measured for p in reversed(tested.values()) if p.measured is not None), None
        ),
    )


def _match_embeddings(half: ModelUnderTest, copied: ModelUnderTest) -> None:
    """Finds the embeddings of a copy in the original model."""
    if half.module is None or copied.module is None:
        return
    names = {id(part): name for name, part in copied.module.named_modules()}
    for key, embedding in copied.embeddings.items():
        if embedding is not None:
            found = half.module.get_submodule(names[id(embedding)])
            half.embeddings[key] = found if isinstance(found, torch.nn.Embedding) else None


def _is_permuted(seen: BoolArray, direct: BoolArray) -> bool:
    """Whether these are the right masks, of sequences that the model has reordered."""
    batch = range(len(seen))
    return all(any(np.array_equal(seen[b], direct[c]) for c in batch) for b in batch)


def _describe_expected(expects: Any) -> Reason:
    if isinstance(expects, dict):
        parts = tuple(
            Reason("audit.expects.input", {"name": name, "mask": _describe_expected(mask)})
            for name, mask in expects.items()
        )
        return Reason("audit.tried", {"parts": parts})
    if isinstance(expects, tuple):
        masks = tuple(dict.fromkeys(_describe_expected(mask) for mask in expects))
        return Reason("audit.expects.layers", {"masks": masks, "count": len(expects)})
    if isinstance(expects, Proposal):
        return Reason("audit.expects.none")
    if isinstance(expects, SubsetOf):
        return Reason("audit.expects.subset", {"mask": _describe_expected(expects.mask)})
    return Reason("audit.mask", {"mask": abbreviate(expects)})


def _model_name(model: Any) -> str:
    if isinstance(model, torch.nn.Module):
        return type(model).__name__
    return str(getattr(model, "__name__", None) or type(model).__name__).replace(
        "<lambda>", "model"
    )
