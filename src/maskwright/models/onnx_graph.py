"""A graph of ONNX operators, written one line an operator, and packed into a file's bytes.

Nothing is traced: whoever builds a graph names each step, so the file holds what the code says and
the same model gives the same bytes. Values are names; arrays and weights become constants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from maskwright._optional_deps import require
from maskwright.errors import ArgumentError, SizeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt
    from torch import nn

OPSET: Final = 20  # the first with Gelu
FORMAT: Final = 9  # the file format's version, that of the first onnx that knew these operators
MAX_BYTES: Final = 2**31 - 2**20  # a protobuf holds 2 GB, and the nodes need some of it


class Port(NamedTuple):
    """An input or an output: an axis is a number, or the name of one that can be any."""

    name: str
    dtype: type[np.generic]
    shape: tuple[int | str, ...]


class Graph:
    """Operators in the order in which they run, and what they read.

    >>> import numpy as np
    >>> from maskwright.models.onnx_graph import Graph
    >>> graph = Graph()
    >>> graph.op("Add", graph.op("Neg", "x"), np.float32(1))
    'Add_1'
    >>> [(node.kind, node.inputs) for node in graph.nodes]
    [('Neg', ('x',)), ('Add', ('Neg_0', 'constant_0'))]
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[str, npt.NDArray[Any]] = {}
        self.inputs: list[Port] = []
        self.outputs: list[Port] = []
        parameters = model.named_parameters() if model is not None else ()
        self._names = {id(parameter): name for name, parameter in parameters}

    def op(self, kind: str, *given: str | npt.ArrayLike, name: str = "", **settings: Any) -> str:
        """Run an operator on values; the name of what it gives."""
        result = name or f"{kind}_{len(self.nodes)}"
        inputs = tuple(x if isinstance(x, str) else self.constant(x) for x in given)
        self.nodes.append(Node(kind, inputs, result, settings))
        return result

    def constant(self, value: npt.ArrayLike) -> str:
        """A value that stands in the file; Python's numbers are int64."""
        array = np.asarray(value)
        name = f"constant_{len(self.constants)}"
        self.constants[name] = array
        return name

    def weight(self, parameter: torch.Tensor) -> str:
        """A weight, under the name that it has in the model."""
        name: str = self._names.get(id(parameter), f"weight_{len(self.constants)}")
        if parameter.dtype != torch.float32:
            raise ArgumentError(
                f"export_onnx: {name} is of {parameter.dtype}, and a graph is of float32. "
                "Give model.float()."
            )
        self.constants.setdefault(name, parameter.detach().cpu().numpy())
        return name

    def pack(self, about: Mapping[str, str]) -> bytes:
        """The bytes of an ONNX file, checked; `about` stands in its metadata."""
        with require("export_onnx"):
            import onnx
        size = sum(array.nbytes for array in self.constants.values())
        if size > MAX_BYTES:
            raise SizeError(
                f"export_onnx: the weights have {size / 1e9:.1f} GB, and an ONNX file holds 2 GB. "
                "Export a smaller model."
            )
        graph = onnx.helper.make_graph(
            [_node(onnx, node) for node in self.nodes],
            "maskwright",
            [_port(onnx, port) for port in self.inputs],
            [_port(onnx, port) for port in self.outputs],
            [onnx.numpy_helper.from_array(x, name) for name, x in self.constants.items()],
        )
        opset = onnx.helper.make_opsetid("", OPSET)
        model = onnx.helper.make_model(
            graph, producer_name="maskwright", opset_imports=[opset], ir_version=FORMAT
        )
        onnx.helper.set_model_props(model, dict(about))
        onnx.checker.check_model(model, full_check=True)
        packed: bytes = model.SerializeToString(deterministic=True)
        return packed


class Node(NamedTuple):
    """One operator."""

    kind: str
    inputs: tuple[str, ...]
    result: str
    settings: dict[str, Any]


def _node(onnx: Any, node: Node) -> Any:
    return onnx.helper.make_node(
        node.kind, node.inputs, [node.result], name=node.result, **node.settings
    )


def _port(onnx: Any, port: Port) -> Any:
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(port.dtype))
    return onnx.helper.make_tensor_value_info(port.name, kind, port.shape)
