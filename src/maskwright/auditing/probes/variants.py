"""Paths: other ways to run the same model, in training mode, compiled, ..., give the same outputs."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import nn
from torch.overrides import TorchFunctionMode

from maskwright.auditing.measure import argmax2
from maskwright.auditing.model_under_test import Change
from maskwright.auditing.probes import Location, ProbeContext, ProbeResult, Rerun, Status, Symptom
from maskwright.auditing.probes.leak import masked_from, masked_pairs, unaffected_by
from maskwright.messages import Reason
from maskwright.tracing import recording

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from maskwright.auditing.measure import Meter
    from maskwright.auditing.model_under_test import ModelUnderTest

Variant = Callable[..., Any]  # of a model and its arguments
FLEX: Final = "flex_attention"
IMPLEMENTATIONS: Final = ("eager", "sdpa", FLEX)


def paths(context: ProbeContext) -> ProbeResult:
    """Runs every variant of the model: its outputs must be those of the model itself.

    A model that failed another probe is not compiled, which takes longest.
    """
    meter, tested = context.meter, context.meter.tested
    result = ProbeResult("paths")
    variants = default_variants(tested)
    if context.failed and any(variant is compiled for _, variant in variants):
        variants = [(case, variant) for case, variant in variants if variant is not compiled]
        result.note("audit.paths.not_compiled")
    for name, variant in (context.variants or {}).items():
        variants.append((Reason("audit.variant.custom", {"name": name}), variant))
    random = False
    for case, variant in variants:
        try:
            out = tested.run_variant(variant)
        except Exception as error:
            result.add_case(case, Status.NOT_RUN, "audit.raises", optional=True, error=error)
            continue
        if out.shape != meter.baseline.shape:
            shape = tuple(out.shape)
            result.add_case(case, Status.NOT_RUN, "audit.shape_differs", shape=shape)
            continue
        moved = meter.compare(out, context.judged)
        result.worst = max(result.worst, float(moved.max()) if moved.numel() else 0.0)
        if bool((moved > 0).any()):
            if _is_random(meter, variant, out):
                random = True
                result.note("audit.paths.random", case=case)
                continue
            _compare(context, result, case, variant, moved)
        result.add_case(case)
    _find_training_leak(context, result, random)
    return result


def _compare(
    context: ProbeContext, result: ProbeResult, case: Reason, variant: Variant, moved: torch.Tensor
) -> None:
    """Adds a failure if a variant with other outputs is wrong, and not rounded differently."""
    meter = context.meter

    def measure(other: Meter) -> float:
        return float(other.compare(other.tested.run_variant(variant), context.judged).max())

    if variant is in_training and _same_masks(meter.tested, variant):
        result.note("audit.paths.same_masks", case=case)
        return
    b, i = argmax2(moved)
    size = float(moved[b, i])
    if meter.confirmed(size, measure):
        rerun = Rerun(run=lambda other: other.run_variant(_recordable(variant)))
        symptom, where = Symptom.VARIANT_DIFFERS, Location(b, i)
        result.fail(symptom, "audit.paths.failure", where, size, rerun, case=case)


def _is_random(meter: Meter, variant: Variant, out: torch.Tensor) -> bool:
    """Whether the output depends on the seed: a router may add noise in training."""
    other = meter.tested.copy_with(seed=meter.tested.seed + 1)
    found = other.run_variant(variant)
    meter.tested.passes += other.passes
    return found.shape == out.shape and bool((meter.difference(found, out) > 0).any())


def _same_masks(tested: ModelUnderTest, variant: Variant) -> bool:
    """Whether the attention calls of a variant, if any, have the masks of the model itself."""
    with recording(tested.model) as baseline:
        tested.run()
    with recording(tested.model) as other:
        tested.run_variant(variant)
    pairs = list(zip(baseline.calls, other.calls, strict=False))
    same = len(baseline.calls) == len(other.calls) > 0
    return same and all(np.array_equal(one.visible, two.visible) for one, two in pairs)


# ── a leak in training mode ───────────────────────────────────────────────────────────────────


def _find_training_leak(context: ProbeContext, result: ProbeResult, random: bool) -> None:
    """Trains with dropout and a fixed seed: outputs must not depend on masked positions."""
    meter, expected, name = context.meter, context.expected, context.name
    tested, module = meter.tested, meter.tested.module
    if module is None or expected.whole_model:
        return
    if not random and not any(rate for *_, rate in _dropout_rates(module.modules())):
        return
    masked = masked_pairs(meter, expected, name)
    rows = np.flatnonzero(masked.any((0, 2)))
    if not rows.size:
        return
    found: tuple[float, int, int] | None = None
    module.train()
    try:
        with _DropoutShapes() as dropped:
            baseline = tested.run()
        tokens = {tested.batch * tested.length(key) for key in tested.embeddings}
        if any(len(shape) == 2 and shape[0] not in tokens for shape in dropped.shapes):
            return  # experts, each with its own tokens: dropout depends on the routing
        if not torch.equal(baseline, tested.run()):
            return  # a state that changes in training
        for n, row in enumerate(rows[[0, rows.size // 2, -1]]):
            where = masked_from(masked, expected.judged, int(row))
            unaffected = torch.from_numpy(unaffected_by(expected, where))
            change = Change(name, torch.from_numpy(where), "noise", seed=n)
            with _DropoutShapes() as other:
                out = tested.run(change=change)
            if other.shapes != dropped.shapes:
                return  # dropout draws other numbers
            moved = torch.where(unaffected, meter.difference(out, baseline), 0.0)
            size = float(moved.max())
            if found is None and size > 0 and meter.exceeds_rounding(size):
                found = (size, *argmax2(moved))
    except Exception:  # a model that cannot be run in training mode
        return
    finally:
        module.eval()
    if found is not None:
        size, b, i = found
        symptom, rerun = Symptom.TRAINING_LEAK, Rerun(run=_run_training)
        result.fail(symptom, "audit.paths.training_leak", Location(b, i), size, rerun)


class _DropoutShapes(TorchFunctionMode):  # type: ignore[misc]
    """Records the shapes of all calls of dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Records the shape, and calls the function."""
        if func is F.dropout and args:
            self.shapes.append(tuple(args[0].shape))
        return func(*args, **(kwargs or {}))


def _run_training(tested: ModelUnderTest) -> Any:
    assert tested.module is not None
    with _training_mode(tested.module):
        return tested.run()


@contextmanager
def _training_mode(module: nn.Module) -> Iterator[None]:
    module.train()
    try:
        yield
    finally:
        module.eval()


def _dropout_rates(owners: Iterable[Any]) -> Iterator[tuple[Any, str, float]]:
    """The dropout probabilities of modules or configs: the owner, the attribute and its value."""
    for owner in owners:
        for name, value in getattr(owner, "__dict__", {}).items():
            own = isinstance(owner, nn.modules.dropout._DropoutNd) and name == "p"
            if isinstance(value, float) and (own or "drop" in name.lower()):
                yield owner, name, value


# ── variants ──────────────────────────────────────────────────────────────────────────────────


def default_variants(tested: ModelUnderTest) -> list[tuple[Reason, Variant]]:
    """The variants that every module has, and those that this one has."""
    module = tested.module
    if module is None:
        return []
    found: list[tuple[str, Variant]] = [("with_grad", with_gradients)]
    if not any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()):
        found.append(("training", in_training))
    if any(isinstance(part, nn.MultiheadAttention) for part in module.modules()):
        found.append(("with_weights", _need_weights(True)))
        found.append(("without_weights", _need_weights(False)))
    found += [(name, _with_implementation(name)) for name in _other_implementations(module)]
    found.append(("uncompiled", _uncompiled) if _is_compiled(module) else ("compiled", compiled))
    return [(Reason(f"audit.variant.{name}"), variant) for name, variant in found]


def with_gradients(model: Any, *args: Any, **given: Any) -> Any:
    """Runs with gradients enabled."""
    with torch.enable_grad():
        return model(*args, **given)


def in_training(model: Any, *args: Any, **given: Any) -> Any:
    """Runs in training mode without dropout."""
    with without_dropout(model), _training_mode(model), torch.enable_grad():
        return model(*args, **given)


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Sets every dropout probability to 0, whatever attribute holds it."""
    parts = [*model.modules()]
    configs = {id(c): c for part in parts if (c := vars(part).get("config")) is not None}
    kept = list(_dropout_rates([*parts, *configs.values()]))
    for owner, name, _ in kept:
        object.__setattr__(owner, name, 0.0)  # a config may be frozen
    try:
        yield
    finally:
        for owner, name, value in kept:
            object.__setattr__(owner, name, value)


def _need_weights(needed: bool) -> Variant:
    def run(model: Any, *args: Any, **given: Any) -> Any:
        real = nn.MultiheadAttention.forward

        def forward(self: Any, *inner: Any, **options: Any) -> Any:
            if len(inner) < 5:
                options["need_weights"] = needed
            return real(self, *inner, **options)

        with _patched(nn.MultiheadAttention, "forward", forward), torch.enable_grad():
            return model(*args, **given)

    return run


@contextmanager
def _patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    kept = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, kept)


# ── attention implementations of transformers ─────────────────────────────────────────────────


def _other_implementations(module: nn.Module) -> list[str]:
    """The attention implementations that a model of transformers supports, without its own."""
    own = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if own not in IMPLEMENTATIONS or not hasattr(module, "set_attn_implementation"):
        return []
    settable = getattr(module, "_can_set_attn_implementation", None)
    if settable is not None and not settable():
        return []
    flex = bool(getattr(module, "_supports_flex_attn", False))
    return [name for name in IMPLEMENTATIONS if name != own and (name != FLEX or flex)]


def _with_implementation(name: str) -> Variant:
    def run(model: Any, *args: Any, **given: Any) -> Any:
        # flex_attention takes long to compile.
        eager = torch.compiler.set_stance("force_eager") if name == FLEX else nullcontext()
        with _restored_implementation(model), _no_warnings(), eager:
            model.set_attn_implementation(name)
            return model(*args, **given)

    return run


@contextmanager
def _restored_implementation(model: Any) -> Iterator[None]:
    """Restores the attention implementation in every part that has a config."""
    configs = [vars(part).get("config") for part in model.modules()]
    kept = {
        id(c): (c, c._attn_implementation) for c in configs if hasattr(c, "_attn_implementation")
    }
    try:
        yield
    finally:
        model.set_attn_implementation(kept[id(model.config)][1])
        for config, own in kept.values():
            config._attn_implementation_internal = own


# ── torch.compile ─────────────────────────────────────────────────────────────────────────────


def compiled(model: Any, *args: Any, **given: Any) -> Any:
    """Runs with torch.compile, with a backend that runs its graphs eagerly.

    That shows what a model does differently while it is compiled, and needs no compiler.
    """
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    with _no_warnings():
        try:
            found = torch.compile(model, backend=backend, dynamic=False)(*args, **given)
        finally:
            torch.compiler.reset()
    if not graphs:
        raise RuntimeError("torch.compile captured no graph")
    return found


def _recordable(variant: Variant) -> Variant:
    """The variant to run while attention is recorded, which is not possible in compiled code."""
    return _as_if_compiling if variant is compiled else variant


def _as_if_compiling(model: Any, *args: Any, **given: Any) -> Any:
    """Runs eagerly, with torch.compiler.is_compiling() returning True."""
    with _patched(torch.compiler, "_is_compiling_flag", True):
        return model(*args, **given)


def _is_compiled(module: nn.Module) -> bool:
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)


def _uncompiled(model: Any, *args: Any, **given: Any) -> Any:
    return model._orig_mod(*args, **given)


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Turns off the warnings of torch.compile."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
