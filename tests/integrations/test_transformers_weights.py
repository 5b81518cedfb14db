"""Attention weights of transformers models on maskwright's attention, beside those of "eager"."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as gemma2_eager
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as gpt_oss_eager
from transformers.models.llama.modeling_llama import eager_attention_forward as llama_eager
from transformers.models.t5.modeling_t5 import eager_attention_forward as t5_eager

from maskwright.integrations import transformers_dense
from maskwright.integrations.transformers import NAME, attention_forward, register
from maskwright.integrations.transformers_masks import mask_for_layers
from tests._helpers.tiny_models import ALL, VOCABULARY, Tiny

CLOSE = 1e-5
MODELS = ("llama", "mistral", "gemma2", "gpt_oss", "gpt2", "opt", "bert", "t5", "bart")


@pytest.fixture(autouse=True)
def _registered() -> None:
    torch.manual_seed(0)
    register()


class Layer(torch.nn.Module):
    """What an attention function looks up in its layer; 4 query heads share 2 key heads."""

    def __init__(self, groups: int = 2) -> None:
        super().__init__()
        self.num_key_value_groups, self.is_causal = groups, True


def heads(q_len: int, kv_len: int, kv_heads: int = 2) -> tuple[torch.Tensor, ...]:
    sizes = ((4, q_len), (kv_heads, kv_len), (kv_heads, kv_len))
    return tuple(torch.randn(2, *size, 8, requires_grad=True) for size in sizes)


def masks(q_len: int, kv_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What "eager" adds, and what maskwright's layers get."""
    mask = mask_for_layers(2, q_len, kv_len, q_offset=kv_len - q_len)
    return torch.zeros(mask.shape).masked_fill(~mask.cells(), torch.finfo(torch.float32).min), mask


def agree(eager: Any, ours: Any, *inputs: torch.Tensor) -> None:
    """The same outputs and weights, and the same gradients of both."""
    assert eager[1].shape == ours[1].shape
    for x, y in zip(eager, ours, strict=True):
        assert (x - y).abs().max() < CLOSE
    along = [torch.randn_like(x) for x in eager]
    for x, y in zip(
        torch.autograd.grad(eager, inputs, along),
        torch.autograd.grad(ours, inputs, along),
        strict=True,
    ):
        assert (x - y).abs().max() < 10 * CLOSE


@pytest.mark.parametrize("plain", [False, True])  # a mask tensor of the caller, and our own mask
@pytest.mark.parametrize("terms", ["none", "softcap", "sinks", "bias"])
def test_weights_of_a_layer(terms: str, plain: bool) -> None:
    kv_heads = 4 if terms == "bias" else 2
    qkv, layer = heads(5, 9, kv_heads), Layer(4 // kv_heads)
    layer.sinks = torch.nn.Parameter(torch.randn(4))
    added, mask = masks(5, 9)
    bias = torch.randn(1, 4, 5, 9, requires_grad=True)
    eager, theirs, other = {
        "none": (llama_eager, {}, {}),
        "softcap": (gemma2_eager, {"softcap": 0.7}, {"softcap": 0.7}),
        "sinks": (gpt_oss_eager, {}, {"s_aux": layer.sinks}),
        "bias": (t5_eager, {"position_bias": bias}, {"position_bias": bias}),
    }[terms]
    expected = eager(layer, *qkv, added, scaling=0.5, **theirs)
    mask = added if plain else mask
    ours = attention_forward(layer, *qkv, mask, scaling=0.5, output_attentions=True, **other)
    agree(expected, ours, *qkv, *{"sinks": [layer.sinks], "bias": [bias]}.get(terms, []))


def test_weights_are_after_dropout() -> None:
    (q, k, v), layer = heads(6, 6), Layer().train()
    added, mask = masks(6, 6)
    torch.manual_seed(1)
    _, eager = llama_eager(layer, q, k, v, added, scaling=0.5, dropout=0.5)
    torch.manual_seed(1)
    out, weights = attention_forward(
        layer, q, k, v, mask, scaling=0.5, dropout=0.5, output_attentions=True
    )
    assert (eager - weights).abs().max() < CLOSE
    values = v.repeat_interleave(2, 1)
    assert (out - (weights @ values).transpose(1, 2)).abs().max() < CLOSE


def test_weights_of_unwritten_keys_are_zero() -> None:
    (q, k, v), layer = heads(5, 9), Layer()
    _, weights = attention_forward(layer, q, k, v, None, output_attentions=True)
    assert weights.shape == (2, 4, 5, 9)
    assert not weights[..., 5:].any()
    assert torch.allclose(weights.sum(-1), torch.ones(2, 4, 5))


def test_large_weights_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_dense, "MAX_WEIGHT_BYTES", 100)
    q, k, v = heads(5, 9)
    with pytest.warns(UserWarning, match=r"\(2, 4, 5, 5\).*GiB per layer"):
        attention_forward(Layer(), q, k, v, None, output_attentions=True)


# ── models ────────────────────────────────────────────────────────────────────────────────────


def _configs(model: Any) -> list[Any]:
    """The configs of the parts of a model; the stacks of T5 have copies."""
    return [part.config for part in model.modules() if hasattr(part, "config")]


def inputs(tiny: Tiny) -> dict[str, torch.Tensor]:
    tokens = torch.randint(3, VOCABULARY - 2, (2, 12))
    return {"input_ids": tokens} | (
        {"decoder_input_ids": tokens.flip(0)[:, :7]} if tiny.kind == "seq2seq" else {}
    )


def maps(out: Any) -> dict[str, tuple[torch.Tensor, ...]]:
    return {k: v for k, v in out.items() if k.endswith("attentions")}


def assert_same_maps(eager: Any, ours: Any) -> None:
    eager, ours = maps(eager), maps(ours)
    assert eager.keys() == ours.keys()
    assert any(eager.values())
    for name, layers in eager.items():
        assert len(layers) == len(ours[name]), name
        for x, y in zip(layers, ours[name], strict=True):
            assert x.shape == y.shape, name
            assert (x - y).abs().max() < CLOSE, name


@pytest.mark.parametrize("how", ["argument", "config"])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_models_return_the_weights_of_eager(name: str, how: str) -> None:
    [tiny] = [tiny for tiny in ALL if tiny.name == name]
    model, given = tiny.build(), inputs(tiny)
    if how == "argument":
        given["output_attentions"] = True
    else:
        # transformers checks this against the implementation, so it is set before it.
        for config in {id(c): c for c in (model.config, *_configs(model))}.values():
            config.output_attentions = True
    eager = model(**given)
    model.set_attn_implementation(NAME)
    assert_same_maps(eager, model(**given))
    if how == "argument":
        del given["output_attentions"]
        assert not any(maps(model(**given)).values())


@torch.no_grad()
def test_vision_model_returns_weights() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.SiglipVisionConfig(
        **sizes, intermediate_size=48, image_size=32, patch_size=16
    )
    config._attn_implementation = "eager"
    model, image = transformers.SiglipVisionModel(config).eval(), torch.rand(1, 3, 32, 32)
    eager = model(pixel_values=image, output_attentions=True)
    model.set_attn_implementation(NAME)
    assert_same_maps(eager, model(pixel_values=image, output_attentions=True))


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5"])
def test_generate_returns_weights(name: str) -> None:
    [tiny] = [tiny for tiny in ALL if tiny.name == name]
    model, given = tiny.build(), {"input_ids": inputs(tiny)["input_ids"]}
    model.generation_config.update(max_length=None, min_length=None, pad_token_id=0)
    results = []
    for attention in ("eager", NAME):
        model.set_attn_implementation(attention)
        results.append(
            model.generate(
                **given,
                max_new_tokens=4,
                min_new_tokens=4,
                do_sample=False,
                output_attentions=True,
                return_dict_in_generate=True,
            )
        )
    eager, ours = results
    key = "decoder_attentions" if name == "t5" else "attentions"
    assert len(eager[key]) == len(ours[key]) == 4
    for step, other in zip(eager[key], ours[key], strict=True):
        assert len(step) == len(other) > 0
        for x, y in zip(step, other, strict=True):
            assert x.shape == y.shape
            assert (x - y).abs().max() < CLOSE


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@torch.no_grad()
def test_weights_in_a_graph(name: str) -> None:
    [tiny] = [tiny for tiny in ALL if tiny.name == name]
    given = {**inputs(tiny), "use_cache": False, "output_attentions": True}
    torch.compiler.reset()
    eager = tiny.build()(**given)
    assert_same_maps(eager, torch.compile(tiny.build(NAME), backend="eager")(**given))
