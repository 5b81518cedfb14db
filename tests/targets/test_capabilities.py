"""The data about targets is complete, and what it claims of the frameworks is so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.targets.lower import TARGETS
from tests._helpers.reference_attention import random_qkv
from tests._helpers.target_runners import keras_layer, mha_module, transformer_module

PACKAGE = Path(mw.__file__).parent / "targets"
SHARED = {
    "_torch", "base", "codegen", "diagnose", "lower", "predicates", "scores", "varlen",
    "xformers_blocks",
}  # fmt: skip
FILES = {name: path.partition(":")[0] for name, path in TARGETS.entries.items()}
ALLOWED = np.array([[[[True, False, False], [False, False, False], [True, True, True]]]])


def test_every_target_has_file_and_every_file_is_target_or_shared() -> None:
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert files == SHARED | set(FILES.values())
    assert not SHARED & set(FILES.values())
    assert list(mw.capabilities()) == list(FILES)


@pytest.mark.parametrize("name", FILES)
def test_data_is_complete(name: str) -> None:
    target = mw.capabilities()[name]
    assert target.name == name
    for field in ("returns", "supports", "polarity", "shape", "alignment", "empty_rows"):
        assert getattr(target, field)
    assert target.requires in {"", "torch", "xformers", "jax", "keras", "tensorflow"}
    assert target.tested in ("kernel run", "format only, kernel not run")
    assert set(target.alternatives) <= set(FILES) - {name}
    assert target.alternatives or target.supports == "every mask"


def qkv(dtype: Any = torch.float64) -> list[torch.Tensor]:
    return [torch.from_numpy(x).to(dtype) for x in random_qkv(ALLOWED.shape)]


def test_polarities() -> None:
    """A mask that keeps one key gives that key's value, and only in the stated polarity."""
    q, k, v = qkv()
    one = torch.tensor([[False, True, False]]).expand(3, 3)
    value = v[:, :, 1:2].expand_as(q)
    polarity = {name: target.polarity for name, target in mw.capabilities().items()}

    attend = torch.nn.functional.scaled_dot_product_attention
    assert polarity["torch.sdpa"] == "True keeps"
    assert torch.allclose(attend(q, k, v, attn_mask=one), value)

    assert polarity["torch.mha"] == "True masks"
    module = mha_module(1, torch.float64)
    out = module(q[:, 0], k[:, 0], v[:, 0], attn_mask=~one)[0]
    assert torch.allclose(out, value[:, 0])

    assert polarity["jax"] == polarity["keras"] == "True keeps"
    import jax

    swapped = [np.moveaxis(x.numpy(), 1, 2).astype(np.float32) for x in (q, k, v)]
    out = jax.nn.dot_product_attention(*swapped, mask=one.numpy()[None, None])
    assert np.allclose(np.moveaxis(np.asarray(out), 1, 2), value.numpy(), atol=1e-5)

    flat = [x[:, 0].float() for x in (q, v, k)]
    out = keras_layer(1, 0.0)(*flat, attention_mask=one[None])
    assert np.allclose(out.detach().numpy(), value[:, 0].numpy(), atol=1e-5)


def test_empty_rows_of_sdpa_are_zero() -> None:
    out = torch.nn.functional.scaled_dot_product_attention(*qkv(), torch.from_numpy(ALLOWED))
    assert mw.capabilities()["torch.sdpa"].empty_rows == "zero"
    assert not out[0, 0, 1].any()


def test_empty_rows_of_mha_are_nan_but_zero_with_floats_and_without_weights() -> None:
    claim = mw.capabilities()["torch.mha"].empty_rows
    assert claim.startswith("NaN; zero with float masks and need_weights=False")
    module = mha_module(1, torch.float64)
    inputs = [x[:, 0] for x in qkv()]
    drop = torch.from_numpy(~ALLOWED[0, 0])
    assert module(*inputs, attn_mask=drop)[0][0, 1].isnan().all()
    floats = torch.zeros(3, 3, dtype=torch.float64).masked_fill(drop, float("-inf"))
    assert module(*inputs, attn_mask=floats)[0][0, 1].isnan().all()
    assert not module(*inputs, attn_mask=floats, need_weights=False)[0][0, 1].any()


def test_empty_rows_of_transformers_encoder_are_nan_in_eval_mode() -> None:
    claim = mw.capabilities()["torch.transformer"].empty_rows
    assert claim == "NaN in eval mode; zero with float masks, except in the encoder"
    module = transformer_module(2, torch.float64, True).eval()
    x = torch.randn(1, 3, 8, dtype=torch.float64)
    hidden = torch.from_numpy(~ALLOWED[0, 0])
    floats = torch.zeros(3, 3, dtype=torch.float64).masked_fill(hidden, float("-inf"))
    with torch.no_grad():
        assert module(x, x, src_mask=floats).isnan().any()
        assert module(x, x, tgt_mask=hidden).isnan().any()
        assert not module(x, x, tgt_mask=floats).isnan().any()


def test_empty_rows_of_jax_are_uniform_but_zero_beyond_queries() -> None:
    import jax

    claim = mw.capabilities()["jax"].empty_rows
    assert claim.startswith("uniform over all keys; zero for the last rows")
    q, k, v = (np.moveaxis(x.numpy(), 1, 2).astype(np.float32) for x in qkv())
    out = np.asarray(jax.nn.dot_product_attention(q, k, v, mask=ALLOWED))
    assert np.allclose(out[0, 1, 0], v[0, :, 0].mean(axis=0), atol=1e-6)
    lengths = np.array([1], np.int32)
    out = np.asarray(jax.nn.dot_product_attention(q, k, v, query_seq_lengths=lengths))
    assert not out[0, 1:].any()


def test_empty_rows_of_splash_attention_are_uniform() -> None:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel

    assert mw.capabilities()["jax.splash"].empty_rows.startswith("uniform")
    given = mw.lower(mw.dense(ALLOWED), "jax.splash", q_len=3, empty_rows="native")
    q, k, v = (x[0].float().numpy() for x in qkv())
    ids = type(given["segment_ids"])(*(side[0] for side in given["segment_ids"]))
    out = np.asarray(kernel.make_masked_mha_reference(given["mask"])(q, k, v, ids))
    assert np.allclose(out[0, 1], v[0].mean(axis=0), atol=1e-6)


def test_empty_rows_of_keras_differ_by_path() -> None:
    assert mw.capabilities()["keras"].empty_rows.startswith("zero or uniform")
    q, k, v = (x[:, 0].float() for x in qkv())
    outs = []
    for scores in (False, True):
        out = keras_layer(1, 0.0)(
            q, v, k, attention_mask=torch.from_numpy(ALLOWED[0]), return_attention_scores=scores
        )
        outs.append((out[0] if scores else out).detach()[0, 1])
    fused, by_scores = outs
    assert torch.allclose(fused, v[0].mean(dim=0), atol=1e-5)
    assert not by_scores.any()


@pytest.mark.parametrize("target", ["additive", "torch.additive"])
def test_empty_rows_of_additive_masks_are_left_to_softmax(target: str) -> None:
    claim = mw.capabilities()[target].empty_rows
    assert claim == "left to the softmax: NaN with -inf, uniform with a finite fill"
    scores = torch.randn(1, 1, 3, 3, dtype=torch.float64)
    for fill, right in ((None, torch.nan), ("min", 1 / 3)):
        bias = torch.as_tensor(mw.lower(mw.dense(ALLOWED), target, q_len=3, fill=fill))
        row = (scores.float() + bias).softmax(dim=-1)[0, 0, 1]
        assert torch.allclose(row, torch.full((3,), right), atol=1e-6, equal_nan=True)
