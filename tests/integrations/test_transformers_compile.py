"""Models on maskwright's attention in graphs of torch.compile: one graph, and no recompilation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import (
    Blip2QFormerConfig,
    Blip2QFormerModel,
    CompileConfig,
    DynamicCache,
    StaticCache,
)
from transformers.masking_utils import create_causal_mask

from maskwright.integrations.transformers import NAME, register
from tests._helpers.sampling import subset_of_cases
from tests._helpers.tiny_models import ALL, VOCABULARY, WINDOW, Tiny

if TYPE_CHECKING:
    from collections.abc import Iterator

CLOSE = 1e-5
TINY = {tiny.name: tiny for tiny in ALL}
DECODERS = ("llama", "mistral", "gemma2", "gpt_oss")  # full, window, soft cap, sinks


def each(*names: str, first: int = 0) -> Any:
    """Every second of these models: each kind of layer is compiled by some test."""
    tiny = [TINY[name] for name in subset_of_cases(names, 2, first)]
    return pytest.mark.parametrize("tiny", tiny, ids=lambda t: t.name)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch.compiler.reset()
    register()
    yield
    torch.compiler.reset()


def ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY - 2, (batch, length))


def left_padded(batch: int, length: int, first: int) -> torch.Tensor:
    keep = torch.ones(batch, length, dtype=torch.long)
    keep[0, :first] = 0
    return keep


def compiled(model: Any, **options: Any) -> tuple[Any, CompileCounterWithBackend]:
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(model, backend=counter, fullgraph=True, **options), counter


def operators(graph: torch.fx.GraphModule) -> list[str]:
    """The names of the attention operators in a graph."""
    found = (str(node.target) for node in graph.graph.nodes if node.op == "call_function")
    return [name for name in found if "maskwright" in name or "scaled_dot_product" in name]


@each(*DECODERS, first=1)  # mistral, gpt_oss
@torch.no_grad()
def test_prefill_is_one_graph_for_any_padding_and_length(tiny: Tiny) -> None:
    eager, (ours, counter) = tiny.build(), compiled(tiny.build(NAME))
    counts = []
    for length, first in ((12, 4), (12, 0), (20, 7), (33, 1), (41, 40)):
        given = {
            "input_ids": ids(2, length),
            "attention_mask": left_padded(2, length, first),
            "use_cache": False,
        }
        apart = (eager(**given).logits - ours(**given).logits).abs()
        assert apart[given["attention_mask"].bool()].max() < CLOSE
        counts.append(counter.frame_count)
    assert counts == [1, 1, 2, 2, 2]  # again once, when lengths become dynamic
    assert set(operators(counter.graphs[-1])) == {
        "maskwright.bind_mask.default",
        "maskwright.pack_mask.default",
        "maskwright.attend.default",
    }


@each("llama", "mistral", first=1)
@torch.no_grad()
def test_documents_are_data_of_the_graph(tiny: Tiny) -> None:
    eager, (ours, counter) = tiny.build(), compiled(tiny.build(NAME))
    tokens = ids(1, 12)
    for lengths in ((7, 5), (4, 4, 4), (12,)):
        places = torch.cat([torch.arange(n) for n in lengths])[None]
        given = {"input_ids": tokens, "position_ids": places, "use_cache": False}
        assert (eager(**given).logits - ours(**given).logits).abs().max() < CLOSE
    assert counter.frame_count == 1


def gradients(model: Any, **given: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss at the real tokens, and the gradients by name."""
    model.zero_grad()
    keep = given.get("attention_mask")
    logits = model(**given).logits
    loss = (logits if keep is None else logits[keep.bool()]).square().mean()
    loss.backward()
    found = {n: w.grad for n, w in model.named_parameters() if w.grad is not None}
    return loss.detach(), {n.removeprefix("_orig_mod."): x for n, x in found.items()}


@each("llama", "gemma2", "granite_swa", "t5", first=1)  # full, soft cap, sinks, position bias
def test_training_step(tiny: Tiny) -> None:
    eager, (ours, counter) = tiny.build(), compiled(tiny.build(NAME))
    for first in (2, 5):
        given: dict[str, Any] = {"input_ids": ids(2, 12)}
        if tiny.kind == "seq2seq":
            given["decoder_input_ids"] = ids(2, 7)
        else:
            given["attention_mask"] = left_padded(2, 12, first)
            given["use_cache"] = False
        (loss, expected), (our_loss, found) = gradients(eager, **given), gradients(ours, **given)
        assert (loss - our_loss).abs() < CLOSE
        assert expected.keys() == found.keys()
        for name, grad in expected.items():
            scale = grad.abs().max().clamp(min=1.0)
            assert (grad - found[name]).abs().max() / scale < CLOSE, name
    assert counter.frame_count == 1
    assert "maskwright.attend.default" in operators(counter.graphs[-1])


@pytest.mark.parametrize(
    ("name", "kind"),
    subset_of_cases(
        [
            *(("llama", "dynamic"), ("llama", "static")),
            *(("mistral", "static"), ("mistral", "dynamic")),
        ],
        every=2,
        first=1,
    ),
)
@torch.no_grad()
def test_decode_steps_with_a_cache(name: str, kind: str) -> None:
    tiny = TINY[name]
    tokens, keep = ids(2, 8 + 4 * WINDOW), left_padded(2, 8 + 4 * WINDOW, 3)
    eager, (ours, counter) = tiny.build(), compiled(tiny.build(NAME))
    length, found, counts = tokens.shape[1], [], []
    for model in (eager, ours):
        config = eager.config
        cache = (
            DynamicCache(config=config)
            if kind == "dynamic"
            else StaticCache(
                config=config, max_cache_len=length + 1
            )  # transformers compiles again if it is full
        )
        logits = []
        for start, stop in ((0, 8), *((n, n + 1) for n in range(8, length))):
            part, kept = tokens[:, start:stop].clone(), keep[:, :stop].clone()
            out = model(part, attention_mask=kept, past_key_values=cache)
            logits.append(out.logits)
            counts.append(counter.frame_count)
        found.append(torch.cat(logits, 1))
    assert (found[0] - found[1])[keep.bool()].abs().max() < CLOSE
    # Prefill, one step, and what becomes dynamic; then none of the other steps.
    assert counts[-1] == counts[-2 * WINDOW]


@each("llama", "mistral", "gpt_oss")
def test_generate_compiles_steps_of_a_static_cache(tiny: Tiny) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:  # generate() copies other objects
        graphs.append(graph)
        return lookup_backend("aot_eager")(graph, inputs)

    settings = CompileConfig(fullgraph=True, backend=backend, mode=None)
    settings._compile_all_devices = True
    given = {
        "input_ids": ids(8, 12),
        "attention_mask": torch.stack([left_padded(1, 12, n)[0] for n in range(8)]),
        "max_new_tokens": 2 * WINDOW,
        "min_new_tokens": 2 * WINDOW,
        "do_sample": False,
        "cache_implementation": "static",
        "pad_token_id": 0,
    }
    expected = tiny.build().generate(**given)
    found = tiny.build(NAME).generate(**given, compile_config=settings)
    assert torch.equal(expected, found)
    assert len(graphs) in (1, 2)  # one step, and one with dynamic sizes; none of the others
    assert set(operators(graphs[-1])) == {"maskwright.attend.default"}


@torch.no_grad()
def test_mask_function_of_the_user_is_computed_by_sdpa() -> None:
    x = torch.randn(1, 6, 16)
    model = TINY["llama"].build(NAME)

    def mask(x: torch.Tensor) -> Any:
        return create_causal_mask(
            config=model.config,
            inputs_embeds=x,
            attention_mask=None,
            past_key_values=None,
            or_mask_function=lambda b, h, q, k: k < 3,
        )

    made = torch.compile(mask, backend="eager", fullgraph=True)(x)
    rows, keys = torch.arange(6)[:, None], torch.arange(6)
    assert torch.equal(made[0, 0], (keys <= rows) | (keys < 3))
    assert not hasattr(made, "_maskwright_handle")


@pytest.mark.parametrize("is_compiled", [False, True])
def test_queries_with_a_batch_of_one(is_compiled: bool) -> None:
    """A Q-Former is called with one set of queries for all sequences."""
    torch.manual_seed(0)
    config = Blip2QFormerConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        encoder_hidden_size=32,
        cross_attention_frequency=1,
        attn_implementation="eager",
    )
    model = Blip2QFormerModel(config).eval()
    inputs = {
        "query_embeds": torch.randn(1, 3, 32),
        "encoder_hidden_states": torch.randn(4, 15, 32),
        "encoder_attention_mask": torch.arange(15)[None] < torch.tensor([[15], [9], [1], [12]]),
    }
    with torch.no_grad():
        expected = model(**inputs)[0]
        model.set_attn_implementation(NAME)
        run = torch.compile(model, backend="aot_eager") if is_compiled else model
        torch.testing.assert_close(run(**inputs)[0], expected)
