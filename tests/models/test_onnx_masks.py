from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright import Frame, Mask
from maskwright.core.oracle import truth
from maskwright.models.onnx_graph import Graph, Port
from maskwright.models.onnx_masks import check_sayable, seen
from tests.strategies import atom, masks

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

KINDS = [
    *("everything", "nothing", "causal", "window", "prefix"),
    *("chunks", "stride", "keys", "queries"),
]


def shape_of(frame: Frame) -> tuple[int, int, int, int]:
    return frame.batch, frame.heads, frame.q_len, frame.kv_len


def computed(mask: Mask, frame: Frame) -> np.ndarray:
    """The mask as ONNX Runtime makes it, on the whole frame."""
    graph = Graph()
    graph.inputs = [
        Port("q", np.int64, (1, 1, "tokens", 1)),
        Port("k", np.int64, (1, 1, 1, "tokens")),
    ]
    graph.op("Identity", seen(mask, graph, "q", "k"), name="seen")
    graph.outputs = [Port("seen", np.bool_, ("batch", "heads", "queries", "keys"))]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    file = onnxruntime.InferenceSession(graph.pack({}), options)
    at = np.arange(frame.q_len)
    (found,) = file.run(None, {"q": at[:, None][None, None], "k": at[None, None, None]})
    return np.broadcast_to(found, shape_of(frame))


@st.composite
def squares(draw: st.DrawFn) -> Frame:
    tokens = draw(st.integers(0, 33))
    return Frame(tokens, tokens, draw(st.integers(1, 3)), draw(st.integers(1, 3)), 0)


def by_position(frame: Frame) -> st.SearchStrategy[Mask]:
    def made_of(inner: st.SearchStrategy[Mask]) -> st.SearchStrategy[Mask]:
        def several(count: int) -> st.SearchStrategy[list[Mask]]:
            return st.lists(inner, min_size=count, max_size=count)

        return st.one_of(
            st.builds(lambda one, other: one & other, inner, inner),
            st.builds(lambda one, other: one | other, inner, inner),
            inner.map(lambda mask: ~mask),
            inner.map(lambda mask: mask.T),
            several(frame.heads).map(mw.by_head),
            several(frame.batch).map(mw.by_batch),
        )

    atoms = st.sampled_from(KINDS).flatmap(lambda kind: atom(frame, kind))
    return st.recursive(atoms, made_of, max_leaves=6)


def exact(mask: Mask, frame: Frame) -> None:
    np.testing.assert_array_equal(
        computed(mask, frame), np.array(truth(mask, frame)).reshape(shape_of(frame))
    )


@settings(max_examples=100)
@given(squares().flatmap(lambda frame: st.tuples(st.just(frame), by_position(frame))))
def test_the_graph_makes_exactly_the_mask(case: tuple[Frame, Mask]) -> None:
    frame, mask = case
    exact(mask, frame)


@settings(max_examples=100)
@given(squares().flatmap(lambda frame: st.tuples(st.just(frame), masks(frame, depth=3))))
def test_any_mask_is_made_exactly_or_refused(case: tuple[Frame, Mask]) -> None:
    frame, mask = case
    try:
        check_sayable(mask)
    except mw.Unsupported as error:
        refused = error.term
    else:
        exact(mask, frame)
        return
    assert refused in repr(mask)


def test_positions_too_far_for_a_table_are_refused() -> None:
    with pytest.raises(mw.Unsupported, match=r"not keys\(...\) as given"):
        check_sayable(mw.causal() | mw.keys([2**40]))
