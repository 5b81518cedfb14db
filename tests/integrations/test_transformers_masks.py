"""What transformers says about a mask, and what was read of it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import masking_utils as hf

import maskwright as mw
from maskwright.core import mask_registry
from maskwright.core.atoms.array import Where
from maskwright.core.expr import walk
from maskwright.errors import Unsupported
from maskwright.integrations import transformers_masks
from maskwright.integrations.transformers_graph import bind_mask
from maskwright.integrations.transformers_indices import read_formula
from maskwright.integrations.transformers_masks import mask_for_layers
from maskwright.integrations.transformers_packing import ORIGIN
from maskwright.integrations.transformers_tensor import MaskTensor


def truth(**given: Any) -> torch.Tensor:
    cells: torch.Tensor = hf.sdpa_mask(**given, allow_is_causal_skip=False)
    return cells


def is_asked(mask: MaskTensor) -> bool:
    """Was the mask read cell by cell?"""
    return any(isinstance(part, Where) for part in walk(mask.content.mask))


def own(b: Any, h: Any, q: Any, k: Any) -> Any:
    """A function that nobody knows."""
    return (q * 3 + k) % 4 != 1


SAMPLE_IDS = torch.tensor([[0, 0, 1, 1, 1, -1, -1, 2, 2, 2], [3, 3, 3, 3, 0, 0, 3, 3, 3, -2]])


@pytest.mark.parametrize(
    "function",
    [
        hf.causal_mask_function,
        hf.bidirectional_mask_function,
        hf.sliding_window_overlay(3),
        hf.sliding_window_bidirectional_overlay(0),
        hf.chunked_overlay(3, torch.tensor([2, 5])),
        hf.padding_mask_function(SAMPLE_IDS > 0),
        hf.packed_sequence_mask_function(SAMPLE_IDS),
        hf.blockwise_overlay(SAMPLE_IDS),
        hf.and_masks(hf.causal_mask_function, hf.sliding_window_overlay(3)),
        hf.or_masks(hf.causal_mask_function, hf.sliding_window_overlay(3)),
    ],
)
@pytest.mark.parametrize("sizes", [(4, 8, 4, 0), (8, 8, 0, 0), (3, 7, 4, 2), (1, 5, 9, 5)])
def test_functions_of_transformers_become_expressions(
    function: Any, sizes: tuple[int, int, int, int]
) -> None:
    q_length, kv_length, q_offset, kv_offset = sizes
    given = {"batch_size": 2, "q_length": q_length, "kv_length": kv_length}
    given |= {"q_offset": q_offset, "kv_offset": kv_offset, "mask_function": function}
    mask = mask_for_layers(**given)
    assert not is_asked(mask)
    assert torch.equal(mask.cells(), truth(**given))


def test_incompatible_release() -> None:
    """A function of the same name with another formula is read as that formula."""

    def sliding_window_overlay(sliding_window: int) -> Any:
        def inner_mask(b: Any, h: Any, q: Any, k: Any) -> Any:
            return k >= q - sliding_window

        return inner_mask

    function = sliding_window_overlay(3)
    given = {"batch_size": 1, "q_length": 9, "kv_length": 9, "mask_function": function}
    mask = mask_for_layers(**given)
    assert is_asked(mask)
    assert torch.equal(mask.cells(), truth(**given))


@pytest.mark.parametrize(
    "function",
    [
        lambda b, h, q, k: SAMPLE_IDS[b, k].to(torch.bool) & (k <= q),
        lambda b, h, q, k: q.to(torch.int8) * 50 > k,
        lambda b, h, q, k: q.new_ones((), dtype=torch.int64) + q > k,
        lambda b, h, q, k: SAMPLE_IDS.bfloat16()[b, k] <= q,
        lambda b, h, q, k: torch.where(k > q, q > 2, k < 3),
    ],
)
def test_function_of_values_is_evaluated(function: Any) -> None:
    given = {"batch_size": 2, "q_length": 9, "kv_length": 9, "mask_function": function}
    assert torch.equal(mask_for_layers(**given).cells(), truth(**given))


def random_function(rng: random.Random, batch: int, tokens: int, depth: int = 0) -> Any:
    """Any composition of what transformers has and of a user's own."""
    ids = torch.tensor([[rng.randint(-2, 3) for _ in range(tokens)] for _ in range(batch)])
    kind = rng.randrange(9 if depth > 2 else 13)
    if kind == 0:
        return hf.causal_mask_function
    if kind == 1:
        return hf.bidirectional_mask_function
    if kind == 2:
        return hf.sliding_window_overlay(rng.randint(0, 6))
    if kind == 3:
        return hf.sliding_window_bidirectional_overlay(rng.randint(0, 4))
    if kind == 4:
        left = torch.tensor([rng.randint(0, 4) for _ in range(batch)])
        return hf.chunked_overlay(rng.randint(1, 5), left)
    if kind == 5:
        return hf.padding_mask_function(ids > -1)
    if kind == 6:
        return hf.packed_sequence_mask_function(ids.sort().values)
    if kind == 7:
        return hf.blockwise_overlay(ids)
    if kind == 8:
        return own
    combine = hf.and_masks if kind < 11 else hf.or_masks
    count = rng.randint(1, 3)
    return combine(*(random_function(rng, batch, tokens, depth + 1) for _ in range(count)))


@pytest.mark.parametrize("seed", range(150))
def test_every_function_is_read_exactly(seed: int) -> None:
    rng = random.Random(seed)
    batch, kv, shift = rng.randint(1, 3), rng.randint(1, 12), rng.choice([0, 0, 1, 5])
    q = rng.randint(1, kv)
    start = shift + rng.randint(0, kv - q)
    tokens = shift + kv + 1
    attention_mask = None
    if rng.random() < 0.5:
        width = rng.randint(start + q, tokens)  # unwritten slots of a static cache are missing
        attention_mask = torch.tensor([[rng.random() < 0.7 for _ in range(width)]] * batch)
    given = {
        "batch_size": batch,
        "q_length": q,
        "kv_length": kv,
        "q_offset": rng.choice([start, torch.tensor(start)]),
        "kv_offset": shift,
        "mask_function": random_function(rng, batch, tokens),
        "attention_mask": attention_mask,
        "use_vmap": rng.random() < 0.3,
    }
    mask = mask_for_layers(**given, config=None, dtype=torch.float32, local_size=3)
    assert mask.shape == (batch, 1, q, kv)
    is_step = q == 1 and isinstance(given["q_offset"], torch.Tensor)  # which may be compiled
    assert isinstance(mask, MaskTensor) != is_step
    assert torch.equal(mask if is_step else mask.cells(), truth(**given))
    if not given["use_vmap"]:
        assert torch.equal(formula_cells(**given), truth(**given))


def formula_cells(**given: Any) -> torch.Tensor:
    """The mask of the formula of a function, as the operator `maskwright::bind_mask` binds it."""
    function = transformers_masks._with_padding(
        given["mask_function"], given["attention_mask"], given["kv_length"], given["kv_offset"]
    )
    formula, data = read_formula(function)
    sizes = [given[name] for name in ("batch_size", "q_length", "kv_length")]
    start, shift = given["q_offset"], given["kv_offset"]
    offset = torch.as_tensor(start)
    handle = bind_mask([*data, torch.empty(0)], offset, formula, [*sizes, 0, shift])
    bound = mask_registry.lookup(int(handle))
    cells = torch.from_numpy(bound.dense())
    return cells.expand(given["batch_size"], -1, -1, -1)


@pytest.mark.parametrize(
    "function",
    [
        own,
        lambda b, h, q, k: ~((q < k) | (k >= 3)),
        lambda b, h, q, k: (q + 2 > k) & (k != torch.tensor(3)),
    ],
)
def test_formula_of_any_function(function: Any) -> None:
    given = {"batch_size": 2, "q_length": 4, "kv_length": 7, "q_offset": 5, "kv_offset": 2}
    given |= {"mask_function": function, "attention_mask": None}
    assert torch.equal(formula_cells(**given), truth(**given))


@pytest.mark.parametrize(
    "function",
    [
        lambda b, h, q, k: True if q > 3 else k < 2,
        lambda b, h, q, k: k < 2.5,
        lambda b, h, q, k: SAMPLE_IDS[b, k].to(torch.bool),
        lambda b, h, q, k: q.new_ones((), dtype=torch.int64) <= k,
    ],
)
def test_function_without_formula(function: Any) -> None:
    with pytest.raises(Unsupported):
        read_formula(function)


@pytest.mark.parametrize(
    ("function", "expression"),
    [
        (hf.causal_mask_function, "causal()"),
        (hf.bidirectional_mask_function, "everything()"),
        (hf.sliding_window_causal_mask_function(4), "window(back=3)"),
        (hf.sliding_window_bidirectional_mask_function(4), "window(back=4, ahead=4)"),
        (hf.chunked_causal_mask_function(4, torch.zeros(1, dtype=int)), "causal() & chunks(4)"),
        (
            hf.and_masks(
                hf.causal_mask_function,
                hf.packed_sequence_mask_function(torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])),
            ),
            "causal() & documents(ids=[[0, 0, 0, 1, 1, 1, 1, 1]])",
        ),
    ],
)
def test_expressions_are_short(function: Any, expression: str) -> None:
    mask = mask_for_layers(1, 8, 8, mask_function=function)
    assert repr(mask.content.mask) == expression


def test_same_mask_is_same_object_again() -> None:
    def forward(length: int) -> Any:
        keep = torch.ones(2, length, dtype=torch.bool)
        keep[0, :3] = False
        function = hf.sliding_window_causal_mask_function(4)
        return mask_for_layers(
            2, length, length, mask_function=function, attention_mask=keep
        ).content

    assert forward(8) is forward(8)
    assert forward(8) is not forward(9)


def test_user_function_is_called_again() -> None:
    holes = torch.ones(6, dtype=torch.bool)

    def forward() -> Any:
        def function(b: Any, h: Any, q: Any, k: Any) -> Any:
            return holes[k] & (k <= q)

        return mask_for_layers(1, 6, 6, mask_function=function, use_vmap=True).content

    first = forward()
    assert forward() is first
    assert first.rows(2, 5).equals(mw.causal().on(6).rows(2, 5))
    holes[2] = False
    assert first.equals(mw.causal()), "what was closed over has changed since, and the mask with it"
    assert forward().equals(mw.causal() & ~mw.keys([2]))


def test_large_function_is_never_requested_all_cells_at_once() -> None:
    largest = 0

    def function(b: Any, h: Any, q: Any, k: Any) -> Any:
        nonlocal largest
        largest = max(largest, np.broadcast_shapes(q.shape, k.shape, b.shape)[-2] * k.numel())
        return (k <= q) & (q - k < 100)

    mask = mask_for_layers(1, 6000, 6000, mask_function=function)
    assert mask.content.equals(mw.window(back=99))
    assert largest <= 2**24 < 6000 * 6000


# ── the tensor that carries it ────────────────────────────────────────────────────────────────


def carried() -> MaskTensor:
    keep = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]], dtype=torch.bool)
    mask: MaskTensor = mask_for_layers(2, 3, 4, q_offset=1, attention_mask=keep)
    return mask


USES = {
    "keys": lambda m: m[:, :, :, :2],
    "later keys": lambda m: m[..., 1:],
    "rows": lambda m: m[:, :, 1:2],
    "a sequence": lambda m: m[1],
    "chosen": lambda m: m[torch.tensor([1, 0])],
    "heads": lambda m: m.expand(2, 3, 3, 4),
    "negated": lambda m: ~m,
    "both": lambda m: m & torch.tensor([True, False, True, True]),
    "either": lambda m: torch.tensor([True, False, True, True]) | m,
    "hidden by a fill": lambda m: torch.zeros(2, 1, 3, 4).masked_fill(~m, -1e9),
    "hidden by a choice": lambda m: torch.where(m, torch.ones(()), torch.finfo(torch.float32).min),
    "moved": lambda m: m.to("cpu", copy=True),
    "copied": lambda m: m.clone(),
    "turned": lambda m: m.transpose(2, 3),
    "joined": lambda m: torch.cat([m, m[..., 1:]], dim=-1),
    "joined after negation": lambda m: torch.cat([~m, ~m], dim=-1),
    "rows that see nothing": lambda m: torch.all(~m, dim=2),
    "rows that see something": lambda m: m.any(-1),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_supported_operations(use: Any) -> None:
    mask = carried()
    got, expected = use(mask), use(mask.cells())
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    assert torch.equal(got.cells() if isinstance(got, MaskTensor) else got, expected)


def test_joined_masks_are_not_those_of_one_sequence() -> None:
    """Position ids that restart would otherwise hide the keys of the second one."""
    mask = carried()
    assert hasattr(mask, ORIGIN)
    assert not hasattr(torch.cat([mask, mask], dim=-1), ORIGIN)


@pytest.mark.parametrize("name", ["LEDConfig", "VisualBertConfig", "BloomConfig", "GitConfig"])
def test_one_query_of_a_model_that_adds_its_mask(name: str) -> None:
    """A step may be compiled and takes a plain tensor, which could not refuse to be added."""
    config = getattr(transformers, name)()
    with pytest.raises(Unsupported, match='attn_implementation="eager"'):
        mask_for_layers(2, 1, 4, q_offset=3, config=config, allow_is_causal_skip=False)


def test_fewer_keys_stay_expression() -> None:
    part = carried()[:, :, :, :2]
    assert isinstance(part.content, mw.BoundMask)
    assert part.content.shape == (2, 1, 3, 2)


MISUSES = {
    "added": lambda m: torch.zeros(2, 1, 3, 4) + m,
    "added after a cut": lambda m: m[:, :, 1:] + 1.0,
    "made numbers": lambda m: m.float(),
    "turned over": lambda m: 1.0 - m.to(torch.float32),
    "taken for hidden": lambda m: torch.zeros(2, 1, 3, 4).masked_fill(m, -1e9),
    "chosen the other way": lambda m: torch.where(m, -1e9, 0.0),
    "compared": lambda m: m != 0,
    "written": lambda m: m.fill_(True),
    "written after a cut": lambda m: m[:, :, 1:].fill_(True),
    "extended": lambda m: torch.nn.functional.pad(m, (0, 1)),
    "joined with others": lambda m: torch.cat(
        [m, torch.ones(2, 1, 3, 2, dtype=torch.bool)], dim=-1
    ),
    "joined with its negation": lambda m: torch.cat([m, ~m], dim=-1),
    "all": lambda m: m.all(-1),
    "any after negation": lambda m: torch.any(~m, dim=2),
    "reread": lambda m: m.view(torch.uint8),
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
def test_rejected_input(misuse: Any) -> None:
    with pytest.raises(Unsupported, match='attn_implementation="eager"'):
        misuse(carried())
