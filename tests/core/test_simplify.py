"""Every law on its own example. That no law changes a set is tested with the oracle."""

from __future__ import annotations

import pytest

import maskwright as mw

c, w, p = mw.causal(), mw.window(back=3), mw.padding(lengths=[2, 3])
d, k = mw.documents(lengths=[[2, 2]]), mw.keys([0, 5])

LAWS = {
    "double negation": (~~d, d),
    "not everything": (~mw.everything(), mw.nothing()),
    "not nothing": (~mw.nothing(), mw.everything()),
    "De Morgan, or": (~(~d | ~c), c & d),
    "De Morgan, and": (~(~d & ~c), c | d),
    "flatten": ((c & d) & p, c & p & d),
    "idempotence": (d & d, d),
    "neutral and": (d & mw.everything(), d),
    "neutral or": (d | mw.nothing(), d),
    "absorbing and": (d & mw.nothing(), mw.nothing()),
    "absorbing or": (d | mw.everything(), mw.everything()),
    "contradiction": (d & c & ~d, mw.nothing()),
    "excluded middle": (d | ~d, mw.everything()),
    "absorption and": (d & (d | c), d),
    "absorption or": (d | (d & c), d),
    "commutativity": (d & c, c & d),
    "causal and window": (c & w, w),
    "window and window": (
        mw.window(back=5, ahead=1) & mw.window(back=None, ahead=4) & mw.window(back=9, ahead=9),
        mw.window(back=5, ahead=1),
    ),
    "window or window": (mw.window(back=5) | mw.window(back=2, ahead=2), mw.window(5, 2)),
    "past or future": (c | c.T, mw.everything()),
    "past and future": (c & c.T, mw.window(0, 0)),
    "padding and padding": (p & mw.padding(lengths=[3, 1]), mw.padding(lengths=[2, 1])),
    "padding or padding": (p | mw.padding(lengths=[1]), mw.padding(lengths=[2, 3])),
    "padding of two kinds": (
        p & mw.padding(keep=[[0, 1, 1, 1], [1, 1, 1, 1]]),
        mw.padding(keep=[[0, 1, 0, 0], [1, 1, 1, 0]]),
    ),
    "prefix and prefix": (mw.prefix(3) & mw.prefix([2, 5]), mw.prefix([2, 3])),
    "chunks and chunks": (mw.chunks(8) & mw.chunks(4), mw.chunks(4)),
    "chunks or chunks": (mw.chunks(8) | mw.chunks(4), mw.chunks(8)),
    "stride and stride": (mw.stride(2) & mw.stride(6, phase=4), mw.stride(6, phase=4)),
    "keys and keys": (k & mw.keys([5, 7]), mw.keys([5])),
    "keys or keys": (k | mw.keys([5, 7]), mw.keys([0, 5, 7])),
    "queries or queries": (mw.queries([1]) | mw.queries([2]), mw.queries([1, 2])),
    "no keys": (mw.keys([]), mw.nothing()),
    "every key": (mw.stride(1), mw.everything()),
    "chunks of one": (mw.chunks(1), mw.window(0, 0)),
    "graph without edges": (mw.graph([]), mw.window(0, 0)),
    "turned twice": (p.T.T, p),
    "turned and": ((c & d).T, mw.window(0, None) & d),
    "turned window": (mw.window(back=3, ahead=1).T, mw.window(back=1, ahead=3)),
    "turned keys": (k.T, mw.queries([0, 5])),
    "turned stride": (mw.stride(5, phase=2).T, mw.stride(5, phase=3)),
    "turned graph": (
        mw.graph([(0, 1)], directed=True).T,
        mw.graph([(1, 0)], directed=True),
    ),
    "turned image": (mw.image(2, 3, 1).T, mw.image(2, 3, 1)),
    "turned dense": (mw.dense([[1, 0, 1]]).T, mw.dense([[1], [0], [1]])),
    "the same for every head": (mw.by_head([c, c]), c),
    "deep inside": (mw.by_batch([c & w, ~~d]), mw.by_batch([w, d])),
}


@pytest.mark.parametrize("name", LAWS)
def test_law(name: str) -> None:
    said, shorter = LAWS[name]
    assert mw.simplify(said) == shorter


@pytest.mark.parametrize(
    "mask",
    [c & p & d, c | mw.prefix(3), w | k, ~d, p.T, mw.chunks(4) & mw.chunks(6), mw.tree([-1, 0]).T],
    ids=repr,
)
def test_short_expressions_are_unchanged(mask: mw.Mask) -> None:
    assert mw.simplify(mask) == mask


def test_many_terms_merge_into_one() -> None:
    many = mw.keys([0])
    for position in range(1, 900):
        many |= mw.keys([2 * position])
    assert mw.simplify(many) == mw.keys(range(0, 1800, 2))


def test_positions_beyond_every_frame_are_not_merged() -> None:
    mask = mw.keys([1, 2**61]) & mw.keys([1, 5])
    assert mw.simplify(mask) == mask
    assert mask.on(8).equals(mw.keys([1]))


def test_equals_knows_laws_without_reading() -> None:
    frame = (2**30, 2**30)  # far too large to read, row by row
    assert (c & w).on(*frame).equals(w & c & c)
