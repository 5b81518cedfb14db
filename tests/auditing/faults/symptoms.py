"""Symptoms of a fault, measured without the audit.

Each symptom compares outputs that must be equal and returns their largest difference: 0 if there is
nothing to compare, inf for NaN. Outputs at padding are ignored.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import maskwright as mw
from maskwright.auditing.expectations import SubsetOf
from tests.auditing.faults.tiny import PAD, VOCAB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.auditing.faults.registry import Case

Inputs = dict[Any, Any]  # by name; 0 is a positional argument
MORE = 3  # columns of padding that are added
HALF_DTYPES = (torch.bfloat16, torch.float16)


# ── running a case ────────────────────────────────────────────────────────────────────────────


def inputs_of(case: Case) -> Inputs:
    return dict(case.inputs) if isinstance(case.inputs, dict) else {0: case.inputs}


def run(
    case: Case,
    inputs: Inputs | None = None,
    path: Any = None,
    model: Any = None,
    grad: bool = False,
) -> Tensor:
    """The first output of the model; `path` is one of the audit's paths."""
    named = dict(inputs_of(case) if inputs is None else inputs)
    args = [named.pop(0)] if 0 in named else []
    model = case.model if model is None else model
    with torch.set_grad_enabled(grad):
        result = model(*args, **named) if path is None else path(model, *args, **named)
    return result if isinstance(result, Tensor) else result[0]


def padded_input(case: Case) -> Any:
    """The name of the input with the padding."""
    return next(iter(inputs_of(case)))


def real_tokens(case: Case) -> Tensor:
    """(B, T): the real tokens of that input."""
    inputs = inputs_of(case)
    for name in ("attention_mask", "src_mask"):
        if name in inputs and inputs[name].dim() == 2:
            return inputs[name].bool()
    return inputs[padded_input(case)] != PAD


def compared(case: Case) -> Tensor:
    """(B, T_out): the outputs that are compared."""
    inputs = inputs_of(case)
    return torch.ones_like(inputs["tgt"]).bool() if "tgt" in inputs else real_tokens(case)


def distances(one: Tensor, other: Tensor) -> Tensor:
    """(B, T_out): largest difference at each output."""
    return (one - other).abs().nan_to_num(nan=torch.inf).amax(-1).float()


def distance(one: Tensor, other: Tensor, where: Tensor) -> float:
    """Largest difference at the chosen (B, T_out)."""
    return float(distances(one, other)[where].max()) if bool(where.any()) else 0.0


def reachable(case: Case) -> dict[Any, Tensor]:
    """For each input, (B, T_out, T_in): the tokens on which an output may depend."""
    inputs, expects = inputs_of(case), case.expects
    expects = expects.mask if isinstance(expects, SubsetOf) else expects
    if isinstance(expects, dict):
        q_len = inputs["tgt"].size(1)
        found = {}
        for name, mask in expects.items():
            batch, size = inputs[name].shape
            start = None if q_len == size else 0
            bound = mask.on(q_len, size, batch=batch, q_start=start)
            found[name] = torch.from_numpy(bound.dense()).any(1).expand(batch, -1, -1)
        return found
    name = padded_input(case)
    batch, size = inputs[name].shape
    one_layer = torch.from_numpy(expects.on(size, batch=batch).dense()).any(1)
    one_layer = (one_layer | torch.eye(size, dtype=torch.bool)).float()
    modules = case.model.named_modules() if isinstance(case.model, nn.Module) else ()
    layers = sum(module.endswith(("attention", "self_attn")) for module, _ in modules)
    reach = torch.linalg.matrix_power(one_layer, layers or 2) > 0
    return {name: reach.expand(batch, -1, -1)}


@contextmanager
def on_embeddings(case: Case, ids: Tensor, replace: Callable[[Tensor], Tensor]) -> Iterator[list]:
    """Replace the embeddings of `ids`; yields a list that is not empty once that happened."""
    replaced: list[Tensor] = []

    def hook(_: Any, args: Any, out: Tensor) -> Tensor | None:
        if args[0].shape != ids.shape or not torch.equal(args[0], ids):
            return None
        replaced.append(replace(out))
        return replaced[-1]

    modules = case.model.modules() if isinstance(case.model, nn.Module) else ()
    handles = [m.register_forward_hook(hook) for m in modules if isinstance(m, nn.Embedding)]
    try:
        yield replaced
    finally:
        for handle in handles:
            handle.remove()


def movement(case: Case, name: Any, where: Tensor, train: bool = False) -> Tensor:
    """(B, T_out): change of each output if the tokens at `where` (B, T) of one input change.

    Their embeddings change, so that padding stays padding; without an embedding module their ids.
    """
    inputs = inputs_of(case)
    ids = inputs[name]
    noise = torch.randn(1, generator=torch.Generator().manual_seed(3))

    def measured(given: Inputs) -> Tensor:
        torch.default_generator.manual_seed(1)  # of dropout; torch.manual_seed is slow
        return run(case, given)

    if isinstance(case.model, nn.Module):
        case.model.train(train)
    try:
        before = measured(inputs)
        change = on_embeddings(
            case, ids, lambda x: torch.where(where[..., None], (noise - 2 * x.flip(-1)).to(x), x)
        )
        with change as changed:
            after = measured(inputs)
        if not changed:
            other = torch.where(where & (ids != PAD), ids % (VOCAB - 7) + 3, ids)
            after = measured({**inputs, name: other})
    finally:
        if isinstance(case.model, nn.Module):
            case.model.eval()
    return distances(after, before)


def some(size: int, count: int = 5) -> list[int]:
    """A few indices, the first and the last among them."""
    return sorted({round(i * (size - 1) / (count - 1)) for i in range(count)})


# ── symptoms ──────────────────────────────────────────────────────────────────────────────────


def leak(case: Case) -> float:
    """Change everything that an output must not depend on; with dropout also in training."""
    worst, rows = 0.0, compared(case)
    modules = [*case.model.modules()] if isinstance(case.model, nn.Module) else []
    dropout = any(isinstance(module, nn.Dropout) and module.p > 0 for module in modules)
    for name, reach in reachable(case).items():
        for row in range(reach.size(1)):
            for train in {False, dropout}:
                moved = movement(case, name, ~reach[:, row], train)[:, row]
                worst = max(worst, float(torch.where(rows[:, row], moved, 0.0).max()))
        worst = max(worst, across_batch(case, name))
    return worst


def across_batch(case: Case, name: Any) -> float:
    """Change one sequence, and compare the outputs of the others."""
    rows, worst = compared(case), 0.0
    for row in range(rows.size(0)):
        others = torch.arange(rows.size(0)) != row
        where = (~others)[:, None].expand(inputs_of(case)[name].shape)
        moved = movement(case, name, where)
        worst = max(worst, float(torch.where(rows & others[:, None], moved, 0.0).max()))
    return worst


def lost(case: Case) -> float:
    """1 if an output does not change with a visible token; layers that choose keys need not."""
    rows = compared(case)
    if isinstance(case.expects, SubsetOf):
        return 0.0
    for name, reach in reachable(case).items():
        ids = inputs_of(case)[name]
        real = real_tokens(case) if name == padded_input(case) else torch.ones_like(ids).bool()
        for column in range(reach.size(2)):
            where = torch.zeros(ids.shape).bool()
            where[:, column] = True
            moved = movement(case, name, where)
            visible = rows & reach[:, :, column] & real[:, column, None]
            if bool((visible & (moved < 1e-6)).any()):
                return 1.0
    return 0.0


def gradient_leak(case: Case) -> float:
    """The gradient of an output at the tokens that it must not depend on."""
    worst, rows = 0.0, compared(case)
    for name, reach in reachable(case).items():
        ids = inputs_of(case)[name]
        with on_embeddings(case, ids, lambda x: x.detach().clone().requires_grad_()) as leaves:
            out = run(case, grad=True)
        for row in some(reach.size(1)) if leaves else ():
            total = (out[:, row] * torch.linspace(-1, 1, out.size(-1)).to(out)).sum()
            grad = torch.autograd.grad(total, leaves[0], retain_graph=True)[0].norm(dim=-1)
            hidden = ~reach[:, row] & rows[:, row, None]
            worst = max(worst, float(torch.where(hidden, grad, 0.0).nan_to_num(nan=9.0).max()))
    return worst


def padding_matters(case: Case) -> float:
    """Change, remove or add padding."""
    real = real_tokens(case)
    if "documents" in inputs_of(case) or (bool(real.all()) and "pad_id" not in case.options):
        return 0.0
    moved = movement(case, padded_input(case), ~real)
    worst = float(torch.where(compared(case), moved, 0.0).max())
    on_left = not bool(real[:, 0].all()) and bool(real[:, -1].all())
    sides = {on_left} | ({True, False} if "pad_id" in case.options else set())
    return max(worst, stripped(case), *(more_padding(case, left) for left in sides))


def more_padding(case: Case, left: bool) -> float:
    """Add columns of padding on one side."""
    longer = inputs_of(case)
    for name in (padded_input(case), "attention_mask", "src_mask"):
        if name in longer:
            longer[name] = F.pad(longer[name], (MORE, 0) if left else (0, MORE), value=PAD)
    out = run(case, longer)
    if "tgt" not in longer:
        out = out[:, MORE:] if left else out[:, :-MORE]
    return distance(out, run(case), compared(case))


def stripped(case: Case) -> float:
    """Run each sequence alone, without its padding."""
    inputs, worst, together = inputs_of(case), 0.0, run(case)
    names = {padded_input(case), "attention_mask", "src_mask"} & {*inputs}
    if any(inputs[name].dim() > 2 for name in names) or "documents" in inputs:
        return 0.0
    for row, real in enumerate(real_tokens(case)):
        if bool(real.any()):
            alone = {name: x[row : row + 1] for name, x in inputs.items()}
            alone |= {name: alone[name][:, real] for name in names}
            out, other = run(case, alone), together[row : row + 1]
            other = other if "tgt" in inputs else other[:, real]
            worst = max(worst, distance(out, other, torch.ones(out.shape[:2]).bool()))
    return worst


def batch_matters(case: Case) -> float:
    """Run each sequence alone, with and without its padding, and the batch in reverse order."""
    inputs, rows, together = inputs_of(case), compared(case), run(case)
    reverse = run(case, {name: x.flip(0) for name, x in inputs.items()}).flip(0)
    worst = max(stripped(case), distance(reverse, together, rows))
    for row in range(rows.size(0)):
        here = slice(row, row + 1)
        alone = run(case, {name: x[here] for name, x in inputs.items()})
        worst = max(worst, distance(alone, together[here], rows[here]))
    return max(worst, *(across_batch(case, name) for name in reachable(case)))


def pieces_matter(case: Case) -> float:
    """Decode in pieces with the cache; run each packed document alone."""
    inputs, rows, whole, worst = inputs_of(case), compared(case), run(case), 0.0
    size = whole.size(1)
    if "step" in case.options:
        for cuts in ([1] * size, [5, 4, size - 9], [size // 2] + [1] * (size - size // 2)):
            state, parts = None, []
            with torch.no_grad():
                for piece in case.inputs.split(cuts, 1):
                    out, state = case.options["step"](case.model, piece, state)
                    parts.append(out)
            worst = max(worst, distance(torch.cat(parts, 1), whole, rows))
    if "documents" in repr(case.expects):
        for row, ids in enumerate(inputs["documents"]):
            for document in ids.unique():
                if document >= 0:
                    columns = ids == document
                    own = {name: x[row : row + 1, columns] for name, x in inputs.items()}
                    where = torch.ones(1, int(columns.sum())).bool()
                    there = whole[row : row + 1, columns]
                    worst = max(worst, distance(run(case, own), there, where))
    return worst


def outputs(case: Case) -> Iterator[Tensor]:
    """The output on every code path: gradients, training, attention weights, the case's own."""
    yield run(case)
    if isinstance(case.model, nn.Module):
        model = copy.deepcopy(case.model)
        multihead = [m for m in model.modules() if isinstance(m, nn.MultiheadAttention)]
        for grad in (False, True):
            yield run(case, grad=grad).detach()
            for need_weights in (False, True) if multihead else ():
                with forced_weights(multihead, need_weights):
                    yield run(case, model=model, grad=grad).detach()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        for train in (False, True):
            for grad in (False, True):
                yield run(case, model=model.train(train), grad=grad).detach()
    for path in case.options.get("paths", {}).values():
        yield run(case, path=path)


@contextmanager
def forced_weights(modules: list[nn.MultiheadAttention], need_weights: bool) -> Iterator[None]:
    """Call nn.MultiheadAttention with this `need_weights`."""

    def force(_: Any, args: Any, named: dict[str, Any]) -> Any:
        return args, {**named, "need_weights": need_weights}

    handles = [m.register_forward_pre_hook(force, with_kwargs=True) for m in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def path_matters(case: Case) -> float:
    """Run other code paths."""
    usual, *others = outputs(case)
    return max(distance(other, usual, compared(case)) for other in (usual, *others))


def gradient_not_finite(case: Case) -> float:
    """1 if a gradient is not finite, though only real tokens count in the loss."""
    if not isinstance(case.model, nn.Module):
        return 0.0
    model = copy.deepcopy(case.model)
    run(case, model=model, grad=True)[compared(case)].float().square().mean().backward()
    grads = [weight.grad for weight in model.parameters() if weight.grad is not None]
    return float(not all(bool(grad.isfinite().all()) for grad in grads))


def not_finite(case: Case) -> float:
    """1 if an output of any path, or a gradient, is not finite."""
    finite = all(bool(out.isfinite().all()) for out in outputs(case))
    return max(gradient_not_finite(case), float(not finite))


def half_precision_differs(case: Case, dtypes: tuple[torch.dtype, ...] = HALF_DTYPES) -> float:
    """1 if the model raises in half precision, or gives other outputs."""
    exact = run(case, model=copy.deepcopy(case.model).float())
    for dtype in dtypes:
        try:
            out = run(case, model=copy.deepcopy(case.model).to(dtype))
        except RuntimeError:
            return 1.0
        if distance(out.float(), exact, compared(case)) > 0.25 * float(exact.std()):
            return 1.0
    return 0.0


def mask_dtype_matters(case: Case) -> float:
    """Pass the mask in another dtype."""
    inputs, worst = inputs_of(case), 0.0
    if "attention_mask" not in inputs:
        return 0.0
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float32):
        other = {**inputs, "attention_mask": inputs["attention_mask"].to(dtype)}
        try:
            worst = max(worst, distance(run(case, other), run(case), compared(case)))
        except (RuntimeError, TypeError):  # PyTorch does not accept that dtype here
            return torch.inf
    return worst


def lint_findings(case: Case) -> float:
    """The number of masks passed to SDPA with findings; SDPA itself handles fully masked rows."""
    calls: list[tuple[Any, Tensor, Tensor]] = []
    original = F.scaled_dot_product_attention

    def record(
        q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, *rest: Any, **kw: Any
    ) -> Any:
        calls.append((attn_mask, q, k))
        return original(q, k, v, attn_mask, *rest, **kw)

    F.scaled_dot_product_attention = record  # type: ignore[assignment]
    try:
        run(case, grad=True)
    finally:
        F.scaled_dot_product_attention = original
    found = 0
    for mask, q, k in calls:
        sizes = {"q_len": q.size(-2), "kv_len": k.size(-2), "batch": q.size(0), "heads": q.size(1)}
        mask = torch.ones(q.size(-2), k.size(-2)).bool() if mask is None else mask
        found += bool({*mw.lint(mask, **sizes, expects=case.expects).codes} - {"empty-row"})
    return float(found)


def raises(case: Case) -> float:
    """1 if the model raises."""
    try:
        run(case).sum().item()
    except (RuntimeError, NotImplementedError):
        return 1.0
    return 0.0


SYMPTOMS: dict[str, Callable[[Case], float]] = {
    "P": leak,
    "R": lost,
    "G": gradient_leak,
    "PI": padding_matters,
    "BI": batch_matters,
    "PC": pieces_matter,
    "N": not_finite,
    "NG": gradient_not_finite,
    "D": mask_dtype_matters,
    "H": half_precision_differs,
    "X": path_matters,
    "L": lint_findings,
    "E": raises,
}
