"""ONNX export of the models, with mask and position bias inside the graph.

The model is traced by `torch.onnx.export`. The mask becomes comparisons of positions, and a position
bias a function of their distances, so the file works for every batch size and length, and the caller
does not build a mask. Padding is an input. A mask with data of one length, such as `tree`, needs a
fixed length.
"""

from __future__ import annotations

import copy
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch
from torch import nn

from maskwright._atomic_write import write_atomic
from maskwright._optional_deps import require
from maskwright.bias.atoms import T5, Alibi
from maskwright.core.atoms import everything
from maskwright.core.expr import Atom, brief, find
from maskwright.core.operators import PerAxis
from maskwright.core.validate import parse_int
from maskwright.engine.api import override_attention
from maskwright.engine.softmax import masked_softmax
from maskwright.errors import ArgumentError, Unsupported
from maskwright.models.bert import Bert
from maskwright.models.gpt import GPT
from maskwright.models.seq2seq import Seq2Seq
from maskwright.targets.codegen import CodeWriter

if TYPE_CHECKING:
    from os import PathLike

    from maskwright.core.expr import Mask
    from maskwright.engine.call import AttentionOptions

EXAMPLE_LEN: Final = 4  # tokens of the inputs with which a model is traced
MAX_MASK_TEXT: Final = 1000  # characters of the mask in the file's metadata


def export_onnx(
    model: nn.Module,
    path: str | PathLike[str],
    *,
    padding: bool = True,
    seq_len: int | None = None,
) -> None:
    """Writes a GPT, Bert or Seq2Seq as an ONNX file that contains its mask.

    The inputs are `ids` (B, T) and `keep` (B, T), True for real tokens and False for padding; the
    output is `logits`, and `pooled` of a Bert. A Seq2Seq has the inputs `src`, `tgt`, `src_keep` and
    `tgt_keep`. Dropout is left out. With learned position embeddings the length is at most
    `block_size`; with `position="alibi"` or `"t5"` it is not limited.

    Args:
        model: The model.
        path: The file to write; it is replaced atomically.
        padding: Whether there are inputs for padding; False if all tokens are real.
        seq_len: Fixes the length (of a Seq2Seq, that of `tgt`), for masks that have no formula
            for every length.

    Raises:
        ArgumentError: The model is none of these, or `seq_len` is invalid.
        Unsupported: The mask has no formula for every length, and `seq_len` is None.

    >>> from tempfile import TemporaryDirectory
    >>> import maskwright as mw
    >>> from maskwright.models.gpt import GPT, GPTConfig
    >>> from maskwright.models.onnx import export_onnx
    >>> model = GPT(GPTConfig(vocab_size=65, n_layer=1, n_embd=32), mask=mw.window(back=15))
    >>> with TemporaryDirectory() as folder:
    ...     export_onnx(model, f"{folder}/gpt.onnx")
    """
    write_atomic(Path(path), onnx_bytes(model, padding=padding, seq_len=seq_len))


def onnx_bytes(model: nn.Module, *, padding: bool = True, seq_len: int | None = None) -> bytes:
    """The file that `export_onnx` writes, as bytes.

    Args:
        model: A GPT, Bert or Seq2Seq.
        padding: Whether the graph has inputs for padding.
        seq_len: The fixed length; dynamic if None.

    Returns:
        The serialised ONNX model.

    Raises:
        ArgumentError: If the model or the length is not supported.
        Unsupported: If the mask has no formula for every length and `seq_len` is None.

    >>> import maskwright as mw
    >>> from maskwright.models.gpt import GPT, GPTConfig
    >>> from maskwright.models.onnx import onnx_bytes
    >>> onnx_bytes(GPT(GPTConfig(vocab_size=9), mask=mw.causal() & mw.tree([-1, 0, 0])))
    Traceback (most recent call last):
    maskwright.errors.Unsupported: onnx: tree(...) has no formula for every length. Pass seq_len=... \
to fix the length.
    """
    if not isinstance(model, (GPT, Bert, Seq2Seq)):
        raise ArgumentError(
            f"export_onnx: expected a GPT, Bert or Seq2Seq, got {type(model).__name__}. "
            "Pass the model itself, neither wrapped nor compiled."
        )
    max_len = model.config.block_size if model.config.position == "learned" else None
    if seq_len is not None:
        seq_len = parse_int(seq_len, "export_onnx: seq_len", minimum=1)
        if max_len is not None and seq_len > max_len:
            raise ArgumentError(
                f"export_onnx: seq_len={seq_len}, but block_size is {max_len}. Pass at most that."
            )
    with require("ONNX export"):
        import onnx  # noqa: F401 - torch.onnx imports both
        import onnxscript  # noqa: F401
    mask = MaskFormula(model.mask, model.config.n_head, max_len, seq_len)
    return _export(ExportedModel(model, mask, padding), model.mask)


class MaskFormula:
    """A mask as tensor operations that torch.export can trace.

    Args:
        mask: The mask.
        n_head: Number of attention heads.
        max_len: Maximum length; None without a maximum.
        seq_len: The fixed length; None if the length is dynamic.

    Raises:
        Unsupported: The mask has data of one length, and the length is dynamic; or it has data of
            several sequences.
    """

    def __init__(self, mask: Mask, n_head: int, max_len: int | None, seq_len: int | None) -> None:
        self.seq_len, self.max_len = seq_len, max_len
        if seq_len is None:
            for atom in find(mask, Atom):
                _check_formula(atom)
        bound = mask.on(seq_len or max_len or EXAMPLE_LEN, heads=n_head)
        if bound.shape[0] > 1:
            raise Unsupported(
                f"onnx: {brief(mask)} has data of {bound.shape[0]} sequences, but the batch size is "
                "dynamic. Make the model with a mask for all sequences.",
                target="onnx",
                term=repr(mask),
            )
        self.dense = None if seq_len is None else torch.from_numpy(bound.dense())
        heads = [] if seq_len is not None else [_of_head(mask, h) for h in range(bound.shape[1])]
        self.formulas = [head._formula(_Writer(), "row", "col") for head in heads]

    def visible(self, T: int) -> torch.Tensor:  # noqa: N803
        """(1, H or 1, T, T), True where a key is visible."""
        if self.dense is not None:
            return self.dense
        positions = torch.arange(T)
        names = {"torch": torch, "row": positions[:, None], "col": positions[None, :]}
        # Each formula is source code that the mask itself has written.
        return torch.stack([eval(str(code), names).expand(T, T) for code in self.formulas])[None]


class ExportedModel(nn.Module):
    """A model whose inputs are tensors only: token ids, then which of them are real."""

    def __init__(self, model: GPT | Bert | Seq2Seq, mask: MaskFormula, padding: bool) -> None:
        super().__init__()
        self.model, self.mask, self.padding = copy.deepcopy(model).cpu().eval(), mask, padding
        self.prefixes = ("src_", "tgt_") if isinstance(model, Seq2Seq) else ("",)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs for inputs as in `examples`."""
        model, count = self.model, len(self.prefixes)
        ids = inputs[:count]  # (B, T) each
        keep = inputs[count:] or [torch.ones_like(x, dtype=torch.bool) for x in ids]
        visible = self.mask.visible(ids[-1].shape[1]) & keep[-1][:, None, None]  # (B, H or 1, T, T)
        src_mask = everything()  # stands for the mask of the source

        def attend(q: Any, k: Any, v: Any, mask: Any, options: AttentionOptions) -> torch.Tensor:
            scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5  # (B, H, T, S)
            if options.bias is not None:
                scores = scores + position_bias(options.bias, q.shape[2]).to(scores.dtype)
            cells = keep[0][:, None, None] if mask is src_mask else visible
            return masked_softmax(scores, cells)[0] @ v  # (B, H, T, head_dim)

        with override_attention(attend):
            if isinstance(model, GPT):
                return (model(ids[0]),)
            if isinstance(model, Bert):
                encoded = model.encode(ids[0])
                return model.lm_head(model.mlm_transform(encoded)), model.pooler(encoded[:, 0])
            memory = model.encode(ids[0], src_mask)
            x = model.decoder.hidden_states(ids[1], model.mask, memory, src_mask)
            logits = model.lm_head(x)
            if model.pointer is not None:
                logits = model.pointer(x, memory, ids[0], keep[0], logits)
            return (logits,)

    def examples(self) -> dict[str, tuple[torch.Tensor, dict[int, Any]]]:
        """Example inputs by name, each with its dynamic dimensions."""
        ids, keep = {}, {}
        B, batch = 2, torch.export.Dim("batch")  # an example of size 1 would be a constant
        for prefix in self.prefixes:
            T, dynamic = self.mask.seq_len, {0: batch}
            if T is None or prefix == "src_":
                T = min(EXAMPLE_LEN, self.mask.max_len or EXAMPLE_LEN)
                if T > 1:
                    dynamic[1] = torch.export.Dim(f"{prefix}seq_len", max=self.mask.max_len)
            ids[prefix.rstrip("_") or "ids"] = torch.zeros(B, T, dtype=torch.int64), dynamic
            keep[f"{prefix}keep"] = torch.ones(B, T, dtype=torch.bool), dynamic
        return ids | keep if self.padding else ids


def position_bias(bias: Any, T: int) -> torch.Tensor:  # noqa: N803
    """The bias of self-attention as tensor operations that torch.export can trace.

    Args:
        bias: What `Transformer.position_bias` returns.
        T: The length, which may be symbolic.

    Returns:
        (H, T, T).

    >>> import maskwright as mw
    >>> position_bias(mw.bias.alibi([0.5]), 2).tolist()
    [[[0.0, -0.5], [-0.5, 0.0]]]
    """
    positions = torch.arange(T)
    distances = positions[None, :] - positions[:, None]  # (T, T)
    if isinstance(bias, Alibi):
        slopes = torch.tensor(bias.slope_values, dtype=torch.float32)
        return slopes[:, None, None] * -distances.abs()
    assert isinstance(bias, T5)
    reach = bias.max_distance  # from which on the value is the same
    (term,) = bias.on(reach + 1).lower()
    return term.values[:, distances.clamp(-reach, reach) + reach]


class _Writer(CodeWriter):
    """Writes a mask's formula over `row` and `col`, the positions of queries and keys.

    A table with an entry per token belongs to one length, and raises LookupError.
    """

    def __init__(self) -> None:
        self.library, self.negative, self.data = "torch", False, []

    @property
    def tokens(self) -> int:  # type: ignore[override]
        raise LookupError

    def contains(self, positions: Any, position: str) -> str:  # ONNX has no isin
        values = f"torch.tensor({positions.tolist()}, dtype=torch.int64)"
        return f"({position}[..., None] == {values}).any(-1)"

    def lookup(self, *_: Any) -> NoReturn:
        raise LookupError


def _check_formula(atom: Atom) -> None:
    try:
        if atom._formula(_Writer(), "row", "col") is not None:
            return
    except LookupError:
        pass
    raise Unsupported(
        f"onnx: {brief(atom)} has no formula for every length. Pass seq_len=... to fix the length.",
        target="onnx",
        term=repr(atom),
    )


def _of_head(mask: Mask, head: int) -> Mask:
    """The mask of one head, without `by_head`."""
    if isinstance(mask, PerAxis):
        return _of_head(mask.member(0, head), head)
    parts = tuple(_of_head(part, head) for part in mask._parts())
    return mask._with_parts(parts) if parts else mask


def _export(module: ExportedModel, mask: Mask) -> bytes:
    inputs = module.examples()
    outputs = ["logits", "pooled"] if isinstance(module.model, Bert) else ["logits"]
    log = logging.getLogger("torch.onnx")
    level = log.level
    with warnings.catch_warnings():
        # Deprecations inside of torch, and the names of dimensions that inputs share.
        warnings.simplefilter("ignore")
        log.setLevel(logging.ERROR)  # operators of packages that are not installed
        try:
            program = torch.onnx.export(
                module.eval(),
                tuple(example for example, _ in inputs.values()),
                input_names=list(inputs),
                output_names=outputs,
                dynamic_shapes=(tuple(dynamic for _, dynamic in inputs.values()),),
                dynamo=True,
                verbose=False,
            )
        finally:
            log.setLevel(level)
    assert program is not None
    proto = program.model_proto
    for part in (proto.graph, *proto.graph.node, *proto.graph.value_info, *proto.graph.initializer):
        part.ClearField("metadata_props")  # file names and source lines of the traced code
    text = repr(mask)
    entry = proto.metadata_props.add()
    entry.key, entry.value = "mask", text if len(text) <= MAX_MASK_TEXT else brief(mask)
    return proto.SerializeToString()
