from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.apps import dialogue
from maskwright.apps.app import Prompt, Wishes
from maskwright.apps.checkpoints import load_progress, load_weights
from maskwright.apps.conversations import corpus, split
from maskwright.apps.dialogue import Dialogue, DialogueTask, audited, reply, unigram_loss
from maskwright.apps.packing import SKIP, Example, pack, packed_mask
from maskwright.apps.training import Course, train
from maskwright.models.sampling import Sampling

if TYPE_CHECKING:
    from pathlib import Path

APP = Dialogue()
LONG = b"".join(b"%d %s\t%d\n" % (n, b"x " * 300, n) for n in range(30))
TINY = replace(dialogue.SIZE, width=32, heads=2, layers=2, dropout=0.0)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialogue, "SIZE", TINY)


def task(**wishes: object) -> DialogueTask:
    return APP.task(Wishes(**{"version": "spanish", "batch": 4, **wishes}))  # type: ignore[arg-type]


def exact() -> DialogueTask:
    made = task()
    made.model.double().eval().requires_grad_(False)
    return made


def examples(count: int = 6) -> list[Example]:
    source = torch.Generator().manual_seed(3)
    sizes = torch.randint(1, 6, (count, 2), generator=source).tolist()
    return [
        Example(*(torch.randint(4, 100, (n,), generator=source).tolist() for n in size))
        for size in sizes
    ]


def test_the_mask_of_packed_rows_is_exact() -> None:
    rows = pack(examples(), 3, 16, 1, 2)
    tokens = rows.ids.shape[1]
    mask = packed_mask(rows.documents, rows.prompts).on(tokens, batch=len(rows.ids)).dense()
    document, prompt = rows.documents.numpy(), rows.prompts.numpy()
    for b, q, k in np.ndindex(len(rows.ids), tokens, tokens):
        same = document[b, q] == document[b, k] >= 0
        both_in_prompt = prompt[b, q] >= 0 and prompt[b, k] >= 0
        assert mask[b, 0, q, k] == (same and (k <= q or both_in_prompt))


def test_packed_examples_are_whole_and_positions_start_anew() -> None:
    given = examples()
    rows = pack(given, 3, 16, 1, 2)
    found = []
    for row in range(len(rows.ids)):
        for number in range(int(rows.documents[row].max()) + 1):
            own = rows.documents[row] == number
            asked = rows.prompts[row][own] == number
            assert rows.positions[row][own].tolist() == list(range(int(own.sum())))
            ids, targets = rows.ids[row][own], rows.targets[row][own]
            assert targets[asked].tolist() == [SKIP] * int(asked.sum())
            assert targets[~asked].tolist() == [*ids[~asked][1:].tolist(), 2]
            assert int(ids[~asked][0]) == 1
            found.append(Example(ids[asked].tolist(), ids[~asked][1:].tolist()))
    assert sorted(found, key=repr) == sorted(given, key=repr)
    assert (rows.documents == -1).any()
    assert bool((rows.targets[rows.documents == -1] == SKIP).all())


def test_an_example_among_others_gives_what_it_gives_alone() -> None:
    made = exact()
    chosen = sorted(made.held_out, key=len)[:6]
    together = pack(chosen, 2, 64, 1, 2)
    alone = [pack([one], 1, 192, 1, 2) for one in chosen]
    counts = [int((rows.targets != SKIP).sum()) for rows in alone]
    losses = [float(made.loss(rows)) * n for rows, n in zip(alone, counts, strict=True)]
    assert float(made.loss(together)) == pytest.approx(sum(losses) / sum(counts))
    assert together.documents.max() > 0


def test_one_pass_equals_step_by_step() -> None:
    made = exact()
    first, second = sorted(made.held_out, key=len)[20:22]
    rows = pack([first, second], 1, 192, 1, 2)
    whole = made.packed(**rows.inputs(torch.device("cpu")))[:, len(first) :]
    ids = rows.ids[:, len(first) :]
    documents = torch.zeros_like(ids)
    prompts = torch.where(torch.arange(ids.shape[1])[None] < len(second.prompt), 0, -1)
    caches, read = made.model.new_caches(), 0
    for stop in range(len(second.prompt) + 1, len(second) + 1):
        positions = torch.arange(read, stop)[None]
        given = (ids[:, read:stop], documents[:, :stop], prompts[:, :stop], positions)
        torch.testing.assert_close(made.packed(*given, caches), whole[:, read:stop])
        read = stop


def test_a_reply_is_the_likeliest_of_one_pass() -> None:
    made = exact()
    prompt = made.held_out[0].prompt
    found = reply(made, prompt, 9, Sampling(temperature=0))
    rows = pack([Example(prompt, found)], 1, 192, 1, 2)
    logits = made.packed(**rows.inputs(torch.device("cpu")))[0, len(prompt) :]
    assert len(found) == 9
    assert logits.argmax(-1).tolist()[:9] == found


def test_a_reply_ends_where_the_context_does() -> None:
    made = exact()
    found = reply(made, made.held_out[0].prompt, 10_000, Sampling(seed=1))
    assert len(found) <= dialogue.CONTEXT - len(made.held_out[0].prompt)


@pytest.mark.parametrize("language", ["english", "spanish", "chinese"])
def test_no_prompt_and_no_reply_is_on_both_sides(language: str) -> None:
    training, held_out = split(corpus(language))
    assert len(held_out) > 0.05 * len(training)
    for side in (0, 1):
        assert not {p[side].casefold() for p in training} & {p[side].casefold() for p in held_out}


def test_batches_depend_on_seed_step_and_part_only() -> None:
    one, other = task(), task()
    other.batch(0, 0)
    assert one.config() == other.config()
    assert torch.equal(one.batch(7, 1).ids, other.batch(7, 1).ids)
    assert not torch.equal(one.batch(7, 1).ids[:, :50], one.batch(8, 1).ids[:, :50])
    assert not torch.equal(one.batch(7, 1).ids[:, :50], one.batch(7, 0).ids[:, :50])


def test_it_learns_reports_and_comes_back(tmp_path: Path) -> None:
    made = task()
    course = Course(steps=30, rate=5e-3, warmup=3, evaluate_every=30, device="cpu")
    outcome = train(made, course, tmp_path)
    losses = outcome.progress.losses
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    lines = list(APP.report(made))
    assert "held-out perplexity" in lines[0]
    assert "counting tokens" in lines[0]
    assert len(lines) == 5
    assert lines[-1].startswith("Packed respects documents(")
    assert made.held_out_pairs[0][0] in APP.sample(made)
    again = APP.again(load_progress(tmp_path / "best", "dialogue"))
    load_weights(tmp_path / "best", again.model)
    said = Prompt(text="¿Quién eres?", count=8, temperature=1.0, seed=4)
    assert list(APP.use(again, said)) == list(APP.use(made, said))


def test_the_unigram_model_is_the_best_without_a_prompt() -> None:
    made = task()
    targets = made.held_out_rows().targets
    counts = torch.bincount(targets[targets != SKIP]).double()
    share = counts[counts > 0] / counts.sum()
    own_entropy = float(-(share * share.log()).sum())
    assert own_entropy < unigram_loss(made) < np.log(made.tokenizer.get_vocab_size())


def test_the_model_obeys_the_mask_of_its_rows() -> None:
    audited(task()).assert_ok()


@pytest.mark.parametrize("wrong", ["everything()", "causal()"])
def test_another_mask_is_taken_and_is_not_that_of_the_rows(wrong: str) -> None:
    made = task(mask=wrong)
    audited(made).assert_ok()
    assert made.config()["mask"] == wrong
    made.mask = None  # now the mask of the rows is expected, and the model still has the other
    assert not audited(made).ok


def test_letters_in_chinese_and_pieces_elsewhere() -> None:
    made = task(version="chinese")
    assert made.tokenizer.encode("你好").tokens == ["你", "好"]
    with pytest.raises(mw.ArgumentError, match=r"never seen 'ы'. Leave it out"):
        next(APP.use(made, Prompt(text="你ы")))
    unknown = made.tokenizer.token_to_id("<unknown>")
    assert any(unknown in example.reply for example in made.held_out)
    assert not (made.held_out_rows().targets == unknown).any()


def test_marks_of_the_model_are_plain_letters_in_a_prompt() -> None:
    ids = task().tokenizer.encode("<begin><end>").ids
    assert not {0, 1, 2, 3} & set(ids)


def test_own_pairs(tmp_path: Path) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text("".join(f"ask {n}\tanswer {n}\n" for n in range(30)), encoding="utf-8")
    made = task(version=None, pairs=path)
    assert len(made.training) == 27
    assert len(made.held_out) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"no tab here\n" * 30, "line 1: 'no tab here' is no pair. Put a tab"),
        (b"a\tb\n", "has 1 pairs, and 20 are the least"),
        (b"a\tb \xff\n" * 30, "is not UTF-8"),
        (b"a\tb\n" * 30, "so alike that none can be held out. Give more"),
        (LONG, "No pair of 27 fits into 192 tokens. Give shorter"),
    ],
)
def test_bad_pairs_are_told(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "pairs.txt"
    path.write_bytes(text)
    with pytest.raises(mw.ArgumentError, match=said):
        task(pairs=path)


def test_bad_prompts_and_versions_are_told() -> None:
    made = task()
    with pytest.raises(mw.ArgumentError, match=r"The prompt is empty\. Give one"):
        next(APP.use(made, Prompt(text=" ")))
    with pytest.raises(
        mw.ArgumentError, match=r"96 are the most that leave room for a reply. Give"
    ):
        next(APP.use(made, Prompt(text="x " * 300)))
    with pytest.raises(
        mw.ArgumentError, match=r"no version klingon of dialogue. Give one of english"
    ):
        task(version="klingon")


def test_a_chat_goes_on_after_a_line_that_can_not_be_answered() -> None:
    answers = list(Dialogue().chat(task(), ["Hola", "", "x " * 300, "Hola"]))
    assert len(answers) == 3
    assert answers[0] == answers[2]
    assert answers[1].endswith("Give a shorter one.")
