from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

import maskwright as mw
from maskwright.models.gpt import GPT, GPTConfig
from maskwright.models.gpt2 import from_gpt2, load_gpt2, save_gpt2, to_gpt2

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers")

IDS = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(0))


def theirs() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=50,
        n_positions=24,
        n_embd=24,
        n_head=3,
        n_layer=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config).eval()


def test_a_gpt2_has_the_same_logits_here() -> None:
    model = theirs()
    ours = from_gpt2(model.config.to_dict(), model.state_dict()).eval()
    with torch.no_grad():
        torch.testing.assert_close(ours(IDS), model(IDS).logits, atol=1e-5, rtol=1e-5)


def test_left_padding_gives_the_same_logits_too() -> None:
    model = theirs()
    ours = from_gpt2(model.config.to_dict(), model.state_dict()).eval()
    keep = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1], [1] * 9])
    positions = (keep.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        want = model(IDS, attention_mask=keep, position_ids=positions).logits
        found = ours(IDS, mw.padding(keep=keep.numpy()), positions=positions)
    torch.testing.assert_close(found[keep.bool()], want[keep.bool()], atol=1e-5, rtol=1e-5)


def test_a_gpt_can_be_loaded_by_transformers(tmp_path: Path) -> None:
    torch.manual_seed(1)
    ours = GPT(GPTConfig(vocabulary=50, context=24, width=24, heads=3, layers=2)).eval()
    save_gpt2(ours, tmp_path / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    with torch.no_grad():
        torch.testing.assert_close(model(IDS).logits, ours(IDS), atol=1e-5, rtol=1e-5)
        back = load_gpt2(tmp_path / "model").eval()
        torch.testing.assert_close(back(IDS), ours(IDS))


def test_what_is_another_architecture_is_refused(tmp_path: Path) -> None:
    model = theirs()
    config = model.config.to_dict()
    changes: list[dict[str, object]] = [
        *({"activation_function": "relu"}, {"n_inner": 7}, {"model_type": "llama"}),
        *({"is_causal": False}, {"add_cross_attention": True}),
    ]
    for change in changes:
        with pytest.raises(mw.ArgumentError, match=next(iter(change))):
            from_gpt2({**config, **change}, model.state_dict())
    with pytest.raises(mw.ArgumentError, match=r"under window\(back=3\)"):
        to_gpt2(GPT(GPTConfig(9, 8, 8, 2, 1), mask=mw.window(back=3)))
    with pytest.raises(mw.ArgumentError, match="not those of this GPT-2"):
        from_gpt2(config, {})
    with pytest.raises(mw.ArgumentError, match="not those of this GPT-2"):
        from_gpt2({**config, "n_layer": 1, "n_embd": 48}, model.state_dict())
    with pytest.raises(mw.ArgumentError, match="holds no GPT-2"):
        load_gpt2(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(to_gpt2(GPT(GPTConfig(9, 8, 8, 2, 1)))[0]))
    (tmp_path / "model.safetensors").write_bytes(b"half")
    with pytest.raises(mw.ArgumentError, match="holds no GPT-2"):
        load_gpt2(tmp_path)
