"""Packed sequences in transformers models: as each of them alone, or refused."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import DataCollatorWithFlattening, DynamicCache, StaticCache

import maskwright as mw
from maskwright.errors import Unsupported
from maskwright.integrations.transformers import NAME, attention_forward, register
from tests._helpers.tiny_models import ALL, VOCABULARY, WINDOW, Tiny, tiny

if TYPE_CHECKING:
    from collections.abc import Iterator

CLOSE = 1e-5
LENGTHS = (WINDOW + 3, 4, 1, WINDOW)  # longer and shorter than the window
# Layers of these receive no position_ids, with any implementation of attention.
NO_POSITIONS = ("llama4", "deepseek_v4", "inkling", "modernbert")
DECODERS = tuple(model for model in ALL if model.kind == "decoder" and model.name != "inkling")
MORE = tuple(map(tiny, ("cohere2", "starcoder2")))
ENCODERS = tuple(model for model in ALL if model.kind == "encoder")


def each(tinies: tuple[Tiny, ...], *names: str) -> Any:
    kept = tuple(tiny for tiny in tinies if not names or tiny.name in names)
    return pytest.mark.parametrize("model_type", kept, ids=lambda tiny: tiny.name)


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    register()
    yield
    torch.set_num_threads(threads)


def tokens(batch: int, length: int, seed: int = 7) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY - 2, (batch, length), generator=generator)


def restarting(lengths: Any) -> torch.Tensor:
    return torch.cat([torch.arange(n) for n in lengths])[None]


def flash_arguments(*lengths: int) -> dict[str, Any]:
    ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    longest = max(lengths)
    return {
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def alone(model: Any, ids: torch.Tensor, lengths: Any) -> torch.Tensor:
    """The logits of each document of a row as a batch of its own."""
    return torch.cat([model(x).logits for x in ids.split(list(lengths), 1)], 1)


@each((*DECODERS, *MORE, *ENCODERS))
@pytest.mark.parametrize("use_cache", [True, False])
@torch.no_grad()
def test_packed_documents_are_as_alone(model_type: Tiny, use_cache: bool) -> None:
    model, ids = model_type.build(NAME), tokens(1, sum(LENGTHS))
    cache = {"use_cache": use_cache} if model_type.kind == "decoder" else {}
    expected = alone(model, ids, LENGTHS)
    packed = {**cache, "position_ids": restarting(LENGTHS)}
    if model_type.name != "llama4":  # its chunks count from the first of all tokens
        if model_type.kind == "encoder" and model_type.name == "modernbert":
            packed = {}
        both = {**packed, **flash_arguments(*LENGTHS)}
        if model_type.name != "bert":  # which does not pass them to its layers
            assert (model(ids, **both).logits - expected).abs().max() < CLOSE
    if model_type.name in NO_POSITIONS:
        return
    assert (model(ids, **packed).logits - expected).abs().max() < CLOSE
    ones = torch.ones_like(ids)
    assert (model(ids, **packed, attention_mask=ones).logits - expected).abs().max() < CLOSE
    plain = model(ids, **cache).logits
    assert (plain - expected).abs().max() > 1e-3, "packing changes nothing, so nothing was tested"


@each(DECODERS, "mistral", "gpt_oss")
def test_collator(model_type: Tiny) -> None:
    """Loss and gradients of a training step, with all that the collator returns."""
    model = model_type.build(NAME).train()
    rows = [tokens(1, n, seed=n)[0].tolist() for n in (4, 9, 2)]
    features = [{"input_ids": row, "labels": row} for row in rows]
    batch = DataCollatorWithFlattening(return_flash_attn_kwargs=True)(features)
    losses = []
    for part in (batch, {**batch, "position_ids": restarting((4, 9, 2))}):
        model.zero_grad()
        loss = model(**part).loss
        loss.backward()
        losses.append((loss.detach(), [w.grad.clone() for w in model.parameters()]))
    model.zero_grad()
    total = sum(
        model(x, labels=x).loss * (x.shape[1] - 1) for x in (torch.tensor([row]) for row in rows)
    )
    count = sum(len(row) - 1 for row in rows)
    (total / count).backward()
    for loss, grads in losses:
        assert (loss - total / count).abs() < CLOSE
        for grad, weight in zip(grads, model.parameters(), strict=True):
            assert (grad - weight.grad).abs().max() < 1e-4


@each(DECODERS, "llama", "mistral", "gpt_oss", "gemma3")
@pytest.mark.parametrize("seed", range(6))
@torch.no_grad()
def test_random_batches(model_type: Tiny, seed: int) -> None:
    """Rows with documents and with padding on either side or in between."""
    rng = random.Random(seed)
    batch, length = rng.randint(2, 3), rng.randint(6, 14)
    ids = tokens(batch, length, seed)
    keep = torch.zeros(batch, length, dtype=torch.long)
    positions = torch.full((batch, length), rng.randint(0, 1))
    segments = []
    for row in range(batch):
        at = rng.choice([0, 0, 1, 3])
        while at < length:
            size = min(rng.randint(1, 6), length - at)
            keep[row, at : at + size] = 1
            positions[row, at : at + size] = torch.arange(size)
            segments.append((row, at, at + size))
            at += size + rng.choice([0, 0, 1])
    model = model_type.build(NAME)
    out = model(
        ids, attention_mask=keep, position_ids=positions, use_cache=rng.random() < 0.5
    ).logits
    for row, start, stop in segments:
        expected = model(ids[row : row + 1, start:stop]).logits[0]
        assert (out[row, start:stop] - expected).abs().max() < CLOSE
    full = restarting([length - 2, 2]).expand(batch, -1)
    out = model(ids, position_ids=full).logits
    expected = model(ids[:, :-2]).logits
    assert (out[:, :-2] - expected).abs().max() < CLOSE


@each(DECODERS, "llama", "mistral", "gpt_oss", "gpt2")
@pytest.mark.parametrize("filler", [0, 1])
@torch.no_grad()
def test_left_padding_is_not_packing(model_type: Tiny, filler: int) -> None:
    model, ids = model_type.build(), tokens(2, 9)
    keep = torch.ones_like(ids)
    keep[0, :4] = 0
    positions = (keep.cumsum(1) - 1).masked_fill(keep == 0, filler)
    given = {"input_ids": ids, "attention_mask": keep, "position_ids": positions}
    expected = model(**given).logits
    model.set_attn_implementation(NAME)
    assert (model(**given).logits - expected)[keep.bool()].abs().max() < CLOSE


@each(DECODERS, "llama", "mistral", "gpt_oss")
@torch.no_grad()
def test_caches(model_type: Tiny) -> None:
    """A packed prefill fills any cache; later documents beside cached keys are refused."""
    model, ids = model_type.build(NAME), tokens(1, 9)
    expected = alone(model, ids, (6, 3))
    for cache in (
        DynamicCache(config=model.config),
        StaticCache(config=model.config, max_cache_len=16),
    ):
        out = model(ids, position_ids=restarting((6, 3)), past_key_values=cache).logits
        assert (out - expected).abs().max() < CLOSE
        with pytest.raises(Unsupported, match=r"position_ids restart, but there are . cached keys"):
            model(ids[:, :4], position_ids=torch.tensor([[9, 10, 0, 1]]), past_key_values=cache)
    cache = model(ids).past_key_values
    with pytest.raises(Unsupported, match=r"cu_seq_lens_q is set, but there are . cached keys"):
        model(ids[:, :4], past_key_values=cache, **flash_arguments(2, 2))


@each(DECODERS, "llama", "mistral", "gpt_oss")
@torch.no_grad()
def test_chunked_prefill_and_steps_are_not_packing(model_type: Tiny) -> None:
    model, ids = model_type.build(NAME), tokens(1, 14)
    expected = model(ids).logits
    cache, out = DynamicCache(config=model.config), []
    for start, stop in ((0, 6), (6, 11), (11, 12), (12, 13), (13, 14)):
        places = torch.arange(start, stop)[None]
        part = model(ids[:, start:stop], position_ids=places, past_key_values=cache)
        out.append(part.logits)
    assert (torch.cat(out, 1) - expected).abs().max() < CLOSE


@each(DECODERS, "gpt_oss")  # sliding windows, sinks, no positions in its mask functions
@torch.no_grad()
def test_compiled(model_type: Tiny) -> None:
    """Documents are data of one graph, whether a cache, padding or cumulative lengths are there."""
    eager, ids = model_type.build(NAME), tokens(1, 12)
    for name in ("positions", "cumulative lengths"):
        torch.compiler.reset()
        counter = CompileCounterWithBackend("aot_eager")
        model = torch.compile(model_type.build(NAME), backend=counter, fullgraph=True)
        for lengths in ((7, 5), (3, 7, 2), (12,)):
            flash = {} if name == "positions" else flash_arguments(*lengths)
            given = {"position_ids": restarting(lengths), "use_cache": name == "positions", **flash}
            assert (model(ids, **given).logits - alone(eager, ids, lengths)).abs().max() < CLOSE
        assert counter.frame_count <= 3
    with pytest.raises(Unsupported, match="does not rise from 0 to the 12 tokens"):
        model(ids, position_ids=restarting((7, 5)), use_cache=False, **flash_arguments(7, 4))
    keep = torch.ones(2, 12, dtype=torch.long)
    keep[0, :5] = 0
    positions = (keep.cumsum(1) - 1).clamp(min=0)
    positions[1, 7:] -= 7
    given = {"input_ids": tokens(2, 12), "attention_mask": keep, "position_ids": positions}
    out, expected = model(**given).logits, eager(**given).logits
    assert (out - expected)[keep.bool()].abs().max() < CLOSE


def layer(**given: Any) -> torch.Tensor:
    x = torch.randn(given.pop("batch", 1), 2, 6, 4, generator=torch.Generator().manual_seed(0))
    kv_len = given.pop("kv_len", 6)
    mask = given.pop("attention_mask", None)
    out, _ = attention_forward(
        torch.nn.Identity(), x, x[:, :, :kv_len], x[:, :, :kv_len], mask, **given
    )
    return out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cu_seq_lens_q": [0, 6]}, "cu_seq_lens_q without cu_seq_lens_k"),
        ({"max_length_q": 6}, "max_length_q without cu_seq_lens_q"),
        (
            {**flash_arguments(2, 4), "cu_seq_lens_k": [0, 6]},
            "cu_seq_lens_q and cu_seq_lens_k differ",
        ),
        (flash_arguments(2, 3), r"cu_seq_lens_q=\[0, 2, 5\] does not rise from 0 to the 6 tokens"),
        (
            {**flash_arguments(2, 4), "max_length_k": 3},
            "is 3 but cu_seq_lens_q has a sequence of 4",
        ),
        ({**flash_arguments(4, 8), "batch": 2}, "across the rows of the batch, at token 6"),
        ({"position_ids": restarting((3, 3)).expand(3, 1, -1)}, "3-D position_ids restart"),
    ],
)
def test_contradictions_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        layer(**given)


def test_other_masks() -> None:
    """A mask of the caller is complete for position ids; cumulative lengths are combined with it."""
    four = mw.window(back=3).on(6).dense()
    mask = torch.from_numpy(four)
    both = mw.window(back=3) & mw.documents(lengths=[4, 2])
    expected = layer(attention_mask=torch.from_numpy(both.on(6).dense()))
    assert torch.equal(
        layer(attention_mask=mask, position_ids=restarting((4, 2))), layer(attention_mask=mask)
    )
    additive = torch.zeros(1, 1, 6, 6).masked_fill(~mask, torch.finfo(torch.float32).min)
    for tensor in (mask, additive):
        assert torch.allclose(layer(attention_mask=tensor, **flash_arguments(4, 2)), expected)
    rows = layer(batch=2, is_causal=False, **flash_arguments(4, 2, 6))
    assert torch.allclose(rows[1], layer(batch=2, is_causal=False)[1], atol=1e-6)
    images = torch.tensor([[[0, 1, 1, 1, 1, 3]], [[0, 1, 1, 2, 2, 3]], [[0, 1, 2, 1, 2, 3]]])
    assert torch.equal(layer(position_ids=images), layer())


@pytest.mark.filterwarnings("ignore")  # of the tracer, which is deprecated
def test_traced_code_reads_documents_as_data() -> None:
    def forward(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        out, _ = attention_forward(torch.nn.Identity(), x, x, x, None, position_ids=positions)
        return out

    x = torch.randn(1, 2, 6, 4)
    traced = torch.jit.trace(forward, (x, restarting((4, 2))), check_trace=False)
    for lengths in ((4, 2), (1, 2, 3), (6,)):
        positions = restarting(lengths)
        assert torch.allclose(traced(x, positions), forward(x, positions), atol=1e-6)
