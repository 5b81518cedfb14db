"""Influence: which output depends on which input, measured on the model itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from maskwright.auditing.measure import Meter, make_meter
from maskwright.auditing.model_under_test import (
    Change,
    Key,
    find_seats,
    first_tensor,
    make_subject,
    same_ids,
)
from maskwright.auditing.probes.stillness import still
from maskwright.core.validate import read_choice
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from maskwright.core.validate import BoolArray

WAYS: Final = ("change", "gradient")


@dataclass(frozen=True, eq=False)
class Influence:
    """How far each output moved, (batch, outputs, inputs), when an input was changed; 0: not at all.

    By gradients it is the length of the gradient. `noise` is what identical runs differ by.

    >>> import torch, maskwright as mw
    >>> mw.influence(lambda x: x.flip(1), torch.randn(1, 4, 2)).moved[0, 0]
    array([False, False, False,  True])
    """

    size: npt.NDArray[np.float64]
    noise: float
    passes: int

    @property
    def moved(self) -> BoolArray:
        """Which output depends on which input.

        >>> import torch, maskwright as mw
        >>> shift = lambda x: torch.roll(x, 1, dims=1)
        >>> mw.influence(shift, torch.randn(1, 3, 4)).moved[0].astype(int)
        array([[0, 0, 1],
               [1, 0, 0],
               [0, 1, 0]])
        """
        seen: BoolArray = self.size > 0
        return seen

    def __str__(self) -> str:
        _, outputs, inputs = self.size.shape
        share = float(self.moved.mean()) if self.size.size else 0.0
        return (
            f"{outputs} outputs × {inputs} inputs: {share:.0%} of the pairs depend, "
            f"noise {self.noise:.2g}, {self.passes} passes"
        )


def influence(
    model: Any,
    inputs: Any,
    *,
    of: Key | None = None,
    output: Callable[[Any], Any] | None = None,
    pad_id: int | None = None,
    by: str = "change",
    seed: int = 0,
) -> Influence:
    """Measure which output of a model depends on which position of an input.

    Every position is changed by itself, and all outputs are compared with those of the model at
    rest. Dropout is off, and random numbers are the same in every run.

    Args:
        model: A module, or any function of tensors.
        inputs: A tensor, a tuple of arguments, or a dict of keyword arguments. Positions are the
            second axis of ids (batch, positions) or floats (batch, positions, features).
        of: The input whose positions are changed, by its name or place; the first that has any.
        output: Takes the output out of what the model gives.
        pad_id: The id of padding, which is not put in place of others.
        by: "change" runs the model once for each position; "gradient" runs it backward once for
            each output, which needs floats or an embedding.
        seed: Of all random numbers.

    >>> import torch, maskwright as mw
    >>> double = lambda x: 2 * x
    >>> print(mw.influence(double, torch.randn(1, 4, 2)))
    4 outputs × 4 inputs: 25% of the pairs depend, noise 0, 7 passes
    """
    read_choice(by, "influence: by", WAYS)
    names = () if of is None else (of,)
    subject = make_subject(
        model, inputs, names=names, output=output, pad_id=pad_id, seed=seed, asked_by="influence"
    )
    with still(model):
        find_seats(subject)
        meter = make_meter(subject)
        size = by_gradient(meter) if by == "gradient" else by_change(meter)
        size = np.where(size > meter.rounding, size, 0.0) if by == "change" else size
    return Influence(size, float(meter.noise.max()), subject.passes)


def by_change(
    meter: Meter, columns: list[int] | None = None, fill: str = "noise", name: Key | None = None
) -> npt.NDArray[np.float64]:
    """(batch, outputs, columns): every column's position changed by itself, in all sequences.

    Movements are told however small; whether rounding explains one is for the caller to judge.
    """
    subject = meter.subject
    name = subject.main if name is None else name
    length = subject.length(name)
    found = []
    for column in range(length) if columns is None else columns:
        where = torch.zeros(subject.batch, length, dtype=torch.bool)
        where[:, column] = True
        found.append(meter.felt(Change(name, where, fill, seed=column)))
    return torch.stack(found, -1).numpy() if found else np.zeros((*meter.rest.shape[:2], 0))


def by_gradient(
    meter: Meter, rows: list[int] | None = None, name: Key | None = None
) -> npt.NDArray[np.float64]:
    """(batch, rows, inputs): the length of the gradient of each output, at each input."""
    subject = meter.subject
    name = subject.main if name is None else name
    rows = list(range(meter.rest.shape[1])) if rows is None else rows
    found = [gradient_of(subject, {row: 1.0}, name) for row in rows]
    shape = (subject.batch, 0, subject.length(name))
    return torch.stack(found, 1).norm(dim=-1).numpy() if found else np.zeros(shape)


def gradient_of(subject: Any, rows: dict[int, float], name: Key) -> torch.Tensor:
    """(batch, inputs, features): the gradient of some outputs, each of them weighed."""
    held: list[torch.Tensor] = []
    inputs = dict(subject.inputs)
    seat = subject.seats.get(name)
    handle = None
    if seat is not None:
        ids = inputs[name]

        def hook(_: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
            return _leaf(out, held) if args and same_ids(args[0], ids) else out

        handle = seat.register_forward_hook(hook)
    elif inputs[name].is_floating_point():
        inputs[name] = _leaf(inputs[name], held)
    else:
        raise ArgumentError(
            "influence: gradients need floats, or ids that an nn.Embedding reads. "
            'Pass by="change", or the embeddings.'
        )
    try:
        with torch.enable_grad():
            result = subject.call(inputs)
            picked = subject.pick(result) if subject.pick is not None else first_tensor(result)
    finally:
        if handle is not None:
            handle.remove()
    assert picked is not None
    out = subject.placed(picked)
    source = torch.Generator().manual_seed(7)
    weights = torch.randn(out.shape[-1], generator=source, dtype=torch.float64).to(out.dtype)
    total = sum(factor * (out[:, row] @ weights).sum() for row, factor in rows.items())
    if not isinstance(total, torch.Tensor) or not total.requires_grad:
        return torch.zeros_like(held[0]).double()
    (grad,) = torch.autograd.grad(total, held[:1], allow_unused=True)
    return torch.zeros_like(held[0]).double() if grad is None else grad.detach().double()


def _leaf(x: torch.Tensor, held: list[torch.Tensor]) -> torch.Tensor:
    if held:  # an embedding that is read twice: only the first reading is looked at
        return x
    held.append(x.detach().clone().requires_grad_())
    return held[0]
