from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import maskwright as mw
from maskwright.models.gpt2_pair import (
    from_gpt2_pair,
    load_gpt2_pair,
    save_gpt2_pair,
    to_gpt2_pair,
)
from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers")

SOURCE = torch.randint(3, 30, (3, 7), generator=torch.Generator().manual_seed(0))
TARGET = torch.randint(3, 40, (3, 5), generator=torch.Generator().manual_seed(1))
KEEP = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [1] * 7, [0, 0, 1, 1, 1, 1, 1]])
TARGET_KEEP = torch.tensor([[1, 1, 1, 0, 0], [1] * 5, [1, 1, 1, 1, 0]])


def lively(model: Any) -> Any:
    """Weights so large that a cell more or less in a mask shows in the logits."""
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.2)
    return model.eval()


def ours() -> Seq2Seq:
    return lively(Seq2Seq(Seq2SeqConfig(30, 40, context=24, width=24, heads=3, layers=2)))


def theirs(attention: str = "sdpa") -> Any:
    def half(words: int, **more: Any) -> Any:
        sizes = {"n_positions": 24, "n_embd": 24, "n_head": 3, "n_layer": 2}
        return transformers.GPT2Config(
            vocab_size=words, bos_token_id=1, eos_token_id=2, **sizes, **more
        )

    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        half(30, is_causal=False),
        half(40),
        pad_token_id=0,
        decoder_start_token_id=1,
        eos_token_id=2,
    )
    config._attn_implementation = attention
    return lively(transformers.EncoderDecoderModel(config))


def logits(model: Any, **more: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=SOURCE, decoder_input_ids=TARGET, **more).logits


def close(found: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(found, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_two_gpt2s_have_the_same_logits_here(attention: str) -> None:
    pair = theirs(attention)
    model = from_gpt2_pair(pair.config.to_dict(), pair.state_dict()).eval()
    with torch.no_grad():
        close(model(SOURCE, TARGET), logits(pair))
        padding = mw.padding(keep=KEEP.numpy())
        close(model(SOURCE, TARGET, padding), logits(pair, attention_mask=KEEP))
        both = padding, mw.padding(keep=TARGET_KEEP.numpy())
        masks = {"attention_mask": KEEP, "decoder_attention_mask": TARGET_KEEP}
        close(model(SOURCE, TARGET, *both), logits(pair, **masks))


def test_each_mask_shows_in_those_logits() -> None:
    with torch.no_grad():
        model, padding = ours(), mw.padding(keep=KEEP.numpy())
        plain = model(SOURCE, TARGET)
        assert (model(SOURCE, TARGET, padding) - plain)[0].abs().max() > 0.01
        other = Seq2Seq(model.config, mask=mw.everything()).eval()
        other.load_state_dict(model.state_dict())
        assert (other(SOURCE, TARGET) - plain).abs().max() > 0.01


def test_the_decoder_is_a_gpt2_with_cross_attention() -> None:
    model = ours()
    config, weights = to_gpt2_pair(model)
    half = transformers.GPT2LMHeadModel(transformers.GPT2Config(**config["decoder"])).eval()
    inside = {name.removeprefix("decoder."): x for name, x in weights.items()}
    taken = half.load_state_dict(
        {name: x for name, x in inside.items() if name.startswith("transformer.")}, strict=False
    )
    assert (taken.missing_keys, taken.unexpected_keys) == (["lm_head.weight"], [])  # it is tied
    memory = torch.randn(3, 7, 24, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        want = half(TARGET, encoder_hidden_states=memory, encoder_attention_mask=KEEP).logits
        close(model.decode(TARGET, memory, mw.padding(keep=KEEP.numpy())), want)


def test_a_seq2seq_can_be_loaded_by_transformers_and_translates_the_same(tmp_path: Path) -> None:
    model = ours()
    save_gpt2_pair(model, tmp_path / "pair")
    pair = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "pair").eval()
    assert isinstance(pair, transformers.EncoderDecoderModel)
    padding = mw.padding(keep=KEEP.numpy())
    with torch.no_grad():
        close(logits(pair, attention_mask=KEEP), model(SOURCE, TARGET, padding))
        said = pair.generate(SOURCE, attention_mask=KEEP, max_new_tokens=9, do_sample=False)
    assert said[:, 1:].tolist() == model.greedy(SOURCE, padding, most=9).tolist()
    back = load_gpt2_pair(tmp_path / "pair").eval()
    assert back.config == model.config
    with torch.no_grad():
        torch.testing.assert_close(back(SOURCE, TARGET, padding), model(SOURCE, TARGET, padding))


def test_what_is_another_architecture_is_refused() -> None:
    config, weights = to_gpt2_pair(ours())

    def refused(message: str, half: str = "", **change: Any) -> None:
        wrong = {**config, half: {**config[half], **change}} if half else {**config, **change}
        with pytest.raises(mw.ArgumentError, match=message):
            from_gpt2_pair(wrong, weights)

    refused("is_causal=True", "encoder", is_causal=True)
    refused("add_cross_attention=False", "decoder", add_cross_attention=False)
    refused("model_type='bert'", "encoder", model_type="bert")
    refused("model_type='gpt2'", model_type="gpt2")
    refused("differs in vocabulary only", "encoder", n_layer=1)
    refused("not those of this GPT-2", "encoder", vocab_size=31)
    nameless = {**config["decoder"], "bos_token_id": None}
    refused("no decoder_start_token_id", decoder_start_token_id=None, decoder=nameless)
    with pytest.raises(mw.ArgumentError, match="not those of this GPT-2"):
        from_gpt2_pair(config, {})


def test_an_encoder_that_does_not_say_that_it_sees_all_is_causal_and_refused() -> None:
    config, weights = to_gpt2_pair(ours())
    encoder = {name: x for name, x in config["encoder"].items() if name != "is_causal"}
    with pytest.raises(mw.ArgumentError, match="is_causal=True"):
        from_gpt2_pair({**config, "encoder": encoder}, weights)


def test_a_decoder_under_another_mask_is_no_gpt2() -> None:
    model = Seq2Seq(Seq2SeqConfig(9, 9, width=8, heads=2, layers=1), mask=mw.window(back=3))
    with pytest.raises(mw.ArgumentError, match=r"under window\(back=3\)"):
        to_gpt2_pair(model)
