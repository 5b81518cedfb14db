"""Positions of tokens, compared with a slow definition of which of them an expression determines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import maskwright as mw
from maskwright.core.atoms.array import Blocks
from maskwright.core.atoms.index import Keys, Queries
from maskwright.core.atoms.position import Prefix
from maskwright.core.atoms.structure import Tree
from maskwright.core.atoms.tokens import Documents, Padding
from maskwright.core.operators import And, Not, Or, PerAxis, Transpose
from maskwright.core.oracle import rule
from maskwright.core.positions import token_positions
from tests._helpers import strategies

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright import Frame, Mask

    Sequence = tuple[str, Any]  # ("all", {...}), ("any", {...}), ("not", atom) or ("atom", atom)

# ── the definition ────────────────────────────────────────────────────────────────────────────


def sequence_of(mask: Mask, row: int, frame: Frame) -> Sequence | None:
    """What determines the sequences of one batch row, where `mask` is a term of &."""
    if isinstance(mask, And):
        return every([sequence_of(term, row, frame) for term in mask.terms])
    if isinstance(mask, Or):
        return branches(mask, row, frame)
    if isinstance(mask, Not):
        first = first_keys(mask.term, row)
        return None if first is None else ("not", first)
    if isinstance(mask, Transpose):
        closed = mask.term._transposed()
        return None if closed is None else sequence_of(closed, row, frame)
    if isinstance(mask, PerAxis):
        if mask.axis == "batch":
            return sequence_of(mask.member(row, 0), row, frame)
        heads = {sequence_of(member, row, frame) for member in mask.masks}
        return heads.pop() if len(heads) == 1 else None
    if isinstance(mask, Blocks):
        return (
            ("halves", mask.map.data.shape[2] * mask.q_size // 2) if diffuses(mask, frame) else None
        )
    if isinstance(mask, Padding | Documents):
        return "atom", mask
    if isinstance(mask, Tree):
        own = np.arange(mask.parents.data.shape[1])
        return ("atom", mask) if (mask.parents.data < own).all() else None
    return None


def every(parts: list[Sequence | None]) -> Sequence | None:
    terms: set[Sequence] = set()
    for part in parts:
        if part is not None:
            terms |= part[1] if part[0] == "all" else {part}
    return ("all", frozenset(terms)) if len(terms) > 1 else next(iter(terms), None)


def branches(mask: Or, row: int, frame: Frame) -> Sequence | None:
    """Documents or a tree with a prefix in common."""
    first = [term for term in mask.terms if first_keys(term, row) is not None]
    others = [term for term in mask.terms if first_keys(term, row) is None]
    if len(others) != 1 or isinstance(others[0], Padding | Not | Blocks | PerAxis):
        return None
    one = sequence_of(others[0], row, frame)
    return None if one is None else ("any", frozenset([one, *(first_keys(t, row) for t in first)]))


def first_keys(mask: Mask, row: int) -> Sequence | None:
    """The mask, if it is keys from the first on for all queries."""
    if isinstance(mask, Prefix):
        return "atom", mask
    if isinstance(mask, Keys):
        size = mask.where.tokens or 90
        for batch in range(mask.where.batch):
            flags = [rule(mask, None)(batch, 0, 0, k) for k in range(size)]  # type: ignore[arg-type]
            if flags != sorted(flags, reverse=True):
                return None
        return "atom", mask
    if isinstance(mask, Transpose) and isinstance(mask.term, Queries):
        return first_keys(Keys(mask.term.where), row)
    return None


def diffuses(mask: Blocks, frame: Frame) -> bool:
    tall, broad = mask.map.data.shape[2:]
    if tall != broad or tall % 2 or tall < 4 or mask.q_size != mask.kv_size or frame.q_start:
        return False
    half = tall // 2
    return all(
        bool(plane[q, k])
        == ((q == k if k < half else k - half < q) if q < half else (k >= half and k <= q))
        for plane in mask.map.data.reshape(-1, tall, tall)
        for q in range(tall)
        for k in range(tall)
    )


def belongs(sequence: Sequence, row: int, frame: Frame) -> Callable[[int, int], bool]:
    """Whether token t counts for token p."""
    kind, value = sequence
    if kind == "halves":
        return lambda p, t: p // value == t // value
    if kind in ("atom", "not"):
        atom = value if kind == "atom" else value[1]
        may = rule(atom, frame)
        return lambda p, t: may(row, 0, p, t) == (kind == "atom")
    parts = [belongs(part, row, frame) for part in value]
    fold = all if kind == "all" else any
    return lambda p, t: fold(part(p, t) for part in parts)


def positions_of(mask: Mask, frame: Frame) -> list[list[int]] | None:
    """The positions of the queries of each batch row; None where nothing is to be said."""
    if not 0 <= frame.q_start <= frame.q_stop <= frame.k_stop:
        return None
    positions, usual = [], True
    for row in range(frame.batch):
        sequence = sequence_of(mask, row, frame)
        everything: Sequence = ("all", frozenset())
        counts = belongs(everything if sequence is None else sequence, row, frame)
        line = []
        for p in range(frame.q_start, frame.q_stop):
            tokens = [t for t in range(p + 1) if counts(p, t)]
            line.append(max(len(tokens) - 1, 0))
            usual = usual and (p not in tokens or line[-1] == p)
        positions.append(line)
    return None if usual else positions


# ── comparisons ───────────────────────────────────────────────────────────────────────────────


def check(mask: Mask, frame: Frame) -> list[list[int]] | None:
    given = token_positions(strategies.bind(mask, frame))
    expected = positions_of(mask, frame)
    if given is None or expected is None:
        assert given is None
        assert expected is None
        return None
    assert np.broadcast_to(given, (frame.batch, frame.q_len)).tolist() == expected
    return expected


@given(strategies.cases(code=False))
def test_positions_of_any_mask(case: tuple[Mask, Frame]) -> None:
    check(*case)


PLANES = (1, 1), (2, 2), (2, 3), (3, 1)


@st.composite
def structured(draw: st.DrawFn, planes: Any = PLANES) -> tuple[Mask, Frame]:
    """Masks of the terms that determine positions, for decoders with and without a cache."""
    kv_len = draw(st.integers(0, 12))
    q_len = draw(st.one_of(st.just(kv_len), st.integers(0, kv_len)))
    batch, heads = draw(st.sampled_from(planes))
    frame = mw.causal().on(q_len, kv_len, batch, heads).frame

    def term(depth: int) -> Mask:
        kinds = ["documents", "padding", "tree", "prefix", "first", "causal", "window", "chunks"]
        kind = draw(st.sampled_from(kinds + ["&", "|", "~", "T", "batch", "head"] * (depth > 0)))
        if kind == "documents":
            return draw(strategies.documents(frame))
        if kind == "padding":
            return draw(strategies.padding_by_token(frame))
        if kind == "tree":
            return draw(strategies.trees(frame))
        if kind == "prefix":
            return mw.prefix(draw(strategies.per_sequence(st.integers(0, 14), batch)))
        if kind == "first":
            return mw.keys(range(draw(st.integers(0, 14))))
        if kind == "window":
            return mw.window(back=draw(st.integers(0, 9)))
        if kind == "chunks":
            return mw.chunks(draw(st.integers(1, 5)))
        if kind == "&":
            return term(depth - 1) & term(depth - 1)
        if kind == "|":
            return term(depth - 1) | term(depth - 1)
        if kind == "~":
            return ~term(depth - 1)
        if kind == "T" and q_len == kv_len:
            return term(depth - 1).T
        if kind == "batch":
            return mw.by_batch([term(depth - 1) for _ in range(batch)])
        if kind == "head":
            one = term(depth - 1)
            return mw.by_head(
                [draw(st.sampled_from([one, one & mw.causal()])) for _ in range(heads)]
            )
        return mw.causal()

    return term(draw(st.integers(0, 3))), frame


@given(structured())
def test_positions_of_structured_masks(case: tuple[Mask, Frame]) -> None:
    check(*case)


@given(structured(), st.integers(0, 12), st.integers(0, 12))
def test_positions_of_queries_of_whole_sequence(
    case: tuple[Mask, Frame], start: int, count: int
) -> None:
    """A restriction changes no positions, and decode steps have those of the whole sequence."""
    mask, frame = case
    tokens = frame.kv_len
    if frame.q_len != tokens:
        return
    whole = strategies.bind(mask, frame)
    start = min(start, tokens)
    count = min(count, tokens - start)
    positions = token_positions(whole)
    step = token_positions(whole.rows(start, start + count))
    if step is not None:
        assert positions is not None
        assert np.array_equal(step, positions[:, start : start + count])
    near = strategies.bind(mask & mw.window(back=1) & mw.stride(2), frame)
    assert np.array_equal(
        *(np.zeros(0) if each is None else each for each in (positions, token_positions(near)))
    )


DETERMINED = {
    "documents": (mw.documents(lengths=[3, 2]), [[0, 1, 2, 0, 1]]),
    "documents and padding ids": (mw.documents(ids=[-1, 0, 0, 1, 1]), [[0, 0, 1, 0, 1]]),
    "left padding": (mw.padding(keep=[0, 1, 1, 1, 1]), [[0, 0, 1, 2, 3]]),
    "first keys masked": (mw.causal() & ~mw.keys([0, 1]), [[0, 0, 0, 1, 2]]),
    "prefix masked in one row": (~mw.prefix([1, 0]), [[0, 0, 1, 2, 3], [0, 1, 2, 3, 4]]),
    "both": (
        mw.documents(lengths=[3, 2]) & mw.padding(keep=[0, 1, 1, 1, 1]),
        [[0, 0, 1, 0, 1]],
    ),
    "tree": (mw.tree([-1, 0, 0, 1, 2]), [[0, 1, 1, 2, 2]]),
    "trees in documents": (
        mw.tree([-1, 0, 0, -1, 3]) & mw.documents(lengths=[3, 2]),
        [[0, 1, 1, 0, 1]],
    ),
    "tree after a prefix": (mw.tree([-1, -1, -1, -1, 2]) | mw.prefix(2), [[0, 1, 2, 2, 3]]),
    "shared prefix": (mw.recipes.shared_prefix(2, [2, 1]), [[0, 1, 2, 3, 2]]),
    "shared prefix of keys": (
        mw.documents(lengths=[2, 2, 1]) | mw.keys([0, 1]),
        [[0, 1, 2, 3, 2]],
    ),
    "heads": (
        mw.by_head([mw.documents(lengths=[3, 2]), mw.causal() & mw.documents(lengths=[3, 2])]),
        [[0, 1, 2, 0, 1]],
    ),
    "transposed twice": (mw.tree([-1, 0, 0, 1, 2]).T.T, [[0, 1, 1, 2, 2]]),
}


@pytest.mark.parametrize("name", DETERMINED)
def test_determined_positions(name: str) -> None:
    mask, expected = DETERMINED[name]
    positions = token_positions(mask.on(5))
    assert positions is not None
    assert positions.tolist() == expected


@pytest.mark.parametrize(
    "mask",
    [
        mw.recipes.image_text([-1, 0, 0, -1, 1]),
        mw.recipes.prefix_lm(2),
        mw.recipes.chunked(2),
        mw.causal() & mw.padding(lengths=[3]),
        mw.causal() & ~mw.keys([2]),
        mw.causal() & mw.keys([3, 4]),
        mw.causal() & ~mw.documents(lengths=[3, 2]),
        mw.documents(lengths=[5]),
        mw.documents(lengths=[3, 2]) | mw.documents(lengths=[2, 3]),
        mw.by_head([mw.documents(lengths=[3, 2]), mw.documents(lengths=[2, 3])]),
        mw.padding(keep=[0, 1, 1, 1, 1]).T,
        mw.tree([-1, 0, 0, 1, 2]).T,
        mw.tree([1, 2, -1, 2, 3]),
    ],
    ids=repr,
)
def test_no_positions_where_none_are_determined(mask: Mask) -> None:
    assert token_positions(mask.on(5)) is None


def test_many_rows_and_long_sequences() -> None:
    rows = mw.by_batch([mw.documents(lengths=[n % 7 + 1, 7 - n % 7]) for n in range(9_000)])
    positions = token_positions(rows.on(8))
    assert positions is not None
    assert positions[8_999].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    long = token_positions(mw.recipes.packed(lengths=[[2**19] * 2]).on(2**20))
    assert long is not None
    assert long[0, -1] == 2**19 - 1
