"""The attention of one layer, and models used in other ways than a plain forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as gemma2_eager
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as gpt_oss_eager
from transformers.models.t5.modeling_t5 import eager_attention_forward as t5_eager

import maskwright as mw
from maskwright.errors import ArgumentError, FrameError, MissingError, Unsupported
from maskwright.integrations import transformers_dense
from maskwright.integrations.transformers import (
    NAME,
    OWN_TABLES,
    UNSUPPORTED_ARGUMENTS,
    attention_forward,
    register,
)
from maskwright.integrations.transformers_masks import mask_for_layers
from maskwright.integrations.transformers_tensor import MaskTensor
from tests._helpers.tiny_architectures import ARCHITECTURES
from tests._helpers.tiny_models import ALL, DECODERS, VOCABULARY, Tiny

if TYPE_CHECKING:
    from pathlib import Path

CLOSE = 1e-5
LLAMA, MISTRAL, GEMMA2, GPT_OSS = (
    next(tiny for tiny in DECODERS if tiny.name == name)
    for name in ("llama", "mistral", "gemma2", "gpt_oss")
)


@pytest.fixture(autouse=True)
def _registered() -> None:
    torch.manual_seed(0)
    register()


class Layer(nn.Module):
    """What an attention function looks up in its layer."""

    def __init__(self, groups: int = 1, is_causal: bool = True) -> None:
        super().__init__()
        self.num_key_value_groups, self.is_causal = groups, is_causal


def heads(q_len: int, kv_len: int, kv_heads: int = 4) -> tuple[torch.Tensor, ...]:
    return (
        torch.randn(2, 4, q_len, 8, requires_grad=True),
        torch.randn(2, kv_heads, kv_len, 8, requires_grad=True),
        torch.randn(2, kv_heads, kv_len, 8, requires_grad=True),
    )


def agree(theirs: torch.Tensor, ours: torch.Tensor, *weights: torch.Tensor) -> None:
    """The same output, and the same gradients."""
    assert theirs.shape == ours.shape
    assert (theirs - ours).abs().max() < CLOSE
    along = torch.randn_like(theirs)
    for one, other in zip(
        torch.autograd.grad(theirs, weights, along),
        torch.autograd.grad(ours, weights, along),
        strict=True,
    ):
        assert (one - other).abs().max() < 10 * CLOSE


@pytest.mark.parametrize("q_len", [1, 5, 9])
@pytest.mark.parametrize("is_causal", [None, True, False])
@pytest.mark.parametrize("of_layer", [True, False])
def test_without_mask_equals_sdpa(q_len: int, is_causal: bool | None, of_layer: bool) -> None:
    qkv, layer = heads(q_len, 9, kv_heads=2), Layer(2, of_layer)
    theirs, _ = sdpa_attention_forward(layer, *qkv, None, is_causal=is_causal)
    ours, weights = attention_forward(layer, *qkv, None, is_causal=is_causal)
    assert weights is None
    agree(theirs, ours, *qkv)


@pytest.mark.parametrize("length", [9, 80])  # not worth reading, and read
@pytest.mark.parametrize("kind", ["bool", "-inf", "min", "bias", "row hidden"])
def test_masks_of_others(length: int, kind: str) -> None:
    qkv, layer = heads(length, length), Layer()
    seen = (torch.rand(2, 1, length, length) < 0.3) | torch.eye(length, dtype=torch.bool)
    mask = seen
    if kind in ("-inf", "min"):
        low = -torch.inf if kind == "-inf" else torch.finfo(torch.float32).min
        mask = torch.zeros(seen.shape).masked_fill(~seen, low)
    elif kind == "bias":
        mask = torch.randn(2, 4, length, length).masked_fill(~seen, -torch.inf)
    elif kind == "row hidden":  # by a finite number: such a row is the mean of all values
        seen[0, 0, 3] = False
        mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    theirs, _ = sdpa_attention_forward(layer, *qkv, mask)
    ours, _ = attention_forward(layer, *qkv, mask)
    agree(theirs, ours, *qkv)


def test_mask_of_others_that_was_written_into_is_read_again() -> None:
    q, k, v = heads(80, 80)
    mask = torch.ones(2, 1, 80, 80, dtype=torch.bool).tril()
    attention_forward(Layer(), q, k, v, mask)
    mask[..., 5] = False
    mask[:, :, :, 0] = True
    theirs, _ = sdpa_attention_forward(Layer(), q, k, v, mask)
    ours, _ = attention_forward(Layer(), q, k, v, mask)
    agree(theirs, ours, q, k, v)


def both_masks(q_len: int, kv_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What "eager" adds, and what maskwright carries; every row sees something."""
    mask = mask_for_layers(2, q_len, kv_len, q_offset=kv_len - q_len)
    return torch.zeros(mask.shape).masked_fill(~mask.cells(), torch.finfo(torch.float32).min), mask


@pytest.mark.parametrize("max_scores", [2**25, 50])  # one block of rows, and several
@pytest.mark.parametrize("plain", [False, True])  # by the engine, and from dense scores
def test_softcap(plain: bool, max_scores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_dense, "MAX_SCORES", max_scores)
    qkv, layer = heads(5, 9, kv_heads=2), Layer(2)
    added, mask = both_masks(5, 9)
    theirs, _ = gemma2_eager(layer, *qkv, added, scaling=0.5, softcap=0.7)
    given = added if plain else mask
    ours, _ = attention_forward(layer, *qkv, given, scaling=0.5, softcap=0.7)
    agree(theirs, ours, *qkv)


@pytest.mark.parametrize("plain", [False, True])
def test_sinks(plain: bool) -> None:
    (q, k, v), layer = heads(5, 9, kv_heads=2), Layer(2)
    layer.sinks = nn.Parameter(torch.randn(4))
    added, mask = both_masks(5, 9)
    theirs, _ = gpt_oss_eager(layer, q, k, v, added, scaling=0.5)
    given = added if plain else mask
    ours, _ = attention_forward(layer, q, k, v, given, scaling=0.5, s_aux=layer.sinks)
    agree(theirs, ours, q, k, v, layer.sinks)


@pytest.mark.parametrize("plain", [False, True])
def test_position_bias(plain: bool) -> None:
    qkv, layer = heads(5, 9), Layer()
    bias = torch.randn(1, 4, 5, 9, requires_grad=True)
    added, mask = both_masks(5, 9)
    theirs, _ = t5_eager(layer, *qkv, added, scaling=1.0, position_bias=bias)
    given = added if plain else mask
    ours, _ = attention_forward(layer, *qkv, given, scaling=1.0, position_bias=bias)
    agree(theirs, ours, *qkv, bias)


def test_learned_scale() -> None:
    qkv, scale = heads(5, 5), torch.tensor(0.3, requires_grad=True)
    theirs, _ = sdpa_attention_forward(Layer(), qkv[0] * scale, *qkv[1:], None, scaling=1.0)
    ours, _ = attention_forward(Layer(), *qkv, None, scaling=scale)
    agree(theirs, ours, *qkv, scale)


@pytest.mark.parametrize("extra", [{}, {"softcap": 50.0}], ids=["engine", "scores"])
def test_dropout_leaves_mean_unchanged(extra: dict[str, Any]) -> None:
    q, k, v = (x.detach() for x in heads(6, 6))
    mask = both_masks(6, 6)[1]
    whole, _ = attention_forward(Layer(), q, k, v, mask, **extra)
    drawn = [attention_forward(Layer(), q, k, v, mask, dropout=0.5, **extra)[0] for _ in range(400)]
    assert not torch.allclose(drawn[0], drawn[1])
    assert (torch.stack(drawn).mean(0) - whole).abs().mean() < 0.05


@pytest.mark.parametrize("name", sorted(UNSUPPORTED_ARGUMENTS))
def test_unsupported_arguments_are_rejected(name: str) -> None:
    q, k, v = heads(3, 3)
    with pytest.raises(Unsupported, match=name):
        attention_forward(Layer(), q, k, v, None, **{name: object()})


@pytest.mark.parametrize("length", [9, 80])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_masks_of_integers_are_rejected(length: int, dtype: torch.dtype) -> None:
    mask = torch.ones(2, 1, length, length, dtype=dtype).tril()
    with pytest.raises(ArgumentError, match=rf"Layer.*{dtype}.*attention_mask.bool"):
        attention_forward(Layer(), *heads(length, length), mask)


@pytest.mark.parametrize("q_len", [5, 1])
def test_mask_that_hides_nothing_has_any_length(q_len: int) -> None:
    qkv, layer = heads(q_len, 9), Layer(is_causal=False)
    mask = mask_for_layers(2, q_len, 7, mask_function=bidirectional_mask_function)
    theirs, _ = sdpa_attention_forward(layer, *qkv, None)
    ours, _ = attention_forward(layer, *qkv, mask)
    agree(theirs, ours, *qkv)
    hides = mask_for_layers(
        2,
        q_len,
        7,
        mask_function=bidirectional_mask_function,
        attention_mask=torch.tensor([[1] * 7, [0] + [1] * 6]).bool(),
    )
    with pytest.raises(FrameError, match=r"\(Layer\).* has 7 keys, expected the 9"):
        attention_forward(layer, *qkv, hides)


@pytest.mark.parametrize("q_len", [5, 80])
def test_mask_of_one_row_is_for_all_queries(q_len: int) -> None:
    qkv, layer = heads(q_len, 9), Layer(is_causal=False)
    keep = torch.ones(2, 9, dtype=torch.bool)
    keep[0, 6:] = False
    mask = mask_for_layers(2, 1, 9, mask_function=bidirectional_mask_function, attention_mask=keep)
    theirs, _ = sdpa_attention_forward(layer, *qkv, keep[:, None, None])
    ours, _ = attention_forward(layer, *qkv, mask)
    agree(theirs, ours, *qkv)


def test_errors_name_implementation_and_layer() -> None:
    layer = Layer()
    layer.layer_idx = 3
    q, k, v = heads(5, 5)
    with pytest.raises(
        mw.MaskError, match=r'^attn_implementation="maskwright" \(Layer, layer 3\): '
    ):
        attention_forward(layer, q, k[:, :3], v, None)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_errors_of_unsupported_derivatives_name_eager() -> None:
    q, k, v = heads(5, 5)
    out, _ = attention_forward(Layer(), q, k, v, both_masks(5, 5)[1])
    with pytest.raises(Unsupported, match='attn_implementation="eager"'):
        torch.autograd.grad(out.square().sum(), q, create_graph=True)[0].sum().backward()

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q.detach(), torch.ones_like(q))
        with pytest.raises(Unsupported, match='attn_implementation="eager"'):
            attention_forward(Layer(), dual, k, v, both_masks(5, 5)[1])


# ── models ────────────────────────────────────────────────────────────────────────────────────


def ids(length: int = 12) -> torch.Tensor:
    return torch.randint(3, VOCABULARY - 2, (2, length))


def test_all_layers_share_one_mask_and_forwards_of_same_sizes_too() -> None:
    model, seen = LLAMA.build(NAME), []
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda module, args, kwargs: seen.append(kwargs["attention_mask"]), with_kwargs=True
        )
    for _ in range(2):
        model(ids())
    assert all(isinstance(mask, MaskTensor) for mask in seen)
    assert len({id(mask.content) for mask in seen}) == 1
    assert seen[0].content.equals(mw.causal())


@pytest.mark.parametrize("given", ["bool", "float"])
def test_users_own_mask_of_four_axes(given: str) -> None:
    seen = (torch.rand(2, 1, 12, 12) < 0.5) | torch.eye(12, dtype=torch.bool)
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    tokens = ids()
    with torch.no_grad():
        eager = LLAMA.build()(tokens, attention_mask=mask).logits
        ours = LLAMA.build(NAME)(tokens, attention_mask=seen if given == "bool" else mask).logits
    assert (eager - ours).abs().max() < CLOSE


@pytest.mark.parametrize("tiny", [LLAMA, MISTRAL, GEMMA2, GPT_OSS], ids=lambda tiny: tiny.name)
def test_prefill_in_pieces(tiny: Tiny) -> None:
    tokens, found = ids(), []
    for attention in ("eager", NAME):
        model, cache, parts = tiny.build(attention), None, []
        for piece in tokens.split(5, dim=1):
            with torch.no_grad():
                out = model(piece, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            parts.append(out.logits)
        found.append(torch.cat(parts, 1))
    assert (found[0] - found[1]).abs().max() < CLOSE


@pytest.mark.parametrize("tiny", [LLAMA, GEMMA2, GPT_OSS], ids=lambda tiny: tiny.name)
def test_compiled_in_one_graph(tiny: Tiny) -> None:
    keep = torch.ones(2, 12, dtype=torch.long)
    keep[0, :4] = 0
    given = {"input_ids": ids(), "attention_mask": keep, "use_cache": False}
    torch.compiler.reset()
    model = torch.compile(tiny.build(NAME), backend="eager", fullgraph=True)
    with torch.no_grad():
        found = model(**given).logits - tiny.build()(**given).logits
    assert found[keep.bool()].abs().max() < CLOSE


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(reentrant: bool) -> None:
    tokens, found = ids(), []
    for attention, saves in (("eager", False), (NAME, True)):
        model = MISTRAL.build(attention).train()
        if saves:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model(tokens, use_cache=False).logits.square().mean().backward()
        found.append(model.model.layers[0].self_attn.q_proj.weight.grad)
    assert (found[0] - found[1]).abs().max() < CLOSE


def test_autocast() -> None:
    tokens, found = ids(), []
    for attention in ("sdpa", NAME):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            found.append(LLAMA.build(attention)(tokens).logits.float())
    assert (found[0] - found[1]).abs().max() < 0.05


def test_inference_mode() -> None:
    tokens = ids()
    with torch.inference_mode():
        found = LLAMA.build()(tokens).logits - LLAMA.build(NAME)(tokens).logits
    assert found.abs().max() < CLOSE


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("tiny", [LLAMA, MISTRAL, GPT_OSS], ids=lambda tiny: tiny.name)
def test_generate_of_a_padded_batch(tiny: Tiny, num_beams: int, cache: str) -> None:
    keep = torch.ones(8, 12, dtype=torch.long)
    for row in range(8):
        keep[row, :row] = 0
    given = {"input_ids": torch.randint(3, VOCABULARY - 2, (8, 12)), "attention_mask": keep}
    given |= {"max_new_tokens": 6, "num_beams": num_beams, "cache_implementation": cache}
    eager, ours = (tiny.build(name).generate(**given, do_sample=False) for name in ("eager", NAME))
    assert torch.equal(eager, ours)


def test_padding_mask_of_another_length() -> None:
    """As with "sdpa", all ones are no mask; eager adds none either."""
    [tiny] = [tiny for tiny in ALL if tiny.name == "bert"]
    tokens, keep = ids(), torch.ones(2, 14, dtype=torch.long)
    eager, ours = (tiny.build(name)(tokens, attention_mask=keep).logits for name in ("eager", NAME))
    assert (eager - ours).abs().max() < CLOSE
    keep[0, :2] = 0
    with pytest.raises(FrameError, match=r"BertSelfAttention, layer 0\).*14 keys, expected the 12"):
        tiny.build(NAME)(tokens, attention_mask=keep)


def test_guidance_of_encoder_decoder_models() -> None:
    [tiny] = [tiny for tiny in ALL if tiny.name == "bart"]
    given = {"inputs": ids(7), "max_new_tokens": 5, "do_sample": False, "guidance_scale": 1.5}
    eager, ours = (tiny.build(name).generate(**given) for name in ("eager", NAME))
    assert torch.equal(eager, ours)


@pytest.mark.parametrize("num_beams", [1, 2])
def test_recurrent_gemma_generates_with_its_default_cache(num_beams: int) -> None:
    tiny = ARCHITECTURES["recurrent gemma"]
    given = {"max_new_tokens": 12, "num_beams": num_beams, "do_sample": False}
    given |= {"eos_token_id": None, "min_new_tokens": 12, "output_logits": True}
    eager, ours = (
        tiny.build(name).generate(ids(), **given, return_dict_in_generate=True)
        for name in ("eager", NAME)
    )
    assert torch.equal(eager.sequences, ours.sequences)
    for x, y in zip(eager.logits, ours.logits, strict=True):
        assert (x - y).abs().max() < CLOSE


# ── registering ───────────────────────────────────────────────────────────────────────────────


def test_registering_twice_changes_nothing() -> None:
    register()
    register()
    assert AttentionInterface()[NAME] is attention_forward
    assert AttentionMaskInterface()[NAME] is mask_for_layers


@pytest.mark.parametrize("error", ["ImportError", "RuntimeError"])
def test_modules_of_models_that_fail(
    error: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A model that cannot be imported does not concern the others."""
    (tmp_path / f"failing_{error}.py").write_text(f"raise {error}")
    path = [*transformers.models.__path__, str(tmp_path)]
    monkeypatch.setattr(transformers.models, "__path__", path)
    tables = {"failing": f"failing_{error}", "superglue": OWN_TABLES["superglue"]}
    monkeypatch.setattr("maskwright.integrations.transformers.OWN_TABLES", tables)
    register()


def test_release_without_interface_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def older(batch_size: int, cache_position: Any, kv_length: int) -> None: ...

    monkeypatch.setattr("transformers.masking_utils.sdpa_mask", older)
    with pytest.raises(MissingError, match=r"transformers [\d.]+\S* is too old.*pip install"):
        register()


@pytest.mark.parametrize("weights", [False, True], ids=["output", "weights"])
@pytest.mark.parametrize("kind", ["meta", "fake"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "t5"])
def test_tensors_without_values_give_the_shape(name: str, kind: str, weights: bool) -> None:
    tiny = next(tiny for tiny in ALL if tiny.name == name)
    with torch.device("meta") if kind == "meta" else FakeTensorMode():
        tokens = torch.ones(2, 12, dtype=torch.long)
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        if tiny.kind == "seq2seq":
            inputs["decoder_input_ids"] = tokens
        out = tiny.build(NAME)(**inputs, output_attentions=weights)
    assert out.logits.shape == (2, 12, VOCABULARY)
    if weights:
        maps = out.decoder_attentions if tiny.kind == "seq2seq" else out.attentions
        assert maps[0].shape[0::2] == (2, 12)


def test_positions_without_values_are_not_read() -> None:
    positions = torch.zeros(3, 1, 5, dtype=torch.long, device="meta")
    q = torch.ones(1, 2, 5, 4, device="meta")
    sinks = torch.ones(2, device="meta")
    out, _ = attention_forward(Layer(), q, q, q, None, s_aux=sinks, position_ids=positions)
    assert out.shape == (1, 5, 2, 4)


TRANSFORMS = {
    "grad": torch.func.grad,
    "jacrev": torch.func.jacrev,
    "vmap": lambda f: torch.func.vmap(f, randomness="same"),
    "per_sample_grad": lambda f: torch.func.vmap(torch.func.grad(f)),
}


@pytest.mark.parametrize("tiny", [LLAMA, MISTRAL, GEMMA2], ids=lambda tiny: tiny.name)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_of_torch_func(transform: str, tiny: Tiny) -> None:
    padding = torch.ones(2, 1, 12, dtype=torch.long)
    padding[0, 0, :4] = 0
    if not transform.startswith(("vmap", "per")):  # of one sequence, which the function captures
        padding = padding[0]

    def output(attention: str) -> torch.Tensor:
        model = tiny.build(attention)
        embedded = model.get_input_embeddings()(ids()).detach()

        def loss(x: torch.Tensor, keep: torch.Tensor = padding) -> torch.Tensor:
            out = model(inputs_embeds=x[None], attention_mask=keep).logits
            result: torch.Tensor = out[:, 4:].square().mean()
            return result

        torch.manual_seed(0)
        transformed = TRANSFORMS[transform](loss)
        args = (embedded, padding) if padding.ndim == 3 else (embedded[0],)
        result: torch.Tensor = transformed(*args)
        return result

    torch.manual_seed(1)
    theirs = output("eager")
    torch.manual_seed(1)
    assert torch.allclose(output(NAME), theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_forward_mode_of_a_model() -> None:
    tokens = ids()

    def tangent(attention: str) -> torch.Tensor:
        model = LLAMA.build(attention)
        embedded = model.get_input_embeddings()(tokens).detach()
        result: torch.Tensor = torch.func.jvp(
            lambda x: model(inputs_embeds=x).logits, (embedded,), (torch.ones_like(embedded),)
        )[1]
        return result

    assert torch.allclose(tangent(NAME), tangent("eager"), rtol=1e-4, atol=CLOSE)


def test_mask_made_outside_of_a_transform() -> None:
    q, k, v = (x.detach() for x in heads(5, 5))
    mask = mask_for_layers(2, 5, 5)

    def total(query: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = attention_forward(Layer(), query, k, v, mask)[0].square().sum()
        return result

    (expected,) = torch.autograd.grad(total(q.requires_grad_()), q)
    assert torch.allclose(torch.func.grad(total)(q.detach()), expected, atol=CLOSE)
