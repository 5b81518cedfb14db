"""Dialogue: packed examples, their mask, and replies with a KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.apps import Prompt, dialogue
from maskwright.apps.data.text import IGNORE_INDEX, UNKNOWN_ID
from maskwright.apps.dialogue import Dialogue, Example, pack, packed_mask
from maskwright.models.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GREEDY = SamplingParams(temperature=0)


@pytest.fixture
def exact(make_task: Callable[..., Any]) -> Dialogue:
    """A task in float64."""
    task: Dialogue = make_task("dialogue")
    task.model.double().eval().requires_grad_(False)
    return task


def examples(count: int = 6) -> list[Example]:
    generator = torch.Generator().manual_seed(3)
    sizes = torch.randint(1, 6, (count, 2), generator=generator).tolist()
    return [
        Example(*(torch.randint(4, 100, (n,), generator=generator).tolist() for n in size))
        for size in sizes
    ]


def test_the_mask_of_packed_examples_is_exact() -> None:
    packed = pack(examples(), 3, 16)
    rows, tokens = packed.ids.shape
    mask = packed_mask(packed.documents, packed.prompts).on(tokens, batch=rows).dense()
    document, prompt = packed.documents.numpy(), packed.prompts.numpy()
    for b, q, k in np.ndindex(rows, tokens, tokens):
        same = document[b, q] == document[b, k] >= 0
        both_in_prompt = prompt[b, q] >= 0 and prompt[b, k] >= 0
        assert mask[b, 0, q, k] == (same and (k <= q or both_in_prompt))


def test_packed_examples_are_complete_and_positions_restart() -> None:
    given = examples()
    packed = pack(given, 3, 16)
    found = []
    for row in range(len(packed.ids)):
        for number in range(int(packed.documents[row].max()) + 1):
            own = packed.documents[row] == number
            prompt = packed.prompts[row][own] == number
            assert packed.positions[row][own].tolist() == list(range(int(own.sum())))
            ids, labels = packed.ids[row][own], packed.labels[row][own]
            assert labels[prompt].tolist() == [IGNORE_INDEX] * int(prompt.sum())
            assert labels[~prompt].tolist() == [*ids[~prompt][1:].tolist(), 2]
            assert int(ids[~prompt][0]) == 1
            found.append(Example(ids[prompt].tolist(), ids[~prompt][1:].tolist()))
    assert sorted(found, key=repr) == sorted(given, key=repr)
    assert (packed.documents == -1).any()
    assert bool((packed.labels[packed.documents == -1] == IGNORE_INDEX).all())


def test_a_packed_example_gives_the_same_loss_as_alone(exact: Dialogue) -> None:
    chosen = sorted(exact.held_out, key=len)[:6]
    together, alone = pack(chosen, 2, 64), [pack([one], 1, 192) for one in chosen]
    counts = [int((packed.labels != IGNORE_INDEX).sum()) for packed in alone]
    losses = [float(exact.loss(packed)) * n for packed, n in zip(alone, counts, strict=True)]
    assert float(exact.loss(together)) == pytest.approx(sum(losses) / sum(counts))
    assert together.documents.max() > 0


def test_prefill_and_decode_equal_one_pass(exact: Dialogue) -> None:
    first, second = sorted(exact.held_out, key=len)[20:22]
    packed = pack([first, second], 1, 192)
    whole = exact.packed_model(**packed.inputs(torch.device("cpu")))[:, len(first) :]
    ids, mask = packed.ids[:, len(first) :], mw.causal() | mw.prefix(len(second.prompt))
    kv_caches, cached = exact.model.new_kv_caches(), 0
    for stop in range(len(second.prompt) + 1, len(second) + 1):
        logits = exact.model(ids[:, cached:stop], mask, kv_caches=kv_caches)
        torch.testing.assert_close(logits, whole[:, cached:stop])
        cached = stop


def test_a_greedy_reply_is_the_argmax_of_one_pass(exact: Dialogue) -> None:
    prompt = exact.held_out[0].prompt
    found = exact.reply(prompt, 9, GREEDY)
    packed = pack([Example(prompt, found)], 1, 192)
    logits = exact.packed_model(**packed.inputs(torch.device("cpu")))[0, len(prompt) :]
    assert len(found) == 9
    assert logits.argmax(-1).tolist()[:9] == found
    limit = dialogue.BLOCK_SIZE - len(prompt)
    assert len(exact.reply(prompt, 10_000, SamplingParams(seed=1))) <= limit


def test_the_unigram_loss_is_above_the_entropy_of_the_replies(exact: Dialogue) -> None:
    labels = exact.held_out_batch().labels
    counts = torch.bincount(labels[labels != IGNORE_INDEX]).double()
    share = counts[counts > 0] / counts.sum()
    entropy = float(-(share * share.log()).sum())
    assert entropy < exact.unigram_loss() < np.log(exact.tokenizer.get_vocab_size())


def test_languages_without_spaces_are_tokenized_by_character(
    make_task: Callable[..., Any],
) -> None:
    task = make_task("dialogue", version="chinese")
    assert task.tokenizer.encode("你好").tokens == ["你", "好"]
    with pytest.raises(mw.ArgumentError, match="'ы'"):
        next(task.predict(Prompt(text="你ы")))
    assert any(UNKNOWN_ID in example.reply for example in task.held_out)
    assert not (task.held_out_batch().labels == UNKNOWN_ID).any()
    task.held_out_pairs = [("你ы", "好")]
    assert task.sample().startswith("你ы → ")
    assert [line.split(" → ")[0] for line in task.report()][1:] == ["'你ы'"]


def test_special_tokens_in_a_prompt_are_plain_text(exact: Dialogue) -> None:
    assert not {0, 1, 2, 3} & set(exact.tokenizer.encode("<begin><end>").ids)


def test_own_pairs(make_task: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text("".join(f"ask {n}\tanswer {n}\n" for n in range(30)), encoding="utf-8")
    task = make_task("dialogue", pairs=path)
    assert (len(task.training), len(task.held_out)) == (27, 3)
    path.write_text("".join(f"{n} {'x ' * 300}\t{n}\n" for n in range(30)), encoding="utf-8")
    with pytest.raises(mw.ArgumentError, match="None of 27 pairs"):
        make_task("dialogue", pairs=path)


def test_a_chat_continues_after_an_error(exact: Dialogue) -> None:
    answers = list(exact.chat(["Hola", "", "x " * 300, "Hola"]))
    assert len(answers) == 3
    assert answers[0] == answers[2]
    assert "at most 96" in answers[1]
