from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.models.bert import Bert, BertConfig
from maskwright.models.gpt import GPT, BabyGPT, GPTConfig
from maskwright.models.onnx import export_onnx, onnx_bytes
from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig

if TYPE_CHECKING:
    from pathlib import Path

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

WORDS, CONTEXT, HEADS = 40, 16, 2
SIZES = [(1, 1), (2, 7), (3, CONTEXT)]
TREE = mw.tree([-1, 0, 0, 1, 1, 2])


def session(model: torch.nn.Module, **how: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # what a run refuses it raises; it need not print it too
    return onnxruntime.InferenceSession(onnx_bytes(model, **how), options)


def run(given: Any, **feeds: Any) -> np.ndarray:
    return given.run(["logits"], {name: np.asarray(x) for name, x in feeds.items()})[0]


def lively(model: torch.nn.Module) -> Any:
    """Weights so large that a cell more or less in the mask shows in the logits."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.4)
    return model.eval()


def gpt(mask: mw.Mask | None = None) -> GPT:
    return lively(GPT(GPTConfig(WORDS, CONTEXT, 16, HEADS, 2), mask))


def baby(heads: int, mask: mw.Mask | None = None) -> BabyGPT:
    return lively(BabyGPT(GPTConfig(WORDS, CONTEXT, 16, heads), mask))


def bert(mask: mw.Mask | None = None) -> Bert:
    return lively(Bert(BertConfig(WORDS, CONTEXT, 16, HEADS, 2), mask))


def seq2seq(mask: mw.Mask | None = None) -> Seq2Seq:
    return lively(Seq2Seq(Seq2SeqConfig(30, WORDS, CONTEXT, 16, HEADS, 2), mask))


def ids_of(batch: int, tokens: int, words: int = WORDS) -> torch.Tensor:
    return torch.randint(words, (batch, tokens), generator=torch.Generator().manual_seed(tokens))


def keeps(batch: int, tokens: int) -> dict[str, np.ndarray]:
    """Padding of many kinds, (batch, tokens) each; under `none` a whole sequence is padding."""
    at = np.arange(tokens)
    half = np.broadcast_to(at < (tokens + 1) // 2, (batch, tokens))
    none = np.ones((batch, tokens), bool)
    none[-1] = False
    return {
        "all": np.ones((batch, tokens), bool),
        "right": half,
        "left": half[:, ::-1],
        "holes": np.random.default_rng(0).random((batch, tokens)) < 0.6,
        "none": none,
    }


def close(found: np.ndarray, want: torch.Tensor) -> None:
    np.testing.assert_allclose(found, want.detach().numpy(), atol=1e-4, rtol=1e-4)


MASKS = [
    None,  # the model's own
    mw.causal(),
    mw.everything(),
    mw.nothing(),
    mw.window(back=3),
    mw.window(back=2, ahead=1),
    mw.causal() | mw.prefix(4),
    mw.causal() & mw.chunks(5),
    mw.causal() & ~mw.keys([1]),
    mw.window(back=1) | mw.keys([0]) | mw.queries([2]),
    mw.causal() & mw.stride(2),
    mw.by_head([mw.causal(), mw.window(back=1)]),
]


@pytest.mark.parametrize("mask", MASKS, ids=repr)
@pytest.mark.parametrize("make", [gpt, bert])
def test_one_file_gives_the_models_logits_at_every_size_and_padding(make: Any, mask: Any) -> None:
    model = make(mask)
    file = session(model)
    for batch, tokens in SIZES:
        ids = ids_of(batch, tokens)
        for keep in keeps(batch, tokens).values():
            close(run(file, ids=ids, keep=keep), model(ids, mw.padding(keep=keep)))


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("mask", [None, mw.window(back=3), mw.causal() | mw.prefix(4)], ids=repr)
def test_a_baby_gpt_gives_its_logits_too(heads: int, mask: Any) -> None:
    model = baby(heads, mask)
    file = session(model)
    for batch, tokens in SIZES:
        ids = ids_of(batch, tokens)
        for keep in keeps(batch, tokens).values():
            close(run(file, ids=ids, keep=keep), model(ids, mw.padding(keep=keep)))


@pytest.mark.parametrize("mask", [None, mw.window(back=3), mw.everything()], ids=repr)
def test_an_encoder_decoder_takes_two_texts_of_any_length(mask: Any) -> None:
    model = seq2seq(mask)
    file = session(model)
    for (batch, tokens), long in zip(SIZES, (5, CONTEXT, 1), strict=True):
        source, target = ids_of(batch, long, 30), ids_of(batch, tokens)
        targets = keeps(batch, tokens)
        for kind, keep in keeps(batch, long).items():
            found = run(
                file, source=source, target=target, source_keep=keep, target_keep=targets[kind]
            )
            paddings = mw.padding(keep=keep), mw.padding(keep=targets[kind])
            close(found, model(source, target, *paddings))


def test_an_encoder_sums_a_text_up() -> None:
    model, ids, keep = bert(), ids_of(2, 7), keeps(2, 7)["right"]
    (found,) = session(model).run(["pooled"], {"ids": ids.numpy(), "keep": keep})
    close(found, model.pooled(ids, mw.padding(keep=keep)))


def test_padding_can_be_lengths_or_nothing() -> None:
    model, ids = gpt(mw.everything()), ids_of(3, 7)
    found = run(session(model, padding="lengths"), ids=ids, lengths=np.array([7, 3, 0]))
    close(found, model(ids, mw.padding(lengths=[7, 3, 0])))
    close(run(session(model, padding=None), ids=ids), model(ids))
    pair, source = seq2seq(), ids_of(3, 5, 30)
    lengths = {"source_lengths": np.array([5, 2, 0]), "target_lengths": np.array([7, 7, 3])}
    found = run(session(pair, padding="lengths"), source=source, target=ids, **lengths)
    paddings = mw.padding(lengths=[5, 2, 0]), mw.padding(lengths=[7, 7, 3])
    close(found, pair(source, ids, *paddings))


def test_a_row_that_sees_nothing_gives_exact_zeros() -> None:
    model = baby(1, mw.causal() & mw.keys([1, 2]))
    logits = run(session(model, padding=None), ids=ids_of(1, 3))
    np.testing.assert_array_equal(logits[0, 0], model.name.bias.detach().numpy())
    assert not np.array_equal(logits[0, 1], logits[0, 0])


# ── nothing leaks ─────────────────────────────────────────────────────────────────────────────


def depends(file: Any, ids: torch.Tensor, **more: Any) -> np.ndarray:
    """(T, T): do the logits at q change at all with the token at k?"""
    before = run(file, ids=ids, **more)
    found = np.zeros((ids.shape[1], ids.shape[1]), bool)
    for k in range(ids.shape[1]):
        other = ids.clone()
        other[:, k] = (other[:, k] + 1) % WORDS
        found[:, k] = (run(file, ids=other, **more) != before).any(axis=(0, 2))
    return found


@pytest.mark.parametrize("tokens", [2, 9, CONTEXT])
def test_the_future_can_not_leak(tokens: int) -> None:
    found = depends(session(gpt(), padding=None), ids_of(1, tokens))
    np.testing.assert_array_equal(found, np.tri(tokens, dtype=bool))
    assert depends(session(bert(), padding=None), ids_of(1, tokens)).all()


def test_a_window_reaches_as_far_as_its_layers_carry() -> None:
    found = depends(session(gpt(mw.window(back=3)), padding=None), ids_of(1, CONTEXT))
    np.testing.assert_array_equal(found, mw.window(back=6).on(CONTEXT).dense()[0, 0])


def test_padding_can_not_leak() -> None:
    keep = np.array([[True] * 5 + [False] * 3])
    found = depends(session(bert()), ids_of(1, 8), keep=keep)
    assert found[:5, :5].all()
    assert not found[:5, 5:].any()


def test_an_audit_of_the_file_finds_nothing() -> None:
    file = session(gpt(), padding=None)
    report = mw.audit(
        lambda ids: torch.from_numpy(run(file, ids=ids)), ids_of(2, 12), expects="causal"
    )
    assert report.ok, report


def test_an_audit_finds_a_file_that_sees_the_future() -> None:
    file = session(gpt(mw.causal() | mw.prefix(3)), padding=None)
    report = mw.audit(
        lambda ids: torch.from_numpy(run(file, ids=ids)), ids_of(2, 12), expects="causal"
    )
    assert not report.ok


# ── masks with data ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "mask",
    [
        mw.causal(),
        TREE,
        mw.image(2, 3, 1),
        mw.graph([(0, 3), (4, 1)], directed=False, loops=True),
        mw.dense(np.random.default_rng(0).random((6, 6)) < 0.5),
        mw.where(lambda b, h, q, k: (q + k) % 3 == h),
        mw.by_head([mw.causal(), TREE]),
    ],
    ids=lambda mask: repr(mask)[:20],
)
def test_any_mask_goes_into_a_file_of_fixed_length(mask: mw.Mask) -> None:
    model = gpt(mask)
    file = session(model, tokens=6)
    for batch in (1, 3):
        keep = keeps(batch, 6)["left"]
        found = run(file, ids=ids_of(batch, 6), keep=keep)
        close(found, model(ids_of(batch, 6), mw.padding(keep=keep)))
    with pytest.raises(Exception, match="Got: 5 Expected: 6"):
        run(file, ids=ids_of(1, 5), keep=keeps(1, 5)["all"])


def test_of_an_encoder_decoder_the_target_is_of_fixed_length() -> None:
    model = seq2seq(TREE)
    file = session(model, tokens=6, padding=None)
    for long in (2, 9):
        source, target = ids_of(2, long, 30), ids_of(2, 6)
        close(run(file, source=source, target=target), model(source, target))


@pytest.mark.parametrize("tokens", [None, 7])
def test_a_mask_for_two_sequences_fixes_the_batch(tokens: int | None) -> None:
    model = gpt(mw.causal() | mw.prefix([2, 5]))
    file = session(model, padding=None, tokens=tokens)
    close(run(file, ids=ids_of(2, 7)), model(ids_of(2, 7)))
    with pytest.raises(Exception, match="Got: 3 Expected: 2"):
        run(file, ids=ids_of(3, 7))


@pytest.mark.parametrize(
    ("mask", "term"),
    [
        (mw.causal() & TREE, repr(TREE)),
        (mw.causal() & mw.documents(lengths=[[2, 3]]), "documents(lengths=[[2, 3]])"),
        (~mw.padding(lengths=[3]), "padding(lengths=[3])"),
        (mw.causal() | mw.keys([True, False]), "keys([[1, 0]])"),
    ],
)
def test_a_mask_that_has_one_length_is_refused_by_name(mask: mw.Mask, term: str) -> None:
    with pytest.raises(mw.Unsupported, match="tokens=") as refusal:
        onnx_bytes(gpt(mask))
    assert refusal.value.term == term


# ── the file ──────────────────────────────────────────────────────────────────────────────────


def test_the_file_is_whole_and_says_which_mask_it_holds(tmp_path: Path) -> None:
    model = gpt(mw.window(back=3))
    export_onnx(model, tmp_path / "gpt.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["gpt.onnx"]
    file = onnxruntime.InferenceSession(str(tmp_path / "gpt.onnx"))
    close(run(file, ids=ids_of(2, 5), keep=keeps(2, 5)["all"]), model(ids_of(2, 5)))
    assert file.get_modelmeta().custom_metadata_map == {"mask": "window(back=3)"}
    assert [(x.name, x.shape) for x in file.get_inputs()] == [
        ("ids", ["batch", "tokens"]),
        ("keep", ["batch", "tokens"]),
    ]


def test_the_file_holds_every_weight_once_under_its_name() -> None:
    for model in (gpt(), bert(), seq2seq(), baby(1)):
        held = onnx.load_from_string(onnx_bytes(model)).graph.initializer
        found = {x.name: onnx.numpy_helper.to_array(x) for x in held}
        weights = dict(model.named_parameters())
        assert set(weights) == {name for name in found if not name.startswith("constant_")}
        for name, weight in weights.items():
            np.testing.assert_array_equal(found[name], weight.detach().numpy())


def test_dropout_is_left_out_also_of_a_model_in_training() -> None:
    model = lively(GPT(GPTConfig(WORDS, CONTEXT, 16, HEADS, 2, dropout=0.5)))
    file = session(model.train(), padding=None)
    close(run(file, ids=ids_of(2, 5)), model.eval()(ids_of(2, 5)))


def test_a_text_longer_than_the_context_is_refused_at_run_time() -> None:
    with pytest.raises(Exception, match="out of data bounds"):
        run(session(gpt(), padding=None), ids=ids_of(1, CONTEXT + 1))


def test_what_can_not_be_exported_is_refused() -> None:
    class Mine(GPT):
        pass

    with pytest.raises(mw.ArgumentError, match="got a Linear"):
        onnx_bytes(torch.nn.Linear(2, 2))
    with pytest.raises(mw.ArgumentError, match="got a Mine"):
        onnx_bytes(Mine(GPTConfig(9)))
    with pytest.raises(mw.ArgumentError, match="padding"):
        onnx_bytes(gpt(), padding="left")  # type: ignore[arg-type]
    with pytest.raises(mw.ArgumentError, match="tokens=17 but the context is 16"):
        onnx_bytes(gpt(), tokens=17)
    with pytest.raises(mw.ArgumentError, match="tokens=0"):
        onnx_bytes(gpt(), tokens=0)
    with pytest.raises(mw.ArgumentError, match=r"model\.float"):
        onnx_bytes(gpt().half())
    with pytest.raises(mw.FrameError, match="heads"):
        onnx_bytes(baby(2, mw.by_head([mw.causal(), mw.everything()])))
