from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

import maskwright as mw
from maskwright.models.gpt import GPT, GPTConfig
from maskwright.models.huggingface import (
    from_gpt2,
    from_gpt2_encoder_decoder,
    load_gpt2,
    load_gpt2_encoder_decoder,
    save_gpt2,
    save_gpt2_encoder_decoder,
    to_gpt2,
    to_gpt2_encoder_decoder,
)
from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig
from tests._helpers.large_weights import with_large_weights

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers")

SRC = torch.randint(3, 30, (3, 7), generator=torch.Generator().manual_seed(0))
TGT = torch.randint(3, 40, (3, 5), generator=torch.Generator().manual_seed(1))
SRC_KEEP = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [1] * 7, [0, 0, 1, 1, 1, 1, 1]])
TGT_KEEP = torch.tensor([[1, 1, 1, 0, 0], [1] * 5, [1, 1, 1, 1, 0]])
SRC_PADDING = mw.padding(keep=SRC_KEEP.numpy())
SIZES = {"n_layer": 2, "n_head": 3, "n_embd": 24}


def our_gpt(mask: mw.Mask | None = None) -> GPT:
    return with_large_weights(GPT(GPTConfig(30, block_size=24, **SIZES), mask))


def our_seq2seq(**changes: Any) -> Seq2Seq:
    return with_large_weights(Seq2Seq(Seq2SeqConfig(30, 40, block_size=24, **SIZES | changes)))


def gpt2_config(vocab_size: int, **more: Any) -> Any:
    tokens = {"bos_token_id": 1, "eos_token_id": 2}
    return transformers.GPT2Config(vocab_size=vocab_size, n_positions=24, **SIZES, **tokens, **more)


def their_gpt2() -> Any:
    return with_large_weights(transformers.GPT2LMHeadModel(gpt2_config(30)))


def their_encoder_decoder(attention: str) -> Any:
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        gpt2_config(30, is_causal=False),
        gpt2_config(40),
        pad_token_id=0,
        decoder_start_token_id=1,
        eos_token_id=2,
    )
    config._attn_implementation = attention
    return with_large_weights(transformers.EncoderDecoderModel(config))


@torch.no_grad()
def their_logits(model: Any, **more: Any) -> torch.Tensor:
    return model(input_ids=SRC, decoder_input_ids=TGT, **more).logits


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_gpt2_has_the_same_logits() -> None:
    theirs = their_gpt2()
    ours = from_gpt2(theirs.config.to_dict(), theirs.state_dict()).eval()
    positions = (SRC_KEEP.cumsum(1) - 1).clamp(min=0)  # also of left padding
    with torch.no_grad():
        assert_close(ours(SRC), theirs(SRC).logits)
        expected = theirs(SRC, attention_mask=SRC_KEEP, position_ids=positions).logits
        found = ours(SRC, SRC_PADDING, positions=positions)
    assert_close(found[SRC_KEEP.bool()], expected[SRC_KEEP.bool()])


def test_transformers_loads_a_saved_gpt(tmp_path: Path) -> None:
    ours = our_gpt()
    save_gpt2(ours, tmp_path / "model")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    loaded = load_gpt2(tmp_path / "model").eval()
    with torch.no_grad():
        assert_close(theirs(SRC).logits, ours(SRC))
        torch.testing.assert_close(loaded(SRC), ours(SRC))


@pytest.mark.parametrize(
    "change",
    [
        {"activation_function": "relu"},
        {"n_inner": 7},
        {"model_type": "llama"},
        {"is_causal": False},
        {"add_cross_attention": True},
    ],
    ids=repr,
)
def test_another_architecture_than_gpt2_raises(change: dict[str, Any]) -> None:
    config, weights = to_gpt2(our_gpt())
    with pytest.raises(mw.ArgumentError, match=next(iter(change))):
        from_gpt2(config | change, weights)


def test_weights_that_do_not_match_the_config_raise() -> None:
    config, weights = to_gpt2(our_gpt())
    for wrong in ((config, {}), (config | {"n_layer": 1, "n_embd": 48}, weights)):
        with pytest.raises(mw.ArgumentError, match="weights do not match"):
            from_gpt2(*wrong)
    config, _ = to_gpt2_encoder_decoder(our_seq2seq())
    with pytest.raises(mw.ArgumentError, match="weights do not match"):
        from_gpt2_encoder_decoder(config, {})


def test_a_folder_without_a_whole_checkpoint_raises(tmp_path: Path) -> None:
    with pytest.raises(mw.ArgumentError, match=r"config\.json and model\.safetensors"):
        load_gpt2(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(to_gpt2(our_gpt())[0]))
    (tmp_path / "model.safetensors").write_bytes(b"half")
    with pytest.raises(mw.ArgumentError, match=r"config\.json and model\.safetensors"):
        load_gpt2(tmp_path)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_an_encoder_decoder_of_gpt2s_has_the_same_logits(attention: str) -> None:
    theirs = their_encoder_decoder(attention)
    ours = from_gpt2_encoder_decoder(theirs.config.to_dict(), theirs.state_dict()).eval()
    masks = {"attention_mask": SRC_KEEP, "decoder_attention_mask": TGT_KEEP}
    with torch.no_grad():
        plain, padded = ours(SRC, TGT), ours(SRC, TGT, SRC_PADDING)
        both = ours(SRC, TGT, SRC_PADDING, mw.padding(keep=TGT_KEEP.numpy()))
        unmasked = Seq2Seq(ours.config, mask=mw.everything()).eval()
        unmasked.load_state_dict(ours.state_dict())
        assert_close(plain, their_logits(theirs))
        assert_close(padded, their_logits(theirs, attention_mask=SRC_KEEP))
        assert_close(both, their_logits(theirs, **masks))
        # Each mask changes the logits, so that equal logits mean equal masks.
        assert (padded - plain)[0].abs().max() > 0.01
        assert (unmasked(SRC, TGT) - plain).abs().max() > 0.01


def test_the_decoder_is_a_gpt2_with_cross_attention() -> None:
    ours = our_seq2seq()
    config, weights = to_gpt2_encoder_decoder(ours)
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**config["decoder"])).eval()
    decoder = {
        name.removeprefix("decoder."): x
        for name, x in weights.items()
        if name.startswith("decoder.")
    }
    loaded = theirs.load_state_dict(decoder, strict=False)
    assert (loaded.missing_keys, loaded.unexpected_keys) == (["lm_head.weight"], [])  # tied
    memory = torch.randn(3, 7, 24, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = theirs(TGT, encoder_hidden_states=memory, encoder_attention_mask=SRC_KEEP)
        assert_close(ours.decode(TGT, memory, SRC_PADDING), expected.logits)


def test_transformers_loads_a_saved_seq2seq_and_generates_the_same(tmp_path: Path) -> None:
    ours = our_seq2seq()
    save_gpt2_encoder_decoder(ours, tmp_path)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    assert isinstance(theirs, transformers.EncoderDecoderModel)
    loaded = load_gpt2_encoder_decoder(tmp_path).eval()
    assert loaded.config == ours.config
    with torch.no_grad():
        expected = ours(SRC, TGT, SRC_PADDING)
        assert_close(their_logits(theirs, attention_mask=SRC_KEEP), expected)
        torch.testing.assert_close(loaded(SRC, TGT, SRC_PADDING), expected)
        ids = theirs.generate(SRC, attention_mask=SRC_KEEP, max_new_tokens=9, do_sample=False)
    assert ids[:, 1:].tolist() == ours.generate(SRC, 9, src_padding=SRC_PADDING).tolist()


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("encoder", {"is_causal": True}, "is_causal=True"),
        ("encoder", {"is_causal": ...}, "is_causal=True"),  # the default of transformers
        ("decoder", {"add_cross_attention": False}, "add_cross_attention=False"),
        ("encoder", {"model_type": "bert"}, "model_type='bert'"),
        ("", {"model_type": "gpt2"}, "'gpt2'"),
        ("encoder", {"n_layer": 1}, "n_layer"),
        ("encoder", {"vocab_size": 31}, "weights do not match"),
        ("", {"decoder_start_token_id": None}, "decoder_start_token_id"),
    ],
)
def test_another_encoder_decoder_raises(part: str, change: dict[str, Any], message: str) -> None:
    config, weights = to_gpt2_encoder_decoder(our_seq2seq())
    config["decoder"]["bos_token_id"] = None
    changed = config[part] if part else config
    changed.update(change)
    for name in [name for name, value in change.items() if value is ...]:
        del changed[name]
    with pytest.raises(mw.ArgumentError, match=message):
        from_gpt2_encoder_decoder(config, weights)


def test_models_that_gpt2_cannot_represent_raise() -> None:
    window = mw.window(back=3)
    with pytest.raises(mw.ArgumentError, match=r"window\(back=3\)"):
        to_gpt2(our_gpt(window))
    with pytest.raises(mw.ArgumentError, match=r"window\(back=3\)"):
        to_gpt2_encoder_decoder(Seq2Seq(Seq2SeqConfig(9, 9), mask=window))
    with pytest.raises(mw.ArgumentError, match="use_pointer=False"):
        to_gpt2_encoder_decoder(Seq2Seq(Seq2SeqConfig(9, 9, use_pointer=True)))
