"""softcap, sinks and position_bias of transformers models: computed by the engine, equal to "eager"."""

from __future__ import annotations

import ast
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from torch import nn

import maskwright as mw
from maskwright.bias.terms import DistanceTerm
from maskwright.engine.api import observe_attention
from maskwright.integrations.transformers import (
    NAME,
    UNSUPPORTED_MODELS,
    attention_forward,
    register,
)
from maskwright.integrations.transformers_bias import DistanceBias, read_position_bias
from maskwright.integrations.transformers_tensor import MaskTensor
from tests._helpers.tiny_encoders import ENCODERS, TinyEncoder
from tests._helpers.tiny_models import ALL, NO_OTHER, SCORES, Tiny

if TYPE_CHECKING:
    from collections.abc import Iterator

CLOSE = 1e-5
SCORE_ARGUMENTS = {"softcap", "s_aux", "position_bias"}
T5 = next(tiny for tiny in ALL if tiny.name == "t5")


@pytest.fixture(autouse=True)
def _registered() -> None:
    torch.manual_seed(0)
    register()


@contextmanager
def recorded() -> Iterator[list[Any]]:
    """All calls of the engine."""
    calls: list[Any] = []

    def observe(call: Any, compute: Any) -> Any:
        calls.append(call)
        return compute()

    with observe_attention(observe):
        yield calls


def outputs_and_gradients(model: Any, attention: str, given: dict[str, Any]) -> Any:
    model.set_attn_implementation(attention)
    model.zero_grad()
    out = model(**given)[0]
    out.square().mean().backward()
    return out.detach(), {n: w.grad for n, w in model.named_parameters() if w.grad is not None}


@pytest.mark.parametrize("tiny", ENCODERS, ids=lambda tiny: tiny.name)
def test_other_inputs(tiny: TinyEncoder) -> None:
    model = tiny.build()
    eager, grads = outputs_and_gradients(model, "eager", tiny.inputs)
    with recorded() as calls:
        ours, our_grads = outputs_and_gradients(model, NAME, tiny.inputs)
    assert any(not call.scores.is_empty for call in calls)
    assert (eager - ours).abs().max() < CLOSE
    assert grads.keys() == our_grads.keys()
    for name, grad in grads.items():
        assert ((grad - our_grads[name]).abs().max() / grad.abs().max().clamp(min=1)) < CLOSE, name


@pytest.mark.parametrize("tiny", SCORES, ids=lambda tiny: tiny.name)
@torch.no_grad()
def test_engine_computes_them(tiny: Tiny) -> None:
    ids = torch.randint(3, 38, (1, 12))
    given = {"input_ids": ids} | ({"decoder_input_ids": ids} if tiny.kind == "seq2seq" else {})
    with recorded() as calls:
        tiny.build(NAME)(**given)
    assert any(not call.scores.is_empty for call in calls)


def test_all_models_that_pass_them_are_tested() -> None:
    """Reads the calls of the attention interface in the installed release."""
    folder = Path(transformers.__file__).parent / "models"
    found = set()
    for path in folder.glob("*/modeling_*.py"):
        text = path.read_text(encoding="utf-8")
        if not any(f"{name}=" in text for name in SCORE_ARGUMENTS):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) != "attention_interface":
                continue
            if SCORE_ARGUMENTS & {keyword.arg for keyword in node.keywords}:
                found.add(path.parent.name)
    tested = {tiny.name.replace("-", "_") for tiny in (*ALL, *ENCODERS, *NO_OTHER)}
    assert found <= tested
    refused = {"hy_v4", "deepseek_v4"}  # the latter in layers with compressed keys
    assert found & set(UNSUPPORTED_MODELS) == refused


# ── one value per distance ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("training", [False, True])
def test_t5_has_one_value_per_distance(training: bool) -> None:
    model = T5.build(NAME).train(training)
    ids = torch.randint(3, 38, (2, 12))
    with recorded() as calls, torch.set_grad_enabled(training):
        model(input_ids=ids, decoder_input_ids=ids)
    kinds = [tuple(type(term) for term in call.scores.terms) for call in calls]
    # Cross-attention has a bias of zeros, which is omitted.
    assert kinds == [(DistanceTerm,), (DistanceTerm,), *[(DistanceTerm,), ()] * 2]


def test_prefill_in_parts_and_decode_steps_have_their_positions() -> None:
    model = T5.build()
    ids = torch.randint(3, 38, (2, 30))
    found = []
    for attention in ("eager", NAME):
        model.set_attn_implementation(attention)
        encoded = model.encoder(ids)
        past, parts = None, []
        for part in ids.split([9, 12, 1, 1, 7], dim=1):
            out = model(
                encoder_outputs=encoded,
                decoder_input_ids=part,
                past_key_values=past,
                use_cache=True,
            )
            past = out.past_key_values
            parts.append(out.logits)
        found.append(torch.cat(parts, dim=1).detach())
    assert (found[0] - found[1]).abs().max() < CLOSE


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(reentrant: bool) -> None:
    model = T5.build(NAME)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "key_value_proj_dim"):
            module.dropout = 0.0
    model.train()
    ids = torch.randint(3, 38, (2, 12))
    given = {"input_ids": ids, "decoder_input_ids": ids, "use_cache": False}
    out, grads = outputs_and_gradients(model, NAME, given)
    grads = {name: grad.clone() for name, grad in grads.items()}
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    again, others = outputs_and_gradients(model, NAME, given)
    assert torch.allclose(out, again, atol=CLOSE)
    assert any("relative_attention_bias" in name for name in grads)
    for name, grad in grads.items():
        assert torch.allclose(grad, others[name], atol=CLOSE), name


def table_bias(q_len: int, kv_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A table, and a position bias that is looked up in it as T5 does."""
    table = torch.randn(6, 4, requires_grad=True)
    distance = torch.arange(kv_len) - torch.arange(kv_len - q_len, kv_len)[:, None]
    values = nn.functional.embedding(distance.clamp(-3, 2) + 3, table)
    return table, values.permute(2, 0, 1).unsqueeze(0)


@pytest.mark.parametrize(("q_len", "kv_len"), [(9, 9), (8, 20), (20, 20), (300, 300)])
def test_values_by_distance_equal_the_tensor(q_len: int, kv_len: int) -> None:
    table, bias = table_bias(q_len, kv_len)
    read = read_position_bias(bias).bias
    assert isinstance(read, DistanceBias)
    frame = mw.causal().on(q_len, kv_len).frame
    dense = read.dense(frame)
    assert torch.equal(dense, bias)
    along = torch.randn_like(bias)
    ours, theirs = (torch.autograd.grad(x, table, along, retain_graph=True) for x in (dense, bias))
    assert torch.allclose(ours[0], theirs[0], atol=1e-4)


def test_bias_of_another_structure_stays_a_tensor() -> None:
    learned = torch.zeros(1, 4, 12, 12, requires_grad=True)  # equal values, but many parameters
    assert read_position_bias(learned).bias is learned
    values = torch.randn(1, 4, 12, 12)
    assert read_position_bias(values).bias is values
    values = torch.zeros(1, 4, 300, 300)
    values[0, 3, 299, 299] = 1.0
    assert read_position_bias(values).bias is values


def test_bias_that_was_written_into_is_read_again() -> None:
    bias = torch.zeros(1, 4, 12, 12)
    assert read_position_bias(bias).bias is None
    bias[0, 0, 3, 2] = 1.0
    assert read_position_bias(bias).bias is bias


@pytest.mark.parametrize("value", [-torch.inf, torch.finfo(torch.float32).min])
def test_bias_that_masks(value: float) -> None:
    """A model that adds its mask to the position bias: not finite, or the lowest number."""
    q, k, v = (torch.randn(2, 4, 12, 8) for _ in range(3))
    bias = torch.randn(1, 4, 12, 12)
    hidden = torch.ones(12, 12, dtype=torch.bool).triu(1)
    bias = bias.masked_fill(hidden, value)
    layer = nn.Identity()
    layer.is_causal = False
    mask = MaskTensor(mw.everything().on(12), batch=2)
    ours, _ = attention_forward(layer, q, k, v, mask, scaling=1.0, position_bias=bias)
    expected = ((q @ k.mT) + bias).softmax(-1) @ v
    assert torch.allclose(ours, expected.transpose(1, 2), atol=CLOSE)
