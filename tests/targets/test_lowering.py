"""`lower` returns exactly this mask, or refuses one that the target cannot represent.

What comes out is read by an independent reader and run by the real framework; what is refused is
put before an independent decider.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import event, given, note, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright import BoundMask, Frame, Mask
from maskwright.core.atoms.array import Where
from maskwright.core.expr import walk
from maskwright.core.oracle import truth
from maskwright.targets.lower import TARGETS
from tests._helpers import representable, transformers_reader
from tests._helpers.strategies import bind
from tests._helpers.target_readers import READERS, transformer
from tests._helpers.target_runners import RUNNERS, transformer_is_right
from tests._helpers.target_runners import transformer as run_transformer
from tests._helpers.target_strategies import encoder_decoder, for_target
from tests.conftest import TARGET_CASES

SINGLE = sorted(set(READERS) - {"torch.transformer"})
SLOW = ("jax", "jax.splash", "torch.flex", "torch.mha", "torch.transformer")
RESTRICTED = ("flash.varlen", "flashmask", "jax", "jax.splash", "keras", "magi", "flashinfer", "hf")


def cells(mask: Mask, frame: Frame) -> np.ndarray:
    shape = (frame.batch, frame.heads, frame.q_len, frame.kv_len)
    return np.array(truth(mask, frame), np.bool_).reshape(shape)


def share(target: str) -> int:
    """How many of all cases a target gets: those that compile or have many modes get half."""
    parts = 2 * (len(SINGLE) + 2) - len(SLOW)
    return -(-TARGET_CASES * (1 if target in SLOW else 2) // parts)


def test_every_target_is_tested() -> None:
    assert {*SINGLE, "hf", "torch.transformer", "tensorflow"} == set(TARGETS)


@pytest.mark.parametrize("target", SINGLE)
def test_exactly_this_mask_or_real_refusal(target: str) -> None:
    @settings(max_examples=share(target))
    @given(for_target(target))
    def check(case: tuple[Mask, Frame]) -> None:
        check_one(target, *case)

    check()


def check_one(target: str, mask: Mask, frame: Frame) -> None:
    note(f"{mask!r}\n{frame}")
    right = cells(mask, frame)
    can_represent = representable.CAN_REPRESENT.get(target, representable.always)(right)
    try:
        given_form = mw.lower(bind(mask, frame), target)
    except mw.Unsupported as refusal:
        event("refused")
        assert not can_represent, "it could have been represented"
        check_refusal(refusal, target, mask)
        return
    event("lowered")
    assert can_represent, "it cannot be represented"
    assert np.array_equal(READERS[target](given_form, right.shape), right)
    if target in RUNNERS:
        RUNNERS[target](given_form, right)


def test_query_that_attends_beyond_last_of_segment_is_not_window() -> None:
    mask = mw.dense([[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 0, 0]])
    with pytest.raises(mw.Unsupported, match="attends to keys after those of its segment"):
        mw.lower(mask, "flash.varlen")
    given_form = mw.lower(mask, "xformers")
    assert np.array_equal(READERS["xformers"](given_form, (1, 1, 4, 4)), mask.on(4).dense())


@settings(max_examples=share("hf"))
@given(
    case=for_target("hf"),
    kind=st.sampled_from(["decoder", "encoder"]),
    packed=st.sampled_from(["mask", "positions"]),
)
def test_transformers_makes_exactly_this_mask(
    case: tuple[Mask, Frame], kind: str, packed: str
) -> None:
    mask, frame = case
    note(f"{mask!r}\n{frame}")
    right = cells(mask, frame)
    try:
        given_form = mw.lower(bind(mask, frame), "hf", model=kind, packed=packed)
    except mw.Unsupported as refusal:
        assert not representable.hf(right, frame.q_start), "it could have been represented"
        check_refusal(refusal, "hf", mask)
        return
    assert representable.hf(right, frame.q_start), "it cannot be represented"
    event("4-D" if getattr(given_form["attention_mask"], "ndim", 2) == 4 else "2-D")
    for implementation in ("eager", "sdpa"):
        made = transformers_reader.read(given_form, right.shape, kind, implementation)
        # The output of a fully masked row is not used: no query attends to its token.
        rows = right.any(axis=3, keepdims=True)
        assert np.array_equal(made & rows, right)


@settings(max_examples=share("torch.transformer"))
@given(parts=encoder_decoder(), dtype=st.sampled_from([None, torch.float64]))
def test_transformer_sees_exactly_these_masks(parts: Any, dtype: Any) -> None:
    note("\n".join(f"{mask!r}\n{frame}" for mask, frame in parts))
    right = [cells(mask, frame) for mask, frame in parts]
    bound: Any = tuple(bind(mask, frame) for mask, frame in parts)
    try:
        given_form = mw.lower(bound, "torch.transformer", dtype=dtype)
    except mw.Unsupported as refusal:
        event("refused")
        if all(part.size for part in right):
            assert not some_form_serves_the_encoder(right), "it could have been represented"
        check_refusal(refusal, "torch.transformer", *(mask for mask, _ in parts))
        return
    event("lowered")
    for found, truly in zip(
        transformer(given_form, tuple(part.shape for part in right)), right, strict=True
    ):
        assert np.array_equal(found, truly)
    run_transformer(given_form, right, dtype)


def some_form_serves_the_encoder(right: list[np.ndarray]) -> bool:
    """Is there a way to give nn.Transformer these masks that is right in every mode?"""
    doubled = [np.concatenate([part, part], axis=1) for part in right]
    names = ("src_mask", "tgt_mask", "memory_mask")
    full = {
        name: torch.from_numpy(np.where(part, 0.0, -np.inf)).flatten(0, 1)
        for name, part in zip(names, doubled, strict=True)
    }
    forms = [full, {**full, "src_mask": full["src_mask"] != 0}]
    common, keys = doubled[0].any(axis=(0, 1)), doubled[0].any(axis=(1, 2))
    if np.array_equal(common & keys[:, None, None], doubled[0]):
        hidden = torch.from_numpy(~keys)
        forms.append(
            {**full, "src_mask": torch.from_numpy(~common), "src_key_padding_mask": hidden}
        )
        if np.array_equal(np.broadcast_to(keys[:, None, None], doubled[0].shape), doubled[0]):
            forms.append({**full, "src_mask": None, "src_key_padding_mask": hidden})
    return any(transformer_is_right(form, doubled, torch.float64) for form in forms)


def check_refusal(refusal: mw.Unsupported, target: str, *whole: Mask) -> None:
    """It names the target, and a part of the expression in source that can be read again."""
    assert refusal.target == target
    parts = [part for mask in whole for part in walk(mask)]
    named = [part for part in parts if repr(part) == refusal.term]
    assert named, f"{refusal.term!r} is no part of the mask"
    if not any(isinstance(part, Where) for part in walk(named[0])):
        assert mw.parse(refusal.term) == named[0]
    assert str(refusal).startswith(target)
    assert str(refusal).endswith(".")


@pytest.mark.parametrize("target", RESTRICTED)
def test_restricted_targets_get_masks_that_they_support_and_others(
    target: str,
) -> None:
    counts: Counter[str] = Counter()

    @settings(max_examples=300, derandomize=True, database=None)
    @given(for_target(target))
    def draw(case: tuple[Mask, Frame]) -> None:
        bound: BoundMask = bind(*case)
        try:
            mw.lower(bound, target)
        except mw.Unsupported:
            counts["refused"] += 1
        else:
            counts["lowered"] += 1

    draw()
    assert min(counts["lowered"], counts["refused"]) >= 4, counts
