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

from maskwright.auditing.measure import CONFIRM_BELOW, argmax2
from maskwright.auditing.model_under_test import Change, accepts_argument
from maskwright.auditing.probes import Location, ProbeContext, ProbeResult, Rerun, Status, Symptom
from maskwright.auditing.probes.leak import masked_from, masked_pairs, unaffected_by
from maskwright.auditing.probes.splits import compare_run
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
    tested = context.meter.tested
    result = context.result("paths")
    variants = default_variants(tested)
    if context.failed and any(variant is compiled for _, variant in variants):
        variants = [(case, variant) for case, variant in variants if variant is not compiled]
        result.note("audit.paths.not_compiled")
    for name, variant in (context.variants or {}).items():
        variants.append((Reason("audit.variant.custom", {"name": name}), variant))
    for case, variant in variants:
        if context.meter.plan.exhausted:
            result.add_case(case, Status.NOT_TESTED, "audit.budget")
        else:
            _compare(context, result, case, variant)
    _without_mask(context, result)
    _autocast(context, result)
    _find_training_leak(context, result)
    return result


def _compare(context: ProbeContext, result: ProbeResult, case: Reason, variant: Variant) -> None:
    """Runs a variant, and adds a failure if it is wrong and not rounded differently."""
    meter = context.meter
    own = case.code == "audit.variant.custom"  # given by the user: it must run

    def measure(other: Meter) -> torch.Tensor:
        return other.compare(other.tested.run_variant(variant), context.judged)

    try:
        out = meter.tested.run_variant(variant)
    except Exception as error:
        result.add_case(case, Status.NOT_RUN, "audit.raises", optional=not own, error=error)
        return
    if out.shape != meter.baseline.shape:
        shape = tuple(out.shape)
        result.add_case(case, Status.NOT_RUN, "audit.shape_differs", shape=shape)
        return
    moved = meter.compare(out, context.judged)
    result.worst = max(result.worst, float(moved.max()) if moved.numel() else 0.0)
    found = meter.judge(moved, measure, reshaped=True)
    if found.status is not Status.FAILED:
        result.add_case(case, found.status, optional=not own)
    elif _is_random(meter, variant, out):
        result.add_case(case, Status.NOT_TESTED, "audit.paths.random", optional=True)
    elif variant in (in_training, checkpointed) and _same_masks(meter.tested, variant):
        result.note("audit.paths.same_masks", case=case)
        result.add_case(case)
    else:
        rerun = Rerun(run=lambda other: other.run_variant(_recordable(variant)))
        symptom, where = Symptom.VARIANT_DIFFERS, Location(found.batch, found.position)
        result.fail(symptom, "audit.paths.failure", where, found.size, rerun, case=case)
        result.add_case(case, Status.FAILED)


def _without_mask(context: ProbeContext, result: ProbeResult) -> None:
    """Runs sequences without padding without their attention_mask, which masks nothing."""
    tested = context.meter.tested
    mask = tested.inputs.get("attention_mask")
    if not isinstance(mask, torch.Tensor) or mask.dim() != 2 or len(mask) != tested.batch:
        return
    rows = torch.nonzero(mask.bool().all(1)).flatten().tolist()
    if not rows:
        return
    inputs = {k: x for k, x in tested.select_sequences(rows).items() if k != "attention_mask"}
    case, rerun = Reason("audit.variant.without_mask"), Rerun(inputs=inputs, rows=rows)
    judged = context.judged[rows]
    compare_run(
        context.meter, result, Symptom.VARIANT_DIFFERS, case, rerun, judged=judged, optional=True
    )


def _autocast(context: ProbeContext, result: ProbeResult) -> None:
    """Runs under torch.autocast, whose outputs are rounded: the masks of all calls must be equal."""
    tested = context.meter.tested
    if tested.module is None or not context.calls:
        return
    case = Reason("audit.variant.autocast")
    if context.expected.subset:
        result.add_case(case, Status.NOT_TESTED, "audit.paths.chosen", optional=True)
        return
    try:
        same = _same_masks(tested, under_autocast)
        finite = bool(tested.run_variant(under_autocast)[context.judged].isfinite().all())
    except Exception as error:
        result.add_case(case, Status.NOT_RUN, "audit.raises", optional=True, error=error)
        return
    if same is None:
        result.add_case(case, Status.NOT_TESTED, "audit.paths.other_calls", optional=True)
    elif same and (finite or not bool(context.meter.baseline[context.judged].isfinite().all())):
        result.add_case(case)
    else:
        rerun = Rerun(run=lambda other: other.run_variant(under_autocast))
        code = "audit.paths.masks" if not same else "audit.paths.not_finite"
        symptom = Symptom.VARIANT_DIFFERS if not same else Symptom.HALF_NOT_FINITE
        result.fail(symptom, code, rerun=rerun, case=case)
        result.add_case(case, Status.FAILED)


def _is_random(meter: Meter, variant: Variant, out: torch.Tensor) -> bool:
    """Whether the output depends on the seed: a router may add noise in training."""
    other = meter.tested.copy_with(seed=meter.tested.seed + 1)
    found = other.run_variant(variant)
    meter.tested.passes += other.passes
    if found.shape != out.shape:
        return False
    return float(meter.difference(found, out).max()) > meter.rounding


def _same_masks(tested: ModelUnderTest, variant: Variant) -> bool | None:
    """Whether the attention calls of a variant have the masks of the model itself.

    None if the variant makes other calls, so that they cannot be compared.
    """
    with recording(tested.model) as baseline:
        tested.run()
    with recording(tested.model) as other:
        tested.run_variant(variant)
    if not baseline.calls or len(baseline.calls) != len(other.calls):
        return None
    pairs = list(zip(baseline.calls, other.calls, strict=True))
    if any(one.visible.shape[-2:] != two.visible.shape[-2:] for one, two in pairs):
        return None
    return all(np.array_equal(one.visible.any(1), two.visible.any(1)) for one, two in pairs)


# ── a leak in training mode ───────────────────────────────────────────────────────────────────


def _find_training_leak(context: ProbeContext, result: ProbeResult) -> None:
    """Trains with dropout and a fixed seed: outputs must not depend on masked positions.

    Without dropout this is tested by running in training mode, unless that could not be compared.
    """
    meter, expected, name = context.meter, context.expected, context.name
    tested, module = meter.tested, meter.tested.module
    if module is None or expected.whole_model:
        return
    compared = [c for c in result.cases if c.what.code == "audit.variant.training"]
    drops = any(rate for *_, rate in _dropout_rates(module.modules()))
    if not drops and any(case.status is Status.PASSED for case in compared):
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
            if found is None and size > max(meter.rounding, CONFIRM_BELOW * meter.size):
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
    if accepts_argument(module, "use_cache") and "use_cache" not in tested.inputs:
        found.append(("without_cache", _with_options(use_cache=False)))
    any_option = hasattr(module, "config")  # transformers passes options on by **kwargs
    if accepts_argument(module, "output_attentions", var_keyword=any_option):
        found.append(("output_attentions", _with_options(output_attentions=True)))
    checkpoints = hasattr(module, "gradient_checkpointing_enable")
    if checkpoints and getattr(module, "supports_gradient_checkpointing", True):
        found.append(("checkpointed", checkpointed))
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


def checkpointed(model: Any, *args: Any, **given: Any) -> Any:
    """Runs in training mode with gradient checkpointing."""
    enable = model.gradient_checkpointing_enable
    options: dict[str, Any] = {"gradient_checkpointing_kwargs": {"use_reentrant": False}}
    if not accepts_argument(enable, "gradient_checkpointing_kwargs"):
        options = {}
    kept = {part: part.gradient_checkpointing for part in model.modules() if _checkpoints(part)}
    with _no_warnings():
        enable(**options)
        try:
            return in_training(model, *args, **given)
        finally:
            model.gradient_checkpointing_disable()
            for part, flag in kept.items():
                part.gradient_checkpointing = flag


def _checkpoints(part: nn.Module) -> bool:
    return isinstance(getattr(part, "gradient_checkpointing", None), bool)


def under_autocast(model: Any, *args: Any, **given: Any) -> Any:
    """Runs under torch.autocast in bfloat16."""
    device = next((w.device.type for w in model.parameters()), "cpu")
    with torch.autocast(device, torch.bfloat16):
        return model(*args, **given)


def _with_options(**options: Any) -> Variant:
    """Runs with other keyword arguments."""

    def run(model: Any, *args: Any, **given: Any) -> Any:
        with _no_warnings():
            return model(*args, **{**given, **options})

    return run


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
