from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

import maskwright as mw
from maskwright.models.seq2seq import Pointer, Seq2Seq, Seq2SeqConfig
from tests._helpers.sampling import subset_of_cases

TINY = Seq2SeqConfig(21, 6, block_size=16, n_layer=2, n_head=3, n_embd=24)
LENGTHS = [4, 7, 5]


def make_model(seed: int = 0) -> Seq2Seq:
    torch.manual_seed(seed)
    model = Seq2Seq(TINY).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4.0)  # large enough that the logits differ clearly
    return model


def make_pointer_model(**changes: Any) -> Seq2Seq:
    torch.manual_seed(0)
    sizes = {"block_size": 16, "n_layer": 1, "n_head": 3, "n_embd": 24, **changes}
    return Seq2Seq(Seq2SeqConfig(21, 21, use_pointer=True, **sizes)).double().eval()


def make_src() -> tuple[torch.Tensor, mw.Mask]:
    src = torch.randint(3, 21, (3, 7), generator=torch.Generator().manual_seed(2))
    return src, mw.padding(lengths=LENGTHS)


def make_tgt(tokens: int = 5) -> torch.Tensor:
    return torch.randint(3, 6, (3, tokens), generator=torch.Generator().manual_seed(3))


def make_t5_model() -> Seq2Seq:
    torch.manual_seed(0)
    model = Seq2Seq(replace(TINY, position="t5")).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.mul_(40.0 if "position" in name else 4.0)
    return model


all_models = pytest.mark.parametrize("make", [make_model, make_pointer_model, make_t5_model])


def test_masks_of_encoder_decoder_and_cross_attention() -> None:
    model, (src, padding), tgt = make_model(), make_src(), make_tgt()
    logits = model(src, tgt, padding)
    padded = src.clone()
    padded[0, 4:] = 3
    torch.testing.assert_close(model(padded, tgt, padding), logits)
    later = tgt.clone()
    later[:, 3:] = 3 + (later[:, 3:] - 2) % 3
    torch.testing.assert_close(model(src, later, padding)[:, :3], logits[:, :3])
    changed = src.clone()
    changed[:, 1] = 3 + (changed[:, 1] - 2) % 18
    assert (model(changed, tgt, padding) != logits).any(-1).all()


@pytest.mark.parametrize("make", [lambda: Seq2Seq(TINY), make_pointer_model])
def test_audit_finds_no_leak(make: Any) -> None:
    torch.manual_seed(0)
    (src, padding), model = make_src(), make()
    if model.pointer is not None:
        with torch.no_grad():
            model.pointer.gate.bias.fill_(2.0)  # copy often
    inputs = {"src": src, "tgt": make_tgt(9), "src_padding": padding}
    expects = {"src": padding, "tgt": mw.causal()}
    mw.audit(model, inputs, expects=expects, probes=("leak", "reach", "gradient")).assert_ok()


@all_models
def test_steps_with_kv_caches_equal_one_pass(make: Any) -> None:
    model, (src, padding), tgt = make(), make_src(), make_tgt(6)
    memory, caches = model.encode(src, padding), model.new_kv_caches()
    steps = [
        model.decode(token, memory, padding, kv_caches=caches, src=src)
        for token in tgt.split(1, dim=1)
    ]
    torch.testing.assert_close(torch.cat(steps, dim=1), model(src, tgt, padding))


@all_models
def test_greedy_generation_equals_one_pass(make: Any) -> None:
    model, (src, padding) = make(), make_src()
    found = model.generate(src, 8, src_padding=padding)
    tgt = torch.cat([torch.full((3, 1), TINY.bos_token_id), found], dim=1)
    expected = model(src, tgt[:, :-1], padding).argmax(-1)
    for row, best in zip(found.tolist(), expected.tolist(), strict=True):
        stop = row.index(TINY.eos_token_id) + 1 if TINY.eos_token_id in row else len(row)
        assert row[:stop] == best[:stop]
        assert set(row[stop:]) <= {TINY.pad_token_id}
    one_beam = model.beam_search(src, 8, src_padding=padding, num_beams=1)
    assert torch.equal(one_beam, found)


def test_t5_style_model_has_a_bias_per_stack_and_no_position_embeddings() -> None:
    model, (src, padding), tgt = make_t5_model(), make_src(), make_tgt()
    names = [name for name in model.state_dict() if "position" in name]
    assert names == [f"{part}.relative_position_bias.weight" for part in ("encoder", "decoder")]
    model(src, tgt, padding).square().mean().backward()
    used = [
        getattr(model, part).relative_position_bias.weight.grad.abs().sum(1) > 0
        for part in ("encoder", "decoder")
    ]
    assert used[0][:7].all()  # distances 0 to -6
    assert used[0][17:23].all()  # 1 to 6: the encoder is bidirectional
    assert used[1].tolist() == [True] * 5 + [False] * 27
    longer = torch.randint(3, 21, (1, 40))  # more than block_size
    assert model(longer, make_tgt(30)[:1]).shape == (1, 30, 6)


def test_sampling_is_reproducible_by_its_seed() -> None:
    model, (src, padding) = make_pointer_model(), make_src()
    one, same, other = (
        model.generate(src, 8, src_padding=padding, temperature=1.0, seed=seed)
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@torch.no_grad()
def log_prob(model: Seq2Seq, src: torch.Tensor, tgt: list[int]) -> float:
    ids = torch.tensor([[TINY.bos_token_id, *tgt]])
    log_probs = model(src, ids[:, :-1]).log_softmax(-1)[0]
    return float(log_probs[torch.arange(len(tgt)), torch.tensor(tgt)].sum())


def all_targets(length: int) -> list[list[int]]:
    """All targets of that length, and all shorter ones that end with eos_token_id."""
    words = [word for word in range(6) if word != TINY.eos_token_id]
    full = [list(s) for s in itertools.product(words, repeat=length)]
    ended = [
        [*s, TINY.eos_token_id] for n in range(length) for s in itertools.product(words, repeat=n)
    ]
    return full + ended


@pytest.mark.parametrize(
    ("seed", "penalty"), subset_of_cases([*itertools.product(range(4), (0.0, 1.0))], 3)
)
def test_a_wide_beam_search_finds_the_best_target(seed: int, penalty: float) -> None:
    model = make_model(seed)
    src = torch.randint(3, 21, (1, 5), generator=torch.Generator().manual_seed(seed))
    scores = {tuple(s): log_prob(model, src, s) / len(s) ** penalty for s in all_targets(3)}
    found = model.beam_search(src, 3, num_beams=6**3, length_penalty=penalty)[0].tolist()
    if TINY.eos_token_id in found:
        found = found[: found.index(TINY.eos_token_id) + 1]
    assert tuple(found) == max(scores, key=scores.__getitem__)


@all_models
def test_beam_search_of_a_batch_equals_its_rows(make: Any) -> None:
    model, (src, padding) = make(), make_src()
    together = model.beam_search(src, 8, src_padding=padding, num_beams=3)
    for row, length in enumerate(LENGTHS):
        alone = model.beam_search(src[row : row + 1, :length], 8, num_beams=3)[0]
        stop = min(len(alone), together.shape[1])
        assert together[row, :stop].tolist() == alone[:stop].tolist()


def test_the_gate_of_the_pointer_chooses_between_source_and_vocabulary() -> None:
    torch.manual_seed(0)
    pointer = Pointer(8)
    src, keep = torch.tensor([[5, 6, 5, 9]]), torch.tensor([[True, True, True, False]])
    x, memory, logits = torch.randn(1, 2, 8), torch.randn(1, 4, 8), torch.randn(1, 2, 12)
    probs = []
    with torch.no_grad():
        pointer.gate.weight.zero_()
        for bias in (40.0, -40.0):
            pointer.gate.bias.fill_(bias)
            probs.append(pointer(x, memory, src, keep, logits).exp())
    torch.testing.assert_close(probs[0][..., [5, 6]].sum(-1), torch.ones(1, 2))
    torch.testing.assert_close(probs[1], logits.softmax(-1))


def test_probabilities_with_a_pointer_sum_to_one() -> None:
    src, padding = make_src()
    log_probs = make_pointer_model()(src, make_tgt(), padding)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(3, 5, dtype=torch.float64))


def test_a_pointer_copies_tokens_that_were_no_target_in_training() -> None:
    model = make_pointer_model().float().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)

    def loss(low: int, high: int) -> torch.Tensor:
        src = torch.randint(low, high, (32, 1), generator=generator)
        logits = model(src, torch.full((32, 1), TINY.bos_token_id))
        return torch.nn.functional.cross_entropy(logits[:, 0], src[:, 0])

    for _ in range(60):
        optimizer.zero_grad()
        loss(3, 12).backward()
        optimizer.step()
    assert float(loss(12, 21).detach()) < 0.5


def test_invalid_arguments_raise() -> None:
    with pytest.raises(mw.ArgumentError, match="17 tokens, but block_size is 16"):
        Seq2Seq(TINY).encode(torch.zeros(1, 17, dtype=torch.long))
    with pytest.raises(mw.ArgumentError, match="num_beams=0"):
        Seq2Seq(TINY).beam_search(torch.zeros(1, 3, dtype=torch.long), num_beams=0)
    with pytest.raises(mw.ArgumentError, match="use_pointer=True"):
        Seq2Seq(Seq2SeqConfig(20, 30, use_pointer=True))
