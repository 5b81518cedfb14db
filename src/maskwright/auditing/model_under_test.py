"""A subject: a model with its inputs, as something that can be run, cut, reordered and changed.

Whatever the model takes and gives, a probe sees one thing: outputs (batch, positions, features) in
float64, as a function of which positions of which input were changed. Ids are changed at the
output of the embedding that reads them, so that padding stays padding; without one, by other ids.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Final

import torch
from torch import nn

from maskwright.auditing.probes.stillness import same_chance
from maskwright.core.bound import BoundMask
from maskwright.core.expr import Mask
from maskwright.core.validate import describe_type
from maskwright.errors import ArgumentError

Key = str | int  # of an input: its keyword, or its place
Inputs = dict[Key, Any]
OUTPUTS: Final = ("logits", "last_hidden_state", "prediction_logits", "sample")


@dataclass(frozen=True)
class Change:
    """Some positions of one input hold something else: `where` is (batch, positions)."""

    name: Key
    where: torch.Tensor
    fill: str = "noise"
    seed: int = 0


@dataclass
class Subject:
    """A model, its inputs, and how to read what it gives."""

    model: Callable[..., Any]
    inputs: Inputs
    main: Key
    pick: Callable[[Any], Any] | None = None
    pad_id: int | None = None
    seed: int = 0
    passes: int = 0
    seats: dict[Key, nn.Embedding | None] = field(default_factory=dict)
    asked_by: str = "audit"  # whose name an error begins with
    flat: bool = False  # an output of two axes is (batch, positions), and not (batch, features)

    @property
    def module(self) -> nn.Module | None:
        """The model as a module, if it is one."""
        return self.model if isinstance(self.model, nn.Module) else None

    @property
    def batch(self) -> int:
        """How many sequences there are."""
        return int(self.inputs[self.main].shape[0])

    def length(self, name: Key | None = None) -> int:
        """How many positions an input has."""
        return int(self.inputs[self.main if name is None else name].shape[1])

    def of(self, **changes: Any) -> Subject:
        """The same subject with something else in it; passes go on being counted here."""
        other = replace(self, **changes)
        other.passes = 0
        return other

    # ── running ───────────────────────────────────────────────────────────────────────────────

    def run(self, inputs: Inputs | None = None, change: Change | None = None) -> torch.Tensor:
        """The output, (batch, positions, features) in float64."""
        with torch.no_grad():
            return self.read(self.call(inputs, change))

    def call(
        self,
        inputs: Inputs | None = None,
        change: Change | None = None,
        by: Callable[..., Any] | None = None,
    ) -> Any:
        """What the model gives, as it comes."""
        given = dict(self.inputs if inputs is None else inputs)
        hooked: Any = nullcontext()
        if change is not None:
            seat = self.seats.get(change.name)
            if seat is not None:
                hooked = self._changed_at(seat, given[change.name], change)
            else:
                given[change.name] = self.filled(given[change.name], change)
        self.passes += 1
        args = [given[n] for n in sorted(key for key in given if isinstance(key, int))]
        named = {key: x for key, x in given.items() if isinstance(key, str)}
        with hooked, same_chance(self.seed):
            if by is not None:
                return by(self.model, *args, **named)
            return self.model(*args, **named)

    def read(self, result: Any) -> torch.Tensor:
        """The output among what the model gave."""
        found = self.pick(result) if self.pick is not None else first_tensor(result)
        if not isinstance(found, torch.Tensor) or found.dim() < 2:
            raise ArgumentError(
                f"{self.asked_by}: the model gave {describe_type(result)}, in which no tensor (batch, "
                "positions, …) was found. Pass output=, a function that takes it out of the result."
            )
        return self.placed(found.detach()).double()

    def placed(self, found: torch.Tensor) -> torch.Tensor:
        """An output as (batch, positions, features)."""
        if found.dim() == 2:
            found = found[:, :, None] if self.flat else found[:, None]
        return found.reshape(*found.shape[:2], -1)

    @contextmanager
    def _changed_at(self, seat: nn.Embedding, ids: Any, change: Change) -> Iterator[None]:
        def hook(_: Any, args: Any, out: torch.Tensor) -> torch.Tensor | None:
            if not (args and same_ids(args[0], ids)):
                return None
            return self.filled(out, change)

        handle = seat.register_forward_hook(hook)
        try:
            yield
        finally:
            handle.remove()

    # ── changing ──────────────────────────────────────────────────────────────────────────────

    def filled(self, x: torch.Tensor, change: Change) -> torch.Tensor:
        """The tensor with something else at the positions of a change."""
        source = torch.Generator().manual_seed(1 + change.seed)
        where = change.where.to(x.device)
        if not x.is_floating_point():
            return torch.where(where, self._other_ids(x, source), x)
        wide = where.reshape(*where.shape, *(1,) * (x.dim() - 2))
        if change.fill == "other":
            # What stands elsewhere, moved along: of the same kind as what was there.
            by = 1 + int(torch.randint(max(x.shape[1] - 1, 1), (1,), generator=source))
            other = x.roll(by, 1) + _noise(x, source, 0.3)
        elif change.fill == "nan":
            other = torch.full_like(x, torch.nan)
        else:
            other = _noise(x, source, 30.0 if change.fill == "large" else 3.0)
        return torch.where(wide, other.to(x.dtype), x)

    def _other_ids(self, ids: torch.Tensor, source: torch.Generator) -> torch.Tensor:
        kinds = ids.unique()
        if self.pad_id is not None:
            kinds = kinds[kinds != self.pad_id]
        if kinds.numel() < 2:
            kinds = torch.arange(1, 3, device=ids.device)
        drawn = torch.randint(kinds.numel(), ids.shape, generator=source).to(ids.device)
        other = kinds[drawn]
        return torch.where(other == ids, kinds[(drawn + 1) % kinds.numel()], other).to(ids.dtype)

    def can_change(self, name: Key, padding: torch.Tensor) -> torch.Tensor:
        """Where a change leaves padding what it is: everywhere, unless padding is told by the ids."""
        if self.seats.get(name) is None and not self.inputs[name].is_floating_point():
            return ~padding
        return torch.ones_like(padding)

    # ── cutting ───────────────────────────────────────────────────────────────────────────────

    @property
    def holds_masks(self) -> bool:
        """Is an input a mask of ours? It says its own sequences and positions, and is not cut along."""
        return any(isinstance(x, (Mask, BoundMask)) for x in self.inputs.values())

    def sequences(self, rows: list[int]) -> Inputs:
        """Only these sequences, in this order; whatever runs along the batch is cut along."""
        index = torch.tensor(rows)
        return {
            name: x.index_select(0, index.to(x.device)) if self._runs_along_batch(x) else x
            for name, x in self.inputs.items()
        }

    def _runs_along_batch(self, x: Any) -> bool:
        return (
            isinstance(x, torch.Tensor)
            and x.dim() > 1
            and x.shape[0] == self.batch
            and (self.batch > 1 or x.shape[0] == 1)
            and tuple(x.shape) != (self.length(), self.length())
        )

    def positions(self, name: Key, keep: list[int], inputs: Inputs | None = None) -> Inputs:
        """Only these positions of one input, in this order; masks that run along are cut along."""
        length = self.length(name)
        index = torch.tensor(keep, dtype=torch.long)
        found = dict(self.inputs if inputs is None else inputs)
        for key, x in found.items():
            for axis in self.axes_along(key, x, name, length):
                found[key] = found[key].index_select(axis, index.to(x.device))
        return found

    def axes_along(self, key: Key, x: Any, name: Key, length: int) -> list[int]:
        """The axes of an input that run along the positions of the one that is named."""
        if not isinstance(x, torch.Tensor):
            return []
        if key == name:
            return [1]
        if not self._may_go_with(key, name):
            return []
        if x.dim() == 1:
            return [0] if x.shape[0] == length else []
        first = 0 if tuple(x.shape) == (length, length) else 1
        last = 2 if x.is_floating_point() and x.dim() == 3 and x.shape[-1] != length else x.dim()
        return [axis for axis in range(first, last) if x.shape[axis] == length]

    def _may_go_with(self, key: Key, name: Key) -> bool:
        """Of an encoder and a decoder: is this input the one's that is named, by what it is called?

        What is called like neither, such as an attention_mask beside decoder_input_ids, is the
        encoder's: it is the decoder's inputs that are named for what they are.
        """
        if key in self.seats:
            return False
        if len(self.seats) < 2 or not isinstance(key, str):
            return True
        alike = {seat: _alike(key, str(seat)) for seat in self.seats}
        if max(alike.values()) == min(alike.values()):
            return "decoder" not in str(self.main) or name != self.main
        return alike[name] == max(alike.values())

    def runs_across(self, name: Key) -> bool:
        """Is there a mask of queries and keys among the inputs, which can't be made longer?"""
        length = self.length(name)
        return any(len(self.axes_along(key, x, name, length)) > 1 for key, x in self.inputs.items())


# ── making a subject ──────────────────────────────────────────────────────────────────────────


def make_subject(
    model: Any,
    inputs: Any,
    *,
    names: tuple[Key, ...] = (),
    output: Callable[[Any], Any] | None = None,
    pad_id: int | None = None,
    seed: int = 0,
    asked_by: str = "audit",
) -> Subject:
    """A subject of a model and its inputs; `names` are the inputs that have positions to change."""
    if not callable(model):
        raise ArgumentError(
            f"{asked_by}: the model is {describe_type(model)}. Give a module or a function."
        )
    given = _read_inputs(inputs, asked_by)
    found = (
        names
        or tuple(
            name for name, x in given.items() if isinstance(x, torch.Tensor) and _has_positions(x)
        )[:1]
    )
    for name in names:
        if name not in given:
            known = ", ".join(map(str, given))
            raise ArgumentError(
                f"{asked_by}: {name!r} is named, but the inputs are {known}. Name one of these."
            )
    if not found:
        raise ArgumentError(
            f"{asked_by}: no input is ids (batch, positions) or floats (batch, positions, features). "
            "Give a tensor, or a dict of the model's arguments."
        )
    main = found[-1]  # of an encoder and a decoder, the decoder's
    return Subject(
        model, given, main, output, pad_id, seed, seats=dict.fromkeys(found), asked_by=asked_by
    )


def find_seats(subject: Subject) -> None:
    """Find the embeddings that read the ids, by running the model once."""
    module = subject.module
    if module is None:
        return
    reads: list[tuple[nn.Embedding, Any]] = []
    handles = [
        part.register_forward_pre_hook(lambda m, args: reads.append((m, args[0] if args else None)))
        for part in module.modules()
        if isinstance(part, nn.Embedding)
    ]
    try:
        subject.run()
    finally:
        for handle in handles:
            handle.remove()
    for name in subject.seats:
        ids = subject.inputs[name]
        if not ids.is_floating_point():
            subject.seats[name] = next((m for m, read in reads if same_ids(read, ids)), None)


def goes_along(subject: Subject, out: torch.Tensor) -> bool:
    """Are the features of an only output really positions? They are if fewer of these give fewer."""
    length = subject.length()
    if length < 2 or out.shape[1:] != (1, length):
        return False
    try:
        fewer = subject.run(subject.positions(subject.main, list(range(length - 1))))
    except Exception:  # a model of one length only
        return False
    return bool(fewer.shape[1:] == (1, length - 1))


def _read_inputs(inputs: Any, asked_by: str) -> Inputs:
    if isinstance(inputs, torch.Tensor):
        return {0: inputs}
    if isinstance(inputs, Mapping):
        return dict(inputs)
    if isinstance(inputs, (tuple, list)):
        return dict(enumerate(inputs))
    raise ArgumentError(
        f"{asked_by}: the inputs are {describe_type(inputs)}. Give a tensor, a tuple of "
        "arguments, or a dict of keyword arguments."
    )


def _has_positions(x: torch.Tensor) -> bool:
    return bool(x.dim() == 3 if x.is_floating_point() else x.dim() == 2 and x.dtype != torch.bool)


def same_ids(read: Any, ids: Any) -> bool:
    """Are these the ids that are meant?"""
    return (
        isinstance(read, torch.Tensor)
        and read.shape == ids.shape
        and (read is ids or bool(torch.equal(read, ids.to(read.dtype))))
    )


def _alike(one: str, other: str) -> int:
    """How many words two names begin with in common; a name that goes on as another is most alike."""
    if one.startswith(other):
        return len(other)
    pairs = zip(one.split("_"), other.split("_"), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _noise(x: torch.Tensor, source: torch.Generator, times: float) -> torch.Tensor:
    spread = float(x.detach().double().std(unbiased=False)) if x.numel() > 1 else 0.0
    drawn = torch.randn(x.shape, generator=source, dtype=torch.float64)
    return (drawn * (spread if spread > 0 else 1.0) * times).to(x.device, x.dtype)


def first_tensor(result: Any) -> torch.Tensor | None:
    """The output among what a model gave: the tensor, the first of a tuple, or one by its name."""
    if isinstance(result, torch.Tensor):
        return result
    if isinstance(result, Mapping) or hasattr(result, "keys"):
        held = dict(result.items())
        for name in OUTPUTS:
            if isinstance(held.get(name), torch.Tensor):
                found: torch.Tensor = held[name]
                return found
        result = tuple(held.values())
    if isinstance(result, (tuple, list)):
        for part in result:
            inner = first_tensor(part)
            if inner is not None and inner.is_floating_point() and inner.dim() > 1:
                return inner
    return None


def recast(subject: Subject, dtype: torch.dtype) -> Subject | None:
    """A copy of the subject in another dtype; None where it can't be made."""
    module = subject.module
    if module is None:
        return None
    try:
        other = copy.deepcopy(module).to(dtype)
    except Exception:  # whatever a module may hold that can't be copied
        return None
    inputs = {
        name: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for name, x in subject.inputs.items()
    }
    twin = subject.of(model=other, inputs=inputs, seats=dict.fromkeys(subject.seats))
    names = {id(part): name for name, part in module.named_modules()}
    for name, seat in subject.seats.items():
        if seat is not None:
            found = other.get_submodule(names[id(seat)])
            assert isinstance(found, nn.Embedding)
            twin.seats[name] = found
    return twin


def takes(model: Any, name: str, *, loosely: bool = False) -> bool:
    """Does the model's forward have an argument of this name? Loosely, any name may do."""
    called = model.forward if isinstance(model, nn.Module) else model
    try:
        taken = inspect.signature(called).parameters
    except (TypeError, ValueError):
        return False
    return name in taken or (loosely and any(p.kind is p.VAR_KEYWORD for p in taken.values()))
