"""Text, JSON, equality, binding, and what biases refuse."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, note

import maskwright as mw
from maskwright import Frame
from tests._helpers.bias_strategies import cases

if TYPE_CHECKING:
    from maskwright.bias import Bias

TABLE = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]  # (buckets, heads)


@given(cases())
def test_text_json_and_copies_give_an_equal_bias(case: tuple[Bias, Frame]) -> None:
    bias, frame = case
    note(repr(bias))
    if 0 not in (frame.q_len, frame.kv_len):  # the text of an empty array has no shape
        for made in (mw.bias.parse(repr(bias)), mw.bias.from_json(mw.bias.to_json(bias))):
            assert made == bias
            assert hash(made) == hash(bias)
            assert repr(made) == repr(bias)
    for made in (pickle.loads(pickle.dumps(bias)), copy.deepcopy(bias)):
        assert made == bias
        assert np.array_equal(made.dense(frame), bias.dense(frame))


def test_equality() -> None:
    a, b = mw.bias.alibi(2), mw.bias.per_key([1.0, 2.0])
    assert a + b == b + a
    assert hash(a + b) == hash(b + a)
    assert a + a != a
    assert mw.bias.tensor(np.float32([0.5])) == mw.bias.tensor([0.5])
    assert mw.bias.per_key([1.0, 3.0]) != b
    assert mw.bias.alibi(2) != mw.bias.alibi(2, variant="geometric")
    assert mw.bias.alibi(12, variant="mpt") == mw.bias.alibi(12)
    assert len({mw.bias.tensor([0.0]), mw.bias.tensor([-0.0])}) == 1


def test_tensors_are_compared_by_identity_because_training_changes_them() -> None:
    table = torch.zeros(4, 2)
    assert mw.bias.t5(table) == mw.bias.t5(table)
    assert mw.bias.t5(table) != mw.bias.t5(table.clone())
    assert hash(mw.bias.t5(table)) == hash(mw.bias.t5(table))


def test_tensors_are_shared_and_arrays_are_copied() -> None:
    table, array = torch.zeros(1, 3), np.zeros((1, 3))
    shared, copied = mw.bias.relative(table), mw.bias.relative(array)
    table += 1
    array += 1
    assert shared.on(2).dense().tolist() == [[[[1.0, 1.0], [1.0, 1.0]]]]
    assert not copied.on(2).dense().any()
    assert shared.tensors[0] is table


def test_sum_of_a_list() -> None:
    parts = [mw.bias.alibi(2), mw.bias.per_key([1.0]), mw.bias.tensor(2.0)]
    assert sum(parts) == parts[0] + parts[1] + parts[2]


def test_arrays_are_converted_to_the_dtype_of_tensors_in_a_sum() -> None:
    table = torch.zeros(4, 2, dtype=torch.float32, requires_grad=True)
    bias = mw.bias.t5(table) + mw.bias.alibi(2) + mw.bias.per_key([1.0, 2.0, 3.0])
    dense = bias.on(3).dense()
    assert dense.dtype == torch.float32
    assert dense.requires_grad


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_values_that_are_not_finite_are_refused_with_a_pointer_to_masks(bad, kind) -> None:  # type: ignore[no-untyped-def]
    for make in (
        lambda: mw.bias.tensor(kind([0.0, bad])),
        lambda: mw.bias.per_key(kind([bad])),
        lambda: mw.bias.relative(kind([[0.0, bad, 0.0]])),
        lambda: mw.bias.alibi(kind([bad])),
        lambda: mw.bias.t5(kind([[bad]] * 4)),
        lambda: mw.bias.grid(kind([[bad]]), 1, 1),
    ):
        with pytest.raises(mw.ArgumentError, match="mask") as error:
            make()
        assert str(bad) in str(error.value)
    with pytest.raises(mw.ArgumentError, match="mask"):
        bad * mw.bias.alibi(2)


def test_tensor_that_becomes_infinite_is_refused_when_it_is_used() -> None:
    table = torch.zeros(1, 3)
    bias = mw.bias.relative(table)
    bias.on(2).dense()
    table[0, 1] = float("nan")
    with pytest.raises(mw.ArgumentError, match="nan"):
        bias.on(2).dense()


def test_inference_tensors_are_checked_too() -> None:
    with torch.inference_mode():
        table = torch.zeros(1, 3)
        bias = mw.bias.relative(table)
        table[0, 0] = float("inf")
        with pytest.raises(mw.ArgumentError, match="inf"):
            bias.on(2).dense()


@pytest.mark.parametrize(
    "make",
    [
        lambda: mw.bias.alibi(0),
        lambda: mw.bias.alibi(True),
        lambda: mw.bias.alibi(10**9),
        lambda: mw.bias.alibi([[0.5]]),
        lambda: mw.bias.alibi([]),
        lambda: mw.bias.alibi(8, variant="flash"),
        lambda: mw.bias.alibi(8, max_bias=0),
        lambda: mw.bias.alibi([0.5], max_bias=4),
        lambda: mw.bias.t5([[1.0]] * 3),
        lambda: mw.bias.t5([1.0, 2.0, 3.0, 4.0]),
        lambda: mw.bias.t5(TABLE, bidirectional=1),
        lambda: mw.bias.t5([[0.0]] * 32, max_distance=8),
        lambda: mw.bias.relative([[1.0, 2.0]]),
        lambda: mw.bias.relative([1.0]),
        lambda: mw.bias.grid(TABLE, 2, 2),
        lambda: mw.bias.grid([[0.0]], 0, 1),
        lambda: mw.bias.per_key(1.0),
        lambda: mw.bias.per_key([[True]]),
        lambda: mw.bias.tensor(np.zeros((1,) * 5)),
        lambda: mw.bias.tensor(["a"]),
        lambda: mw.bias.tensor(torch.tensor([1])),
        lambda: mw.bias.alibi(2) + 1,
        lambda: 1 + mw.bias.alibi(2),
        lambda: np.zeros(2) + mw.bias.alibi(2),
        lambda: torch.zeros(2) + mw.bias.alibi(2),
        lambda: mw.bias.alibi(2) - [1.0],
        lambda: np.ones(2) * mw.bias.alibi(2),
        lambda: mw.bias.alibi(2) * True,
        lambda: mw.bias.alibi(2) / 0,
        lambda: np.asarray(mw.bias.alibi(2)),
    ],
)
def test_invalid_arguments_are_refused(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(mw.ArgumentError):
        make()


@pytest.mark.parametrize(
    ("bias", "sizes"),
    [
        (mw.bias.alibi(3), {"q_len": 2, "heads": 2}),
        (mw.bias.per_key([1.0, 2.0]), {"q_len": 3}),
        (mw.bias.per_key(np.zeros((2, 3))), {"q_len": 3, "batch": 3}),
        (mw.bias.tensor(np.zeros((2, 1))), {"q_len": 3}),
        (mw.bias.tensor(np.zeros((1, 2))), {"q_len": 3}),
        (mw.bias.tensor(np.zeros((2, 1, 1, 1))), {"q_len": 3, "batch": 3}),
        (mw.bias.grid([[0.0]] * 9, 2, 2), {"q_len": 5}),
        (mw.bias.grid([[0.0]] * 9, 2, 2), {"q_len": 2, "kv_len": 2, "q_start": 3}),
        (mw.bias.grid([[0.0]] * 9, 2, 2), {"q_len": 2, "kv_len": 2, "q_start": -1}),
    ],
)
def test_values_that_do_not_fit_are_refused(bias: Bias, sizes: dict[str, int]) -> None:
    with pytest.raises(mw.FrameError):
        bias.on(**sizes)
    frame = mw.everything().on(**sizes).frame
    with pytest.raises(mw.FrameError):
        bias.lower(frame)


def test_terms_of_a_sum_must_agree_on_heads() -> None:
    with pytest.raises(mw.FrameError):
        mw.bias.alibi(2) + mw.bias.alibi(3)


def test_no_boolean_value() -> None:
    with pytest.raises(mw.TruthError):
        bool(mw.bias.alibi(2))


def test_dense_of_a_huge_frame_is_refused() -> None:
    with pytest.raises(mw.SizeError):
        mw.bias.alibi(8).on(100_000).dense()
    (term,) = mw.bias.alibi(8).on(100_000).lower()
    assert term.values.shape == (8, 199_999)


@pytest.mark.parametrize(
    "text",
    [
        "", "alibi", "alibi(8) +", "alibi(8) + 1", "alibi(8) * alibi(8)", "albi(8)", "alibi(n=8)",
        "alibi(8, 8, 8, 8)", "alibi(**{})", "__import__('os')", "alibi(8).on(4)", "1 / alibi(8)",
        "alibi(8) / 0", "alibi(8, slopes=8)", "tensor([0.0, 1e999])", "tensor([None])",
        "alibi(8) & alibi(8)", "tensor(" + "[" * 200 + "]" * 200 + ")",
        " + ".join(["alibi(8)"] * 2000), "tensor([" + "0," * 150_000 + "])",
        "tensor([[1, 2], [3]])", "per_key([0 for x in range(9)])", "tensor(True)",
    ],
)  # fmt: skip
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(mw.MaskError):
        mw.bias.parse(text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("alibi(8) + albi(4)", "albi"),
        ("alibi(8) + 1", "1"),
        ("1 / alibi(8)", "1"),
        ("2 * alibi(8) * True", "True"),
        ("alibi(8) / 0 - alibi(8)", "alibi(8) / 0"),
        ("-tensor(2) * 1e999", "1e999"),
    ],
)
def test_error_has_the_position_of_the_part_at_fault(text: str, fault: str) -> None:
    with pytest.raises(mw.MaskError) as error:
        mw.bias.parse(text)
    assert error.value.at is not None
    assert text[slice(*error.value.at)] == fault


def test_long_lists_of_numbers_are_parsed() -> None:
    values = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    assert mw.bias.parse(repr(mw.bias.per_key(values))) == mw.bias.per_key(values)


@pytest.mark.parametrize(
    "document",
    [
        [], {"maskwright": 1}, {"maskwright": 2, "bias": {"atom": "alibi", "slopes": 8}},
        {"maskwright": True, "bias": {"atom": "alibi", "slopes": 8}},
        {"maskwright": 1, "mask": {"atom": "causal"}}, {"maskwright": 1, "bias": []},
        {"maskwright": 1, "bias": {"atom": "causal"}}, {"maskwright": 1, "bias": {"sum": []}},
        {"maskwright": 1, "bias": {"multiple": [1]}},
        {"maskwright": 1, "bias": {"multiple": ["a", {"atom": "alibi", "slopes": 8}]}},
        {"maskwright": 1, "bias": {"atom": "alibi", "slopes": float("inf")}},
        {"maskwright": 1, "bias": {"atom": "tensor", "values": [float("nan")]}},
        {"maskwright": 1, "bias": {"atom": "alibi"}},
        {"maskwright": 1, "bias": {"atom": "tensor", "values": {"range": [0, 10**12, 1]}}},
    ],
)  # fmt: skip
def test_other_json_is_refused(document: object) -> None:
    with pytest.raises(mw.MaskError):
        mw.bias.from_json(json.dumps(document))


def test_deep_json_is_refused() -> None:
    text = '{"multiple": [1, ' * 400 + '{"atom": "alibi", "slopes": 1}' + "]}" * 400
    with pytest.raises(mw.TextError):
        mw.bias.from_json('{"maskwright": 1, "bias": ' + text + "}")
    with pytest.raises(mw.TextError):
        mw.bias.from_json("[" * 100_000)


def test_import_loads_no_framework() -> None:
    code = (
        "import sys, maskwright as mw; mw.bias.alibi(8).on(4).dense(); "
        "assert not {'torch', 'jax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
