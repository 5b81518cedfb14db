"""Many architectures on maskwright's attention, beside their own "eager" one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from maskwright.errors import Unsupported
from maskwright.integrations.transformers import NAME, UNSUPPORTED_MODELS, register
from tests._helpers.tiny_models import ALL, DECODERS, NO_OTHER, VOCABULARY, WINDOW, Tiny

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTH = 12  # longer than the window and the chunks
CLOSE = 1e-5
GENERATES = tuple(tiny for tiny in ALL if tiny.kind != "encoder")
PACKS = tuple(tiny for tiny in DECODERS if tiny.packs)


def each(tinies: tuple[Tiny, ...]) -> Any:
    return pytest.mark.parametrize("tiny", tinies, ids=lambda tiny: tiny.name)


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    register()
    yield
    torch.set_num_threads(threads)


def tokens(batch: int = 2, length: int = LENGTH) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(3, VOCABULARY - 2, (batch, length), generator=generator)


def padded(tiny: Tiny) -> torch.Tensor:
    """Decoders are padded on the left, the rest on the right."""
    keep = torch.ones(2, LENGTH, dtype=torch.long)
    keep[0, slice(None, 4) if tiny.kind == "decoder" else slice(-4, None)] = 0
    return keep


def inputs(tiny: Tiny) -> dict[str, torch.Tensor]:
    if tiny.kind == "audio":
        sound = torch.randn(2, 8, 20, generator=torch.Generator().manual_seed(7))
        return {"input_features": sound, "decoder_input_ids": tokens()[:, :7]}
    if tiny.kind == "seq2seq":
        return {"input_ids": tokens(), "decoder_input_ids": tokens().flip(0)[:, :7]}
    return {"input_ids": tokens()}


def logits(model: Any, attention: str, **given: Any) -> torch.Tensor:
    model.set_attn_implementation(attention)
    assert model.config._attn_implementation == attention
    out: torch.Tensor = model(**given).logits
    return out


@torch.no_grad()
def difference(model: Any, keep: torch.Tensor | None = None, **given: Any) -> float:
    """How far both are apart at the real tokens."""
    apart = (logits(model, "eager", **given) - logits(model, NAME, **given)).abs()
    return float((apart if keep is None else apart[keep.bool()]).max())


@each(ALL)
def test_prefill(tiny: Tiny) -> None:
    assert difference(tiny.build(), **inputs(tiny)) < CLOSE


@each(tuple(tiny for tiny in ALL if tiny.kind != "audio"))
@torch.no_grad()
def test_padded_batch(tiny: Tiny) -> None:
    model, keep = tiny.build(), padded(tiny)
    given = {**inputs(tiny), "attention_mask": keep}
    real = keep if tiny.kind != "seq2seq" else None
    assert difference(model, real, **given) < CLOSE
    without = logits(model, NAME, **inputs(tiny)) - logits(model, NAME, **given)
    at = without if real is None else without[real.bool()]
    assert at.abs().max() > 1e-3, "the padding is not noticed, so nothing was tested"


@each(PACKS)
@torch.no_grad()
def test_packed_documents(tiny: Tiny) -> None:
    model, ids = tiny.build(), tokens(batch=1)
    places = torch.tensor([[*range(7), *range(5)]])
    given = {"input_ids": ids, "position_ids": places, "use_cache": False}
    assert difference(model, **given) < CLOSE
    if tiny.name == "llama4":
        return  # its chunks count from the first of all tokens, so a document alone has others
    alone = logits(model, NAME, input_ids=ids[:, 7:], use_cache=False)
    assert (logits(model, NAME, **given)[:, 7:] - alone).abs().max() < CLOSE


@each(ALL)
def test_gradients(tiny: Tiny) -> None:
    model, given = without_dropout(tiny.build()).train(), inputs(tiny)
    if tiny.kind != "audio":
        given["attention_mask"] = padded(tiny)
    real = padded(tiny).bool() if tiny.kind in ("decoder", "encoder") else slice(None)
    found = []
    for attention in ("eager", NAME):
        model.zero_grad()
        logits(model, attention, **given)[real].square().mean().backward()
        found.append({n: w.grad.clone() for n, w in model.named_parameters() if w.grad is not None})
    eager, ours = found
    assert eager.keys() == ours.keys()
    for name in eager:
        scale = eager[name].abs().max().clamp(min=1.0)
        assert ((eager[name] - ours[name]).abs().max() / scale) < CLOSE, name


def without_dropout(model: Any) -> Any:
    """The same model, so that two forwards of it can be compared in training too."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout", "activation_dropout", "layerdrop"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


@pytest.mark.parametrize(
    ("tiny", "cache"),
    [(tiny, cache) for tiny in GENERATES for cache in tiny.caches],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_greedy_generation(tiny: Tiny, cache: str) -> None:
    """Window models keep but the last keys in both caches, for the window is the shorter."""
    model = tiny.build()
    given = {k: v for k, v in inputs(tiny).items() if k != "decoder_input_ids"}
    if tiny.kind != "audio":
        given["attention_mask"] = padded(tiny)
    model.generation_config.update(max_length=None, min_length=None, pad_token_id=0)
    found = []
    for attention in ("eager", NAME):
        model.set_attn_implementation(attention)
        found.append(
            model.generate(
                **given,
                max_new_tokens=2 * WINDOW,
                min_new_tokens=2 * WINDOW,
                do_sample=False,
                cache_implementation=cache,
                return_dict_in_generate=True,
                output_logits=True,
            )
        )
    eager, ours = found
    assert torch.equal(eager["sequences"], ours["sequences"])
    for step, (one, other) in enumerate(zip(eager["logits"], ours["logits"], strict=True)):
        assert (one - other).abs().max() < CLOSE, f"step {step}"


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@each(NO_OTHER)
@torch.no_grad()
def test_unsupported_models_raise_or_are_unchanged(tiny: Tiny) -> None:
    given = {"input_ids": tokens(), "attention_mask": padded(tiny)}
    eager = tiny.build()(**given)[0]
    if "own attention" in UNSUPPORTED_MODELS[tiny.name]:
        assert torch.equal(tiny.build(NAME)(**given)[0], eager)
        return
    with pytest.raises(Unsupported, match=r'Load .* with attn_implementation="eager"'):
        tiny.build(NAME)(**given)
