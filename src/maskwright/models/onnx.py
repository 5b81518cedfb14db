"""Models as ONNX files with the mask inside: who runs the file can't get the mask wrong.

The graph makes the mask from the length, so batch and length may be any; padding is an input. A
mask that holds data of one length goes in as a constant, and then the length is fixed. Attention
is the textbook's softmax under that mask, and a row that sees nothing gives zeros, as everywhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from maskwright._atomic_write import write_atomic
from maskwright.core.atoms import everything
from maskwright.core.expr import brief
from maskwright.core.validate import parse_int, read_choice
from maskwright.errors import ArgumentError
from maskwright.models.bert import Bert
from maskwright.models.gpt import GPT, BabyGPT
from maskwright.models.onnx_graph import Graph, Port
from maskwright.models.onnx_layers import Memory, attend, block, embed, linear, norm, turned
from maskwright.models.onnx_masks import check_sayable, seen
from maskwright.models.seq2seq import Seq2Seq

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from torch import nn

    from maskwright.core.expr import Mask

Padding = Literal["keep", "lengths"]

LONGEST: Final = 1000  # letters of a mask's text in the file; beyond, its data is left out


def export_onnx(
    model: nn.Module,
    path: str | PathLike[str],
    *,
    padding: Padding | None = "keep",
    tokens: int | None = None,
) -> None:
    """Write a GPT, BabyGPT, Bert or Seq2Seq as an ONNX file that asks nobody for a mask.

    The file takes `ids` (B, T) and gives `logits`, a Bert `pooled` too; a Seq2Seq takes `source`
    and `target`. With `padding="keep"` it also takes `keep` (B, T), True for real tokens, with
    "lengths" the `lengths` (B,), and with None every token is real; a Seq2Seq takes the padding of
    both, such as `source_keep` and `target_keep`.

    `tokens` fixes the length of what the model's mask is about (of a Seq2Seq, the target), for
    masks that can't be said at every length. The file computes as the model does in `eval()`.

    >>> from tempfile import TemporaryDirectory
    >>> import maskwright as mw
    >>> from maskwright.models.gpt import GPT, GPTConfig
    >>> from maskwright.models.onnx import export_onnx
    >>> model = GPT(GPTConfig(vocabulary=65, width=32), mask=mw.window(back=15))
    >>> with TemporaryDirectory() as folder:
    ...     export_onnx(model, f"{folder}/gpt.onnx")
    """
    write_atomic(Path(path), onnx_bytes(model, padding=padding, tokens=tokens))


def onnx_bytes(
    model: nn.Module, *, padding: Padding | None = "keep", tokens: int | None = None
) -> bytes:
    """What `export_onnx` writes, for a runtime that reads from memory.

    >>> from maskwright.models.bert import Bert, BertConfig
    >>> from maskwright.models.onnx import onnx_bytes
    >>> model = Bert(BertConfig(vocabulary=30, width=16, layers=1))
    >>> onnx_bytes(model) == onnx_bytes(model)
    True
    """
    write = WRITERS.get(type(model))  # a subclass may compute something else
    if write is None:
        raise ArgumentError(
            f"export_onnx: got a {type(model).__name__}. "
            "Give a GPT, BabyGPT, Bert or Seq2Seq itself, neither wrapped nor compiled."
        )
    if padding is not None:
        read_choice(padding, "export_onnx: padding", ("keep", "lengths"))
    context, mask = int(model.config.context), model.mask
    if tokens is not None and parse_int(tokens, "export_onnx: tokens", minimum=1) > context:
        raise ArgumentError(
            f"export_onnx: tokens={tokens} but the context is {context}. Give fewer."
        )
    heads = 1 if isinstance(model, BabyGPT) else int(model.config.heads)
    graph = Graph(model)
    write(graph, model, Wanted(mask, heads, padding, tokens))
    text = repr(mask)
    return graph.pack({"mask": text if len(text) <= LONGEST else brief(mask)})


class Wanted(NamedTuple):
    """What the file shall say and take."""

    mask: Mask
    heads: int
    padding: Padding | None
    tokens: int | None

    @property
    def batch(self) -> int | str:
        """The batch axis: any, unless the mask has data for so many rows."""
        if self.tokens is None:
            check_sayable(self.mask)
        rows = self.mask.on(self.tokens or 1, heads=self.heads).frame.batch
        return "batch" if rows == 1 else rows


class Text(NamedTuple):
    """A text as the graph knows it: names of its values, and the sizes of its axes."""

    ids: str  # (B, T)
    at: str  # (T,), the positions
    real: str  # (B or 1, 1, 1, T or 1), which tokens are no padding
    shape: tuple[int | str, int | str]


def _gpt(graph: Graph, model: GPT, wanted: Wanted) -> None:
    text = _text(graph, wanted, "ids", "", wanted.tokens)
    allowed = _own(graph, wanted, text)
    x = embed(graph, model.words, model.places, text.ids, text.at)
    for layer in model.blocks:
        x = block(graph, layer, x, allowed)
    logits = graph.op("MatMul", norm(graph, model.norm, x), turned(graph, model.words.weight))
    _give(graph, "logits", logits, (*text.shape, model.config.vocabulary))


def _baby_gpt(graph: Graph, model: BabyGPT, wanted: Wanted) -> None:
    text = _text(graph, wanted, "ids", "", wanted.tokens)
    x = embed(graph, model.words, model.places, text.ids, text.at)
    found = attend(graph, model.attend, x, _own(graph, wanted, text))
    logits = linear(graph, model.name, found)
    _give(graph, "logits", logits, (*text.shape, model.config.vocabulary))


def _bert(graph: Graph, model: Bert, wanted: Wanted) -> None:
    text = _text(graph, wanted, "ids", "", wanted.tokens)
    allowed = _own(graph, wanted, text)
    x = embed(graph, model.words, model.places, text.ids, text.at)
    for layer in model.blocks:
        x = block(graph, layer, x, allowed)
    x = norm(graph, model.norm, x)
    hidden = norm(graph, model.guess_norm, graph.op("Gelu", linear(graph, model.guess, x)))
    logits = graph.op("MatMul", hidden, turned(graph, model.words.weight))
    _give(graph, "logits", logits, (*text.shape, model.config.vocabulary))
    first = graph.op("Gather", x, 0, axis=1)  # (B, C)
    pooled = graph.op("Tanh", linear(graph, model.pool, first))
    _give(graph, "pooled", pooled, (text.shape[0], model.config.width))


def _seq2seq(graph: Graph, model: Seq2Seq, wanted: Wanted) -> None:
    if model.pointer is not None:
        raise ArgumentError(
            "export_onnx: the model copies from its source, which is not written to a file yet. "
            "Make it with copies=False."
        )
    source = _text(graph, wanted, "source", "source_", None)
    x = embed(graph, model.source_words, model.source_places, source.ids, source.at)
    for layer in model.encoder:
        x = block(graph, layer, x, source.real)
    memory = Memory(norm(graph, model.encoder_norm, x), source.real)
    target = _text(graph, wanted, "target", "target_", wanted.tokens)
    allowed = _own(graph, wanted, target)
    x = embed(graph, model.target_words, model.target_places, target.ids, target.at)
    for layer in model.decoder:
        x = block(graph, layer, x, allowed, memory)
    x = norm(graph, model.decoder_norm, x)
    logits = graph.op("MatMul", x, turned(graph, model.target_words.weight))
    _give(graph, "logits", logits, (*target.shape, model.config.target_vocabulary))


WRITERS: Final[dict[type[Any], Callable[[Graph, Any, Wanted], None]]] = {
    GPT: _gpt,
    BabyGPT: _baby_gpt,
    Bert: _bert,
    Seq2Seq: _seq2seq,
}


def _text(graph: Graph, wanted: Wanted, name: str, prefix: str, tokens: int | None) -> Text:
    """A text as an input, and its padding as another."""
    shape = (wanted.batch, f"{prefix}tokens" if tokens is None else tokens)
    graph.inputs.append(Port(name, np.int64, shape))
    count = graph.op("Squeeze", graph.op("Shape", name, start=1, end=2))
    at = graph.op("Range", 0, count, 1)
    if wanted.padding is None:
        return Text(name, at, seen(everything(), graph, at, at), shape)
    given = f"{prefix}{wanted.padding}"
    if wanted.padding == "keep":
        graph.inputs.append(Port(given, np.bool_, shape))
        return Text(name, at, graph.op("Unsqueeze", given, [1, 2]), shape)
    graph.inputs.append(Port(given, np.int64, shape[:1]))
    lengths = graph.op("Unsqueeze", given, [1, 2, 3])  # (B, 1, 1, 1)
    return Text(name, at, graph.op("Less", at, lengths), shape)


def _own(graph: Graph, wanted: Wanted, text: Text) -> str:
    """Who sees whom in a text, under the model's mask: (B or 1, H or 1, T, T), to be broadcast."""
    if wanted.tokens is None:
        q = graph.op("Unsqueeze", text.at, [0, 1, 3])
        allowed = seen(wanted.mask, graph, q, graph.op("Unsqueeze", text.at, [0, 1, 2]))
    else:
        allowed = graph.constant(wanted.mask.on(wanted.tokens, heads=wanted.heads).dense())
    return graph.op("And", allowed, text.real)


def _give(graph: Graph, name: str, value: str, shape: tuple[int | str, ...]) -> None:
    graph.op("Identity", value, name=name)
    graph.outputs.append(Port(name, np.float32, shape))
