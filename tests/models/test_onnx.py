from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.models.bert import Bert, BertConfig
from maskwright.models.gpt import GPT, GPTConfig
from maskwright.models.onnx import MaskFormula, export_onnx, onnx_bytes, position_bias
from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig
from tests._helpers.large_weights import with_large_weights
from tests._helpers.sampling import subset_of_cases

if TYPE_CHECKING:
    from pathlib import Path

for package in ("onnx", "onnxscript"):
    pytest.importorskip(package)
onnxruntime = pytest.importorskip("onnxruntime")

VOCAB, BLOCK_SIZE, HEADS = 40, 16, 2
SIZES = [(1, 1), (2, 7), (3, BLOCK_SIZE)]  # batch, length
TREE = mw.tree([-1, 0, 0, 1, 1, 2])


QUIET = onnxruntime.SessionOptions()
QUIET.intra_op_num_threads = 1
QUIET.log_severity_level = 4  # errors are raised, and need not be printed


def make_session(model: torch.nn.Module, **how: Any) -> Any:
    return onnxruntime.InferenceSession(onnx_bytes(model, **how), QUIET)


def run(session: Any, **feeds: Any) -> np.ndarray:
    return session.run(["logits"], {name: np.asarray(x) for name, x in feeds.items()})[0]


def gpt(mask: mw.Mask | None = None, dropout: float = 0.0, position: str = "learned") -> GPT:
    config = GPTConfig(VOCAB, BLOCK_SIZE, 1, HEADS, 16, dropout, position=position)
    return with_large_weights(GPT(config, mask), scale=0.4)


def bert(position: str = "learned") -> Bert:
    config = BertConfig(VOCAB, BLOCK_SIZE, 1, HEADS, 16, position=position)
    return with_large_weights(Bert(config), scale=0.4)


def seq2seq(
    mask: mw.Mask | None = None, pointer: bool = False, position: str = "learned"
) -> Seq2Seq:
    config = Seq2SeqConfig(
        *(VOCAB, VOCAB, BLOCK_SIZE, 1, HEADS, 16), use_pointer=pointer, position=position
    )
    return with_large_weights(Seq2Seq(config, mask), scale=0.4)


def make_ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(length))


def make_keeps(batch: int, length: int) -> dict[str, np.ndarray]:
    """Padding of many kinds, (batch, length) each; in `none` the last sequence is all padding."""
    half = np.broadcast_to(np.arange(length) < (length + 1) // 2, (batch, length))
    none = np.ones((batch, length), bool)
    none[-1] = False
    return {
        "all": np.ones((batch, length), bool),
        "right": half,
        "left": half[:, ::-1],
        "holes": np.random.default_rng(0).random((batch, length)) < 0.6,
        "none": none,
    }


def assert_close(found: np.ndarray, expected: torch.Tensor) -> None:
    np.testing.assert_allclose(found, expected.detach().numpy(), atol=1e-4, rtol=1e-4)


MASKS = [
    mw.causal(),
    mw.everything(),
    mw.nothing(),
    mw.window(back=2, ahead=1),
    mw.causal() | mw.prefix(4),
    mw.causal() & mw.chunks(5) & ~mw.keys([1, 3, 4, 9]),
    mw.window(back=1) | mw.keys([0]) | mw.queries(range(2, 12)) | mw.keys([2, 5]).T,
    mw.causal() & mw.stride(2, phase=1),
    mw.keys([]) | mw.keys(range(0, 100, 2)),
    mw.by_head([mw.causal(), mw.window(back=1)]) & ~mw.keys([2]),
    mw.by_head([mw.chunks(3), mw.everything()]).T & mw.by_head([mw.causal(), mw.stride(3)]),
]


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_formulas_equal_the_mask_at_every_length(mask: mw.Mask) -> None:
    formula = MaskFormula(mask, HEADS, BLOCK_SIZE, None)
    for length in range(1, BLOCK_SIZE + 1):
        expected = mask.on(length, heads=HEADS).dense()
        np.testing.assert_array_equal(formula.visible(length).numpy(), expected)


@pytest.mark.parametrize(
    ("mask", "term"),
    [
        (mw.causal() & TREE, repr(TREE)),
        (mw.causal() & mw.documents(lengths=[[2, 3]]), "documents(lengths=[[2, 3]])"),
        (~mw.padding(keep=[[1, 1, 0]]), "padding(keep=[[1, 1, 0]])"),
        (mw.causal() | mw.keys([True, False]), "keys([[1, 0]])"),
        (mw.by_head([mw.causal(), mw.image(2, 3, 1)]), "image(height=2, width=3, radius=1)"),
    ],
)
def test_a_mask_of_one_length_raises_and_names_the_term(mask: mw.Mask, term: str) -> None:
    with pytest.raises(mw.Unsupported, match="seq_len=") as error:
        onnx_bytes(gpt(mask))
    assert error.value.term == term


ALL_OPERATORS = mw.by_head(
    [
        (mw.causal() & mw.stride(2)) | (mw.prefix(4) & ~mw.keys([1, 3])),
        (mw.chunks(5) & mw.window(back=3, ahead=1)) | mw.queries(range(6, 90)) | mw.nothing(),
    ]
)


# An export takes seconds: `make test` has one with each kind of model, and with each kind of positions.
MODELS = [
    gpt(ALL_OPERATORS),
    bert(position="t5"),
    *subset_of_cases([bert(), gpt(position="t5"), gpt(position="alibi")], every=4, first=3),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda x: f"{type(x).__name__}-{x.position}")
def test_outputs_are_equal_for_every_size_and_padding(model: Any) -> None:
    session = make_session(model)
    unlimited = [] if model.position == "learned" else [(1, 20 * BLOCK_SIZE)]
    for batch, length in [*SIZES, *unlimited]:
        ids = make_ids(batch, length)
        for keep in make_keeps(batch, length).values():
            padding = mw.padding(keep=keep)
            assert_close(run(session, ids=ids, keep=keep), model(ids, padding))
            if isinstance(model, Bert):
                (pooled,) = session.run(["pooled"], {"ids": ids.numpy(), "keep": keep})
                assert_close(pooled, model.pooled(ids, padding))


def test_seq2seq_with_a_pointer_has_two_dynamic_lengths() -> None:
    model = seq2seq(pointer=True)
    session = make_session(model)
    for (batch, length), src_len in zip(SIZES, (5, BLOCK_SIZE, 1), strict=True):
        src, tgt = make_ids(batch, src_len), make_ids(batch, length)
        tgt_keeps = make_keeps(batch, length)
        for kind, src_keep in make_keeps(batch, src_len).items():
            keeps = {"src_keep": src_keep, "tgt_keep": tgt_keeps[kind]}
            padding = [mw.padding(keep=keep) for keep in keeps.values()]
            assert_close(run(session, src=src, tgt=tgt, **keeps), model(src, tgt, *padding))


def test_any_mask_can_be_exported_with_a_fixed_length() -> None:
    mask = mw.by_head([mw.causal() & TREE, mw.where(lambda b, h, q, k: (q + k) % 3 == h)])
    model = gpt(mask, position="alibi")
    session = make_session(model, seq_len=6)
    for batch in (1, 3):
        ids, keep = make_ids(batch, 6), make_keeps(batch, 6)["left"]
        assert_close(run(session, ids=ids, keep=keep), model(ids, mw.padding(keep=keep)))
    with pytest.raises(Exception, match="Got: 5 Expected: 6"):
        run(session, ids=make_ids(1, 5), keep=make_keeps(1, 5)["all"])


def test_a_fixed_length_of_a_seq2seq_is_that_of_its_target() -> None:
    model, tgt = seq2seq(TREE, position="t5"), make_ids(3, 6)
    session = make_session(model, seq_len=6, padding=False)
    for src_len in (2, 3 * BLOCK_SIZE):
        src = make_ids(3, src_len)
        assert_close(run(session, src=src, tgt=tgt), model(src, tgt))


def test_a_block_size_of_one_can_be_exported() -> None:
    model, ids = GPT(GPTConfig(VOCAB, 1, 1, HEADS, 16), mw.everything()), make_ids(3, 1)
    assert_close(run(make_session(model, padding=False), ids=ids), model(ids))


BIASES = [
    mw.bias.alibi(4),
    mw.bias.t5(torch.randn(32, 2), bidirectional=True),
    mw.bias.t5(torch.randn(32, 2), bidirectional=False),
]


@pytest.mark.parametrize("bias", BIASES, ids=lambda bias: bias.name)
def test_position_bias_equals_the_bias_at_every_length(bias: mw.bias.Bias) -> None:
    for length in (1, 2, 50, 300):  # T5's last bucket begins at 128
        expected = torch.as_tensor(bias.on(length).dense()[0])
        torch.testing.assert_close(position_bias(bias, length), expected, check_dtype=False)


def test_the_file_names_its_inputs_and_mask_and_has_no_leak(tmp_path: Path) -> None:
    mask, path = mw.window(back=3), tmp_path / "gpt.onnx"
    model = gpt(mask, dropout=0.5).train()
    export_onnx(model, path)
    assert model.training
    assert [file.name for file in tmp_path.iterdir()] == ["gpt.onnx"]
    assert b".py" not in path.read_bytes()  # no paths of this machine
    session = onnxruntime.InferenceSession(str(path), QUIET)
    assert session.get_modelmeta().custom_metadata_map == {"mask": "window(back=3)"}
    shape = ["batch", "seq_len"]
    assert [(x.name, x.shape) for x in session.get_inputs()] == [("ids", shape), ("keep", shape)]

    def run_file(ids: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(run(session, ids=ids, keep=np.ones(ids.shape, bool)))

    assert_close(run_file(make_ids(2, 9)).numpy(), model.eval()(make_ids(2, 9)))  # no dropout
    mw.audit(run_file, make_ids(2, 12), expects=mask).assert_ok()
    with pytest.raises(Exception, match="out of data bounds"):  # longer than block_size
        run_file(make_ids(1, BLOCK_SIZE + 1))


def test_invalid_arguments_raise() -> None:
    with pytest.raises(mw.ArgumentError, match="got Linear"):
        onnx_bytes(torch.nn.Linear(2, 2))
    for seq_len in (0, 17):
        with pytest.raises(mw.ArgumentError, match=f"seq_len={seq_len}"):
            onnx_bytes(gpt(), seq_len=seq_len)
    with pytest.raises(mw.Unsupported, match="2 sequences"):
        onnx_bytes(gpt(mw.causal() | mw.prefix([2, 5])))
    with pytest.raises(mw.FrameError, match="heads"):
        onnx_bytes(gpt(mw.by_head([mw.causal()] * 3)))
