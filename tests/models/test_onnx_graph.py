from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn

import maskwright as mw
from maskwright.models import onnx_graph
from maskwright.models.onnx_graph import Graph, Port

onnx = pytest.importorskip("onnx")


def doubled() -> Graph:
    graph = Graph()
    graph.inputs = [Port("x", np.float32, ("many", 2))]
    graph.op("Mul", "x", np.float32(2), name="y")
    graph.outputs = [Port("y", np.float32, ("many", 2))]
    return graph


def test_a_graph_runs_as_it_was_written() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    packed = doubled().pack({"mask": "causal()"})
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    (found,) = onnxruntime.InferenceSession(packed).run(None, {"x": x})
    np.testing.assert_array_equal(found, 2 * x)
    model = onnx.load_from_string(packed)
    assert [(prop.key, prop.value) for prop in model.metadata_props] == [("mask", "causal()")]
    assert packed == doubled().pack({"mask": "causal()"})


def test_a_graph_that_is_wrong_is_not_packed() -> None:
    graph = doubled()
    graph.op("Add", "nowhere", "y")
    with pytest.raises(onnx.checker.ValidationError):
        graph.pack({})


def test_a_weight_is_held_once_under_its_name() -> None:
    layer = nn.Linear(2, 3)
    graph = Graph(layer)
    assert [graph.weight(layer.weight), graph.weight(layer.weight)] == ["weight", "weight"]
    assert list(graph.constants) == ["weight"]
    other = graph.weight(nn.Parameter(torch.ones(2)))
    assert graph.constants[other].tolist() == [1.0, 1.0]


def test_other_precisions_are_refused() -> None:
    layer = nn.Linear(2, 3).to(torch.bfloat16)
    with pytest.raises(mw.ArgumentError, match=r"weight is of torch\.bfloat16"):
        Graph(layer).weight(layer.weight)


def test_more_than_a_file_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_graph, "MAX_BYTES", 3)
    with pytest.raises(mw.SizeError, match="an ONNX file holds 2 GB"):
        doubled().pack({})


def test_without_onnx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(mw.MissingError, match=r"maskwright\[onnx\]"):
        doubled().pack({})
