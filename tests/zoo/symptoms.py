"""How a fault shows, measured by hand: what is changed that must not matter, or must.

Every symptom is a number: how far outputs are apart that should be the same, 0 if there is nothing
to compare. Outputs of padding are nobody's, and are not looked at.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import maskwright as mw
from tests.zoo.layers import PAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.zoo.case import Subject

Inputs = dict[Any, Any]
MORE = 3  # columns of padding that are added


# ── a subject ─────────────────────────────────────────────────────────────────────────────────


def given(subject: Subject) -> Inputs:
    """The inputs by name, or by place."""
    return dict(subject.inputs) if isinstance(subject.inputs, dict) else {0: subject.inputs}


def run(subject: Subject, inputs: Inputs, by: Callable[..., Any] | None = None) -> Tensor:
    """The outputs."""
    args = [inputs[0]] if 0 in inputs else []
    named = {name: x for name, x in inputs.items() if name != 0}
    model = subject.model
    with torch.no_grad():
        result = model(*args, **named) if by is None else by(model, *args, **named)
    return result if isinstance(result, Tensor) else result[0]


def padded(subject: Subject) -> Any:
    """The name of the input that has the padding."""
    return next(iter(given(subject)))


def real(subject: Subject) -> Tensor:
    """(B, T): which tokens of that input are real."""
    inputs = given(subject)
    for name in ("attention_mask", "src_mask"):
        if name in inputs and inputs[name].dim() == 2:
            return inputs[name].bool()
    return inputs[padded(subject)] != PAD


def judged(subject: Subject) -> Tensor:
    """(B, T_out): which outputs are looked at."""
    inputs = given(subject)
    return torch.ones_like(inputs["tgt"]).bool() if "tgt" in inputs else real(subject)


def apart(one: Tensor, other: Tensor, where: Tensor) -> float:
    """How far outputs are apart at the chosen (B, T_out)."""
    far = (one - other).abs().nan_to_num(nan=torch.inf).amax(-1)
    return float(far[where].max()) if bool(where.any()) else 0.0


def cells(subject: Subject) -> dict[Any, tuple[Tensor, Tensor]]:
    """For each input, (B, T_out, T_in): what one layer may see, and what the output may depend on."""
    inputs, expects = given(subject), subject.expects
    if isinstance(expects, dict):
        out = inputs["tgt"].size(1)
        found = {}
        for name, mask in expects.items():
            batch, size = inputs[name].shape
            start = None if out == size else 0
            seen = _dense(mask.on(out, size, batch=batch, q_start=start), batch)
            found[name] = (seen, seen)
        return found
    name = padded(subject)
    batch, size = inputs[name].shape
    seen = _dense(expects.on(size, batch=batch), batch)
    hop = (seen | torch.eye(size).bool()).float()
    return {name: (seen, hop @ hop > 0)}  # two layers, or masks that more layers do not widen


def _dense(bound: Any, batch: int) -> Tensor:
    seen = torch.from_numpy(bound.dense())[:, 0]
    return seen.expand(batch, -1, -1)


@contextmanager
def changed(subject: Subject, name: Any, where: Tensor) -> Iterator[Inputs]:
    """Other tokens at some (B, T) of one input: where it is embedded, so that padding stays padding.

    If nothing embeds it as it is, the ids themselves are changed, where they are no padding.
    """
    inputs = given(subject)
    ids = inputs[name]
    model = subject.model
    noise = torch.randn(1, generator=torch.Generator().manual_seed(3))
    met = []

    def hook(_: Any, args: Any, out: Tensor) -> Tensor | None:
        if args[0].shape != ids.shape or not torch.equal(args[0], ids):
            return None
        met.append(True)
        return torch.where(where[..., None], -2 * out.flip(-1) + noise, out)

    parts = model.modules() if isinstance(model, nn.Module) else ()
    handles = [m.register_forward_hook(hook) for m in parts if isinstance(m, nn.Embedding)]
    try:
        run(subject, inputs)
        if met:
            yield inputs
            return
    finally:
        for handle in handles:
            handle.remove()
    yield {**inputs, name: torch.where(where & (ids != PAD), ids % 41 + 3, ids)}


def moved(subject: Subject, name: Any, where: Tensor) -> Tensor:
    """(B, T_out): how far each output moves with a change."""
    rest = run(subject, given(subject))
    with changed(subject, name, where) as inputs:
        return (run(subject, inputs) - rest).abs().nan_to_num(nan=torch.inf).amax(-1)


def some(size: int, count: int = 5) -> list[int]:
    """A few positions, the first and the last among them."""
    return sorted({round(i * (size - 1) / (count - 1)) for i in range(count)})


# ── symptoms ──────────────────────────────────────────────────────────────────────────────────


def leak(subject: Subject) -> float:
    """All that is hidden from an output is changed, and then all other sequences."""
    worst, looked = 0.0, judged(subject)
    for name, (_, reach) in cells(subject).items():
        for row in some(reach.size(1)):
            far = moved(subject, name, ~reach[:, row])[:, row]
            worst = max(worst, float(torch.where(looked[:, row], far, 0.0).max()))
        worst = max(worst, across(subject, name))
    return worst


def across(subject: Subject, name: Any) -> float:
    """One sequence is changed, and the others are looked at."""
    looked = judged(subject)
    worst = 0.0
    for row in range(looked.size(0)):
        others = torch.arange(looked.size(0)) != row
        where = (~others)[:, None].expand(given(subject)[name].shape)
        far = moved(subject, name, where)
        worst = max(worst, float(torch.where(looked & others[:, None], far, 0.0).max()))
    return worst


def lost(subject: Subject) -> float:
    """1 if an output does not move with something that it sees."""
    looked = judged(subject)
    for name, (seen, _) in cells(subject).items():
        for column in some(seen.size(2)):
            where = torch.zeros(given(subject)[name].shape).bool()
            where[:, column] = True
            far = moved(subject, name, where)
            if bool((looked & seen[:, :, column] & (far < 1e-6)).any()):
                return 1.0
    return 0.0


def gradient(subject: Subject) -> float:
    """The gradient of an output at what is hidden from it."""
    if not isinstance(subject.model, nn.Module):
        return 0.0
    worst, looked = 0.0, judged(subject)
    for name, (_, reach) in cells(subject).items():
        ids, held = given(subject)[name], []

        def hook(_: Any, args: Any, out: Tensor, ids: Tensor = ids, held: Any = held) -> Any:
            if args[0].shape != ids.shape or not torch.equal(args[0], ids):
                return None
            held.append(out.detach().clone().requires_grad_())
            return held[-1]

        parts = [m for m in subject.model.modules() if isinstance(m, nn.Embedding)]
        handles = [m.register_forward_hook(hook) for m in parts]
        inputs = given(subject)
        args = [inputs.pop(0)] if 0 in inputs else []
        out = subject.model(*args, **inputs)
        out = out if isinstance(out, Tensor) else out[0]
        for handle in handles:
            handle.remove()
        for row in some(reach.size(1)) if held else ():
            total = (out[:, row] * torch.linspace(-1, 1, out.size(-1))).sum()
            grad = torch.autograd.grad(total, held[0], retain_graph=True)[0].norm(dim=-1)
            hidden = ~reach[:, row] & looked[:, row, None]
            worst = max(worst, float(torch.where(hidden, grad, 0.0).nan_to_num(nan=9.0).max()))
    return worst


def with_padding(subject: Subject) -> float:
    """Padding holds something else, is taken away, or is more."""
    tokens = real(subject)
    if bool(tokens.all()):
        return 0.0
    name = padded(subject)
    far = moved(subject, name, ~tokens)
    worst = float(torch.where(judged(subject), far, 0.0).max())
    return max(worst, more(subject), stripped(subject))


def more(subject: Subject) -> float:
    """Some columns of padding are added on the side where some are."""
    tokens, inputs = real(subject), given(subject)
    on_left = not bool(tokens[:, 0].all()) and bool(tokens[:, -1].all())
    sides = (MORE, 0) if on_left else (0, MORE)
    longer = dict(inputs)
    for name in (padded(subject), "attention_mask", "src_mask"):
        if name in inputs:
            longer[name] = F.pad(inputs[name], sides, value=PAD)
    out = run(subject, longer)
    if "tgt" not in inputs:
        out = out[:, MORE:] if on_left else out[:, :-MORE]
    return apart(out, run(subject, inputs), judged(subject))


def stripped(subject: Subject) -> float:
    """Each sequence alone, without its padding."""
    tokens, inputs, worst = real(subject), given(subject), 0.0
    rest = run(subject, inputs)
    names = {padded(subject), "attention_mask", "src_mask"} & {*inputs}
    if any(inputs[name].dim() > 2 for name in names) or "documents" in inputs:
        return 0.0
    for row, kept in enumerate(tokens):
        own = {name: x[row : row + 1] for name, x in inputs.items()}
        own |= {name: own[name][:, kept] for name in names}
        out = run(subject, own)
        there = rest[row : row + 1] if "tgt" in inputs else rest[row : row + 1, kept]
        worst = max(worst, apart(out, there, torch.ones(out.shape[:2]).bool()))
    return worst


def in_a_batch(subject: Subject) -> float:
    """Each sequence alone, with its padding and without, and all of them in reverse."""
    inputs, looked = given(subject), judged(subject)
    rest = run(subject, inputs)
    back = {name: x.flip(0) for name, x in inputs.items()}
    worst = max(stripped(subject), apart(run(subject, back).flip(0), rest, looked))
    for row in range(looked.size(0)):
        own = {name: x[row : row + 1] for name, x in inputs.items()}
        here = slice(row, row + 1)
        worst = max(worst, apart(run(subject, own), rest[here], looked[here]))
    return max(worst, *(across(subject, name) for name in cells(subject)))


def in_steps(subject: Subject) -> float:
    """Token by token and in pieces, with a cache."""
    step = subject.options.get("step")
    if step is None:
        return 0.0
    ids, worst = subject.inputs, 0.0
    rest, size = run(subject, given(subject)), ids.size(1)
    for cuts in ([1] * size, [5, 5, size - 10], [size // 2, *[1] * (size - size // 2)]):
        state, found = None, []
        with torch.no_grad():
            for piece in ids.split(cuts, 1):
                out, state = step(subject.model, piece, state)
                found.append(out)
        worst = max(worst, apart(torch.cat(found, 1), rest, judged(subject)))
    return worst


def not_finite(subject: Subject) -> float:
    """1 if an output is no finite number."""
    out = run(subject, given(subject))
    return float(not bool(out[judged(subject)].isfinite().all()))


def by_dtype(subject: Subject) -> float:
    """The mask among the inputs as another dtype."""
    inputs = given(subject)
    if "attention_mask" not in inputs:
        return 0.0
    rest, worst = run(subject, inputs), 0.0
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float32):
        other = {**inputs, "attention_mask": inputs["attention_mask"].to(dtype)}
        try:
            worst = max(worst, apart(run(subject, other), rest, judged(subject)))
        except (RuntimeError, TypeError):  # PyTorch's own, about a dtype that does not go there
            worst = torch.inf
    return worst


def by_path(subject: Subject) -> float:
    """Other ways to call the model: its own, in training, with gradients."""
    inputs, worst = given(subject), 0.0
    rest = run(subject, inputs)
    ways = [*subject.options.get("paths", {}).values()]
    if isinstance(subject.model, nn.Module):
        ways += [_training, _with_gradients]
    for way in ways:
        worst = max(worst, apart(run(subject, inputs, way), rest, judged(subject)))
    return worst


def _training(model: nn.Module, *args: Any, **inputs: Any) -> Any:
    model.train()
    try:
        return model(*args, **inputs)
    finally:
        model.eval()


def _with_gradients(model: nn.Module, *args: Any, **inputs: Any) -> Any:
    with torch.enable_grad():
        result = model(*args, **inputs)
    return result.detach() if isinstance(result, Tensor) else result[0].detach()


def by_lint(subject: Subject) -> float:
    """How many of the masks that SDPA is handed have findings; for empty rows it gives 0 itself."""
    met: list[tuple[Any, Tensor, Tensor]] = []
    usual = F.scaled_dot_product_attention

    def watching(
        q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, *rest: Any, **kw: Any
    ) -> Any:
        met.append((attn_mask, q, k))
        return usual(q, k, v, attn_mask, *rest, **kw)

    F.scaled_dot_product_attention = watching  # type: ignore[assignment]
    try:
        _with_gradients(subject.model, *_arguments(subject)[0], **_arguments(subject)[1])
    finally:
        F.scaled_dot_product_attention = usual
    codes = [{*_linted(subject, *call).codes} - {"empty-row"} for call in met]
    return float(sum(bool(found) for found in codes))


def _arguments(subject: Subject) -> tuple[list[Any], Inputs]:
    inputs = given(subject)
    return ([inputs.pop(0)] if 0 in inputs else []), inputs


def _linted(subject: Subject, mask: Any, q: Tensor, k: Tensor) -> mw.LintReport:
    if mask is None:
        mask = torch.ones(q.size(-2), k.size(-2)).bool()
    sizes = {"q_len": q.size(-2), "kv_len": k.size(-2), "batch": q.size(0), "heads": q.size(1)}
    return mw.lint(mask, **sizes, expects=subject.expects)


SYMPTOMS: dict[str, Callable[[Subject], float]] = {
    "P": leak,
    "R": lost,
    "G": gradient,
    "PI": with_padding,
    "BI": in_a_batch,
    "PC": in_steps,
    "N": not_finite,
    "D": by_dtype,
    "X": by_path,
    "L": by_lint,
}
