"""Options and sizes of `lower`, and invalid ones."""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.targets.lower import TARGETS as REGISTRY

TARGETS = [name for name in REGISTRY if name not in ("tensorflow", "torch.transformer")]
ON_TORCH = {
    "torch.bool", "torch.additive", "torch.sdpa", "torch.mha", "torch.flex", "hf",
    "flash.varlen", "cudnn", "magi", "flashinfer",
}  # fmt: skip


def tensors_in(given: Any) -> list[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        return [given]
    if isinstance(given, dict):
        return [x for value in given.values() for x in tensors_in(value)]
    if hasattr(given, "kv_indices"):
        return [given.kv_indices, given.kv_num_blocks, given.full_kv_indices]
    return []


@pytest.mark.parametrize("target", sorted(ON_TORCH))
@pytest.mark.parametrize("device", ["meta", "cpu", torch.device("cpu")])
def test_device_option(target: str, device: Any) -> None:
    given = mw.lower(mw.window(1, 1), target, q_len=4, device=device)
    found = tensors_in(given)
    assert found
    assert {x.device.type for x in found} == {torch.device(device).type}


@pytest.mark.parametrize("target", sorted(ON_TORCH))
def test_device_that_is_none_is_rejected(target: str) -> None:
    with pytest.raises(mw.ArgumentError, match="device='disc' is not a torch device"):
        mw.lower(mw.window(1, 1), target, q_len=4, device="disc")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, "float16"])
@pytest.mark.parametrize("target", ["torch.additive", "torch.sdpa", "torch.mha", "hf", "xformers"])
def test_float_masks_of_dtype_mask_same_cells(target: str, dtype: Any) -> None:
    mask = mw.window(back=1, ahead=1) & ~mw.keys([2]) | mw.keys([0])
    given = mw.lower(mask, target, q_len=6, dtype=dtype)
    (bias,) = tensors_in(given)
    kind = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    assert bias.dtype == kind
    hides = torch.finfo(kind).min if target == "hf" else float("-inf")
    right = torch.from_numpy(mask.on(6).dense()).reshape(bias.shape)
    assert torch.equal(bias == 0, right)
    assert torch.equal(bias == hides, ~right)


@pytest.mark.parametrize("target", ["additive", "torch.additive"])
def test_fills(target: str) -> None:
    def bias(**options: Any) -> np.ndarray:
        return np.asarray(mw.lower(mw.causal(), target, q_len=2, **options), np.float64)

    values = {"-inf": -np.inf, -np.inf: -np.inf, -1e9: -1e9, None: -np.inf, np.int64(-9999): -9999}
    for fill, value in values.items():
        assert bias(fill=fill, dtype="float64").tolist() == [[[[0, value], [0, 0]]]]
    for dtype in ("float16", "float32"):
        assert bias(fill="min", dtype=dtype)[0, 0, 0, 1] == float(np.finfo(dtype).min)


@pytest.mark.parametrize("target", TARGETS)
def test_unknown_option_is_rejected_everywhere(target: str) -> None:
    with pytest.raises(mw.ArgumentError, match=f"lower: {target} has no option colour"):
        mw.lower(mw.causal(), target, q_len=4, colour="red")


@pytest.mark.parametrize("target", TARGETS)
def test_option_empty_rows(target: str) -> None:
    """ "native" accepts fully masked rows, "error" refuses them, "zero" returns zero or refuses."""
    empty_first = mw.causal().on(6, kv_len=4)  # the first two queries come before all keys
    mw.lower(empty_first, target, empty_rows="native")
    mw.lower(mw.causal(), target, q_len=4, empty_rows="error")
    with pytest.raises(mw.Unsupported, match="empty_rows='error' forbids that") as caught:
        mw.lower(empty_first, target, empty_rows="error")
    assert caught.value.target == target
    with pytest.raises(mw.ArgumentError, match="empty_rows"):
        mw.lower(mw.causal(), target, q_len=4, empty_rows="maybe")
    if target in ("torch.sdpa", "torch.mha", "torch.flex", "flash.varlen", "onnx"):
        mw.lower(empty_first, target, empty_rows="zero")
    else:
        with pytest.raises(mw.Unsupported, match="does not return zero for a fully masked row"):
            mw.lower(empty_first, target, empty_rows="zero")
        assert caught.value.term == "causal()"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("torch.sdap", "Did you mean 'torch.sdpa'?"),
        ("sdpa", "Did you mean 'torch.sdpa'?"),
        ("nothing like it", "Pass one of numpy"),
        (7, ""),
    ],
)
def test_unknown_target_is_rejected_with_near_one(name: Any, hint: str) -> None:
    for ask in (mw.lower, mw.explain_lowering):
        with pytest.raises(mw.ArgumentError, match="there is no target") as caught:
            ask(mw.causal(), name, q_len=4)
        assert hint in str(caught.value)


@pytest.mark.parametrize("target", [name for name in REGISTRY if mw.capabilities()[name].requires])
def test_framework_missing_is_named_with_extra(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = mw.capabilities()[target].requires
    for name in [name for name in sys.modules if name == needs or name.startswith(f"{needs}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, needs, None)
    mask: Any = mw.window(1, 1)
    mask = (mask, mask, mask) if target == "torch.transformer" else mask
    with pytest.raises(mw.MissingError, match=re.escape(f"pip install 'maskwright[{needs}]'")):
        mw.lower(mask, target, q_len=4, kv_len=4)


def test_bound_mask_has_sizes() -> None:
    bound = mw.causal().on(4)
    assert mw.lower(bound, "numpy").shape == (1, 1, 4, 4)
    for size in ({"q_len": 4}, {"kv_len": 4}, {"batch": 1}, {"heads": 1}, {"q_start": 0}):
        with pytest.raises(mw.ArgumentError, match="already bound"):
            mw.lower(bound, "numpy", **size)


def test_sizes_come_from_masks_data() -> None:
    mask = mw.causal() & mw.padding(lengths=[2, 3])
    assert mw.lower(mask, "numpy").shape == (2, 1, 3, 3)
    assert mw.lower(mask, "numpy", kv_len=5).shape == (2, 1, 5, 5)
    assert mw.lower(mw.dense(np.ones((2, 5), np.bool_)), "numpy").shape == (1, 1, 2, 5)
    with pytest.raises(mw.ArgumentError, match=r"does not imply a length\. Pass q_len"):
        mw.lower(mw.causal(), "numpy")


@pytest.mark.parametrize("thing", [np.ones((2, 2)), "causal()", None, 3])
def test_only_masks_are_lowered(thing: Any) -> None:
    with pytest.raises(mw.ArgumentError, match=r"Wrap an array in dense\(...\)"):
        mw.lower(thing, "numpy", q_len=2)


def test_three_masks_are_for_transformer_and_only_for_it() -> None:
    three = (mw.padding(lengths=[2, 3]), mw.causal(), mw.padding(lengths=[2, 3]))
    given = mw.lower(three, "torch.transformer", q_len=4, kv_len=3)
    assert given["src_key_padding_mask"].shape == (2, 3)
    assert given["memory_key_padding_mask"].shape == (2, 3)
    assert given["tgt_mask"].shape == (4, 4)
    for wrong in (mw.causal(), three[:2], (*three, mw.causal())):
        with pytest.raises(mw.ArgumentError, match="takes three masks"):
            mw.lower(wrong, "torch.transformer", q_len=4)
    with pytest.raises(mw.ArgumentError, match="numpy takes one mask, got 3"):
        mw.lower(three, "numpy", q_len=4)


def test_one_of_three_masks_implies_batch_size_of_all() -> None:
    three = (mw.everything(), mw.causal(), mw.padding(lengths=[2, 3]))
    given = mw.lower(three, "torch.transformer", q_len=4, kv_len=3)
    assert given["memory_key_padding_mask"].tolist() == [[False, False, True], [False] * 3]
    assert given["src_mask"] is None


def test_part_of_bound_mask_is_lowered_as_it_stands() -> None:
    part = (mw.causal() & mw.padding(lengths=[5, 8])).on(8).rows(4, 7, kv_len=7)
    for target in ("numpy", "torch.sdpa", "torch.flex", "cudnn", "jax", "onnx"):
        mw.lower(part, target)
    assert np.array_equal(mw.lower(part, "numpy"), part.dense())


def test_heads_with_equal_masks_share_one_mask() -> None:
    """Also without tokens, where nn.MultiheadAttention takes no mask of (B·H, T, S)."""
    for size in (0, 4):
        given = mw.lower(mw.by_head([mw.causal()] * 2), "torch.mha", q_len=size, dtype="float32")
        assert given["attn_mask"] is None or given["attn_mask"].shape == (size, size)
        assert size == 0 or given["attn_mask"] is not None


BAD_ADDITIVE = [
    ({"fill": -1e9, "dtype": "float16"}, "fill=-1e+09"),
    ({"fill": -5}, "fill=-5"),
    ({"fill": 0}, "fill=0"),
    ({"fill": float("nan")}, "fill is nan"),
    ({"fill": "max"}, "fill is 'max'"),
    ({"fill": True}, "fill is"),
    ({"fill": np.array([-1e4, -1e5])}, "fill is of type ndarray"),
    ({"fill": -(10**400)}, "does not fit float32"),
    ({"dtype": "int32"}, "int32"),
    ({"dtype": "float31"}, "float31"),
    ({"dtype": 3.0}, "dtype is"),
    ({"empty_rows": "uniform"}, "empty_rows"),
]
BAD_OPTIONS = [
    *((target, *case) for target in ("additive", "torch.additive") for case in BAD_ADDITIVE),
    ("torch.sdpa", {"dtype": "nope"}, "dtype is nope"),
    ("torch.sdpa", {"device": "nope"}, "device='nope'"),
    ("torch.bool", {"device": "cuda:7"}, "device='cuda:7'"),
    ("torch.additive", {"dtype": "float8_e4m3fn"}, "dtype is float8_e4m3fn"),
    ("jax", {"device": "nope"}, "jax device"),
    ("jax", {"device": 3}, "jax device"),
    ("torch.flex", {"block_size": (2,)}, "block_size"),
    ("hf", {"packed": "no"}, "packed is 'no'"),
    ("hf", {"first_position": -1}, "first_position=-1"),
]


@pytest.mark.parametrize(("target", "options", "part"), BAD_OPTIONS)
def test_invalid_option(target: str, options: dict[str, Any], part: str) -> None:
    """Also where the mask would need no tensor, so that a typo shows at once."""
    with pytest.raises(mw.ArgumentError, match=re.escape(part)):
        mw.lower(mw.causal(), target, q_len=4, **options)


@pytest.mark.parametrize(
    ("mask", "target", "sizes"),
    [
        (mw.causal() | mw.prefix(5), "jax.splash", {"q_len": 131_072}),
        (mw.window(3) | (mw.queries([0]) & mw.stride(2)), "cudnn", {"q_len": 65_536}),
        (mw.causal() | mw.prefix(5), "hf", {"q_len": 8_192, "batch": 64}),
        (mw.causal() | mw.prefix(5), "xformers", {"q_len": 8_192, "batch": 8, "heads": 8}),
        (mw.by_head([mw.causal(), mw.window(3)] * 8), "torch.mha", {"q_len": 4_096, "batch": 64}),
        (mw.causal() & mw.keys(range(0, 2000, 50)), "torch.flex", {"q_len": 131_072}),
        (mw.stride(2), "torch.flex", {"q_len": 131_072}),
        (mw.causal(), "torch.flex", {"q_len": 2**20, "block_size": 16}),
        (mw.causal(), "torch.flex", {"q_len": 5, "block_size": 2**31}),
    ],
)
def test_too_large_masks_are_rejected_early(
    mask: mw.Mask, target: str, sizes: dict[str, int]
) -> None:
    with pytest.raises(mw.SizeError, match=r"need .* GB"):
        mw.lower(mask, target, **sizes)


def test_large_mask_is_rejected_after_look_at_some_rows() -> None:
    with pytest.raises(mw.Unsupported, match="stride"):
        mw.lower(mw.causal() & mw.stride(2), "flash.varlen", q_len=131_072)


def test_no_head_at_all() -> None:
    differ = mw.where(lambda b, h, q, k: (q >= k) & (h >= 0))
    for target in ("flash.varlen", "magi", "flashinfer", "jax.splash"):
        with pytest.raises(mw.Unsupported):
            mw.lower(differ, target, q_len=3, heads=0)


def test_masks_of_transformer_belong_together() -> None:
    bound = (mw.causal().on(4), mw.causal().on(3), mw.everything().on(7, 9))
    with pytest.raises(mw.FrameError, match="4 × 4, 3 × 3 and 7 × 9"):
        mw.lower(bound, "torch.transformer")


@pytest.mark.parametrize(
    ("alias", "name"), [("intervals", "cudnn"), ("slices", "magi"), ("transformers", "hf")]
)
def test_aliases(alias: str, name: str) -> None:
    mask = mw.window(1, 1).on(4)
    assert mw.explain_lowering(mask, alias) == mw.explain_lowering(mask, name)
    assert alias not in mw.capabilities()
