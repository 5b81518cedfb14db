"""What a fault shows, looked for by hand: one function for each letter of a fault's checks."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tests.zoo.layers_b import WORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.zoo.case import Subject

HALVES = (torch.bfloat16, torch.float16)


# ── running a subject ─────────────────────────────────────────────────────────────────────────


def run(model: Any, inputs: Any, grad: bool = False) -> Tensor:
    """The first tensor of what the model gives."""
    with torch.set_grad_enabled(grad):
        result = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return result if isinstance(result, Tensor) else result[0]


def ids_of(inputs: Any) -> Tensor:
    return inputs["ids"] if isinstance(inputs, dict) else inputs


def with_ids(inputs: Any, ids: Tensor) -> Any:
    return {**inputs, "ids": ids} if isinstance(inputs, dict) else ids


def piece_of(inputs: Any, row: int, columns: Any) -> Any:
    """Some tokens of one sequence, alone."""
    if isinstance(inputs, dict):
        return {name: value[row : row + 1, columns] for name, value in inputs.items()}
    return inputs[row : row + 1, columns]


def counts(subject: Subject) -> Tensor:
    """(B, T): the tokens that are neither padding nor filling."""
    ids = ids_of(subject.inputs)
    if isinstance(subject.inputs, dict):
        return subject.inputs["documents"] >= 0
    return ids != 0 if "pad_id" in subject.options else torch.ones_like(ids, dtype=torch.bool)


def is_half(model: Any) -> bool:
    return next(model.parameters()).dtype in HALVES


def differ(a: Tensor, b: Tensor, where: Tensor, most: float = 1e-4) -> bool:
    """Do two outputs differ at these tokens? NaN differs from everything."""
    if a.shape != b.shape:
        return True
    return not bool(((a - b).abs()[where] <= most).all())


def tolerance(model: Any) -> float:
    return 0.1 if is_half(model) else 1e-4


# ── P and R: what moves what ──────────────────────────────────────────────────────────────────


def moved(subject: Subject, train: bool = False) -> Tensor:
    """(B, q, k): does the output at q move if the token at k is another one?"""
    model = copy.deepcopy(subject.model).train(train)
    ids, real = ids_of(subject.inputs), counts(subject)
    torch.manual_seed(1)
    base = run(model, subject.inputs)
    columns = []
    for at in range(ids.shape[1]):
        other = ids.clone()
        other[:, at] = torch.where(real[:, at], ids[:, at] % (WORDS - 1) + 1, ids[:, at])
        torch.manual_seed(1)
        apart = (run(model, with_ids(subject.inputs, other)) - base).abs().amax(-1)
        columns.append(apart > (2e-3 if is_half(model) else 1e-6))
    return torch.stack(columns, -1)


def allowed(subject: Subject) -> Tensor:
    """(B, q, k): what may be seen through all layers."""
    batch, size = ids_of(subject.inputs).shape
    seen = torch.from_numpy(subject.expects.on(size, batch=batch).dense()).any(1)
    seen = (seen | torch.eye(size, dtype=torch.bool)).float()
    names = [name for name, _ in subject.model.named_modules()]
    layers = sum(name.endswith(("attention", "self_attn")) for name in names)
    return (torch.linalg.matrix_power(seen, layers) > 0).expand(batch, -1, -1)


def shows_hidden(subject: Subject) -> bool:
    """P: something that is hidden moves an output; if there is dropout, in training as well."""
    hidden = ~allowed(subject) & counts(subject)[..., None]
    rates = [m.p for m in subject.model.modules() if isinstance(m, nn.Dropout)]
    return any(
        bool((moved(subject, train) & hidden).any())
        for train in (False, True)
        if not train or any(rates)
    )


def hides_visible(subject: Subject) -> bool:
    """R: something that may be seen does not move an output."""
    real = counts(subject)
    visible = allowed(subject) & real[..., None] & real[:, None]
    return bool((~moved(subject) & visible).any())


# ── PI and BI: padding and company ────────────────────────────────────────────────────────────


def minds_padding(subject: Subject) -> bool:
    """PI: more padding on one side changes outputs of real tokens."""
    if "pad_id" not in subject.options:
        return False
    ids, model, real = subject.inputs, subject.model, counts(subject)
    base, size = run(model, ids), ids.shape[1]
    return any(
        differ(run(model, F.pad(ids, sides))[:, sides[0] :][:, :size], base, real, tolerance(model))
        for sides in ((3, 0), (0, 3))
    )


def minds_company(subject: Subject) -> bool:
    """BI: a sequence alone, without its padding, gives something else."""
    base, real, model = run(subject.model, subject.inputs), counts(subject), subject.model
    for row in range(len(base)):
        columns = real[row] if "pad_id" in subject.options else slice(None)
        if not real[row].any():
            continue
        alone = run(model, piece_of(subject.inputs, row, columns))
        where = real[row, columns][None]
        if differ(alone, base[row : row + 1, columns], where, tolerance(model)):
            return True
    return False


# ── PC: in pieces ─────────────────────────────────────────────────────────────────────────────


def minds_pieces(subject: Subject) -> bool:
    """PC: step by step, or document by document, gives something else than all at once."""
    base, real, model = run(subject.model, subject.inputs), counts(subject), subject.model
    if "step" in subject.options:
        size = base.shape[1]
        for sizes in ([1] * size, [size - 3, 1, 1, 1], [5, 4, size - 9], [3] * (size // 3)):
            state, parts = None, []
            pieces = subject.inputs[:, : sum(sizes)].split(sizes, 1)
            for piece in pieces:
                with torch.no_grad():
                    part, state = subject.options["step"](model, piece, state)
                parts.append(part)
            out = torch.cat(parts, 1)
            if differ(out, base[:, : out.shape[1]], real[:, : out.shape[1]]):
                return True
    if "documents" in repr(subject.expects):
        documents = subject.inputs["documents"]
        for row in range(len(base)):
            for number in documents[row].unique():
                columns = documents[row] == number
                if number < 0:
                    continue
                alone = run(model, piece_of(subject.inputs, row, columns))
                if differ(alone, base[row : row + 1, columns], torch.ones_like(alone).bool()):
                    return True
    return False


# ── X, N, G and D: paths and numbers ──────────────────────────────────────────────────────────


def without_dropout(model: Any) -> Any:
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def with_weights(model: Any, needed: bool) -> Any:
    """The model with `need_weights` set in all of nn.MultiheadAttention."""
    model = copy.deepcopy(model)

    def forced(forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **named: forward(*args, **{**named, "need_weights": needed})

    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            module.forward = forced(module.forward)
    return model


def outputs(subject: Subject) -> Iterator[Tensor]:
    """The output on every path, the usual one first."""
    model, inputs = subject.model, subject.inputs
    yield run(model, inputs)
    yield run(model, inputs, grad=True)
    for grad in (False, True):
        yield run(without_dropout(model), inputs, grad)
        yield run(without_dropout(model).train(), inputs, grad)
        if any(isinstance(module, nn.MultiheadAttention) for module in model.modules()):
            yield run(with_weights(model, needed=True), inputs, grad)
            yield run(with_weights(model, needed=False), inputs, grad)
    for path in subject.options.get("paths", {}).values():
        with torch.no_grad():
            yield path(model, **inputs) if isinstance(inputs, dict) else path(model, inputs)


def minds_paths(subject: Subject) -> bool:
    """X: another path gives something else."""
    base, *others = outputs(subject)
    real, most = counts(subject), tolerance(subject.model)
    return any(differ(other, base, real, most) for other in others)


def breaks_gradients(subject: Subject) -> bool:
    """G: a gradient is not a number, though only real tokens count in the loss."""
    model = copy.deepcopy(subject.model)
    run(model, subject.inputs, grad=True)[counts(subject)].float().square().mean().backward()
    grads = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert grads
    return not all(bool(grad.isfinite().all()) for grad in grads)


def breaks_numbers(subject: Subject) -> bool:
    """N: an output or a gradient is not a number, on any path."""
    return breaks_gradients(subject) or not all(
        bool(out.isfinite().all()) for out in outputs(subject)
    )


def minds_dtype(subject: Subject) -> bool:
    """D: half precision raises, breaks, or gives something else."""
    base = run(copy.deepcopy(subject.model).float(), subject.inputs)
    for dtype in HALVES:
        try:
            out = run(copy.deepcopy(subject.model).to(dtype), subject.inputs)
        except RuntimeError:
            return True
        if differ(out.float(), base, counts(subject), 0.25 * float(base.std())):
            return True
    return False


SYMPTOMS = {
    "P": shows_hidden,
    "R": hides_visible,
    "G": breaks_gradients,
    "PI": minds_padding,
    "BI": minds_company,
    "PC": minds_pieces,
    "N": breaks_numbers,
    "D": minds_dtype,
    "X": minds_paths,
}
