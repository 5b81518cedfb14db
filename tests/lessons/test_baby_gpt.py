"""BabyGPT learns to write: version 3 with one head, version 4 with several."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import torch

from maskwright.apps import language
from maskwright.apps.app import Prompt, Wishes
from maskwright.apps.language import Language, LanguageTask, audited, bigram_loss
from maskwright.apps.training import Course, Outcome, train
from maskwright.models.attention import Head, Heads
from maskwright.models.gpt import GPTConfig
from maskwright.models.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT = "how much wood would a woodchuck chuck if a woodchuck could chuck wood? "
CONTEXT, WIDTH = 32, 32
HEADS = {"v3": 1, "v4": 4}
COURSE = Course(steps=200, rate=0.02, warmup=5, evaluate_every=200, device="cpu")

Trained = dict[str, tuple[LanguageTask, Outcome]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """Both versions after 200 steps on a tongue twister, told again and again."""
    path = tmp_path_factory.mktemp("text") / "twister.txt"
    path.write_text(TEXT * 60)
    sizes = {
        name: GPTConfig(0, context=CONTEXT, width=WIDTH, heads=heads, layers=1)
        for name, heads in HEADS.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language, "CONTEXT", CONTEXT)  # the app's own are larger, and take minutes
        patch.setattr(language, "SIZES", sizes)
        tasks = {name: Language().task(Wishes(version=name, text=path, batch=16)) for name in HEADS}
        yield {name: (task, train(task, COURSE)) for name, task in tasks.items()}


def familiar(text: str) -> float:
    """The share of pairs of letters that stand in the twister, too."""
    known = set(pairwise(TEXT * 2))
    pairs = list(pairwise(text))
    return sum(pair in known for pair in pairs) / len(pairs)


def test_e5_version_3_has_one_head_and_version_4_several(trained: Trained) -> None:
    one, several = (trained[name][0].model.attend for name in HEADS)
    assert isinstance(one, Head)
    assert isinstance(several, Heads)
    assert len(several.heads) == 4


@pytest.mark.parametrize("version", HEADS)
def test_e5_the_loss_falls(trained: Trained, version: str) -> None:
    """At first every letter is as likely as any other; in the end few are a surprise.

    The judge is a model that counts which letter follows which. It looks back by one letter, and
    attention by as many as there are, so attention should beat it.
    """
    task, outcome = trained[version]
    losses = outcome.progress.losses
    letters = task.tokenizer.get_vocab_size()
    assert losses[0] == pytest.approx(torch.tensor(letters).log().item(), abs=0.3)
    assert losses[-1] < losses[0] / 3
    assert task.evaluate() < bigram_loss(task)


def test_e5_several_heads_learn_more_than_one_as_wide(trained: Trained) -> None:
    one, several = (trained[name][0].evaluate() for name in HEADS)
    assert several < one / 2


@pytest.mark.parametrize("version", HEADS)
def test_e5_it_writes_what_looks_like_the_text(trained: Trained, version: str) -> None:
    """Before training one in three pairs of letters is familiar, or fewer; afterwards nearly all."""
    task, _ = trained[version]
    prompt = Prompt(text="how ", count=100, temperature=0.8, seed=0)
    [after] = Language().use(task, prompt)

    torch.manual_seed(0)
    new = language.make_model(version, task.tokenizer.get_vocab_size(), task.mask)
    [before] = Language().use(language.Trained(new, task.tokenizer, task.mask), prompt)

    assert after.startswith("how ")
    assert len(after) == 4 + 100
    assert familiar(before) < 0.35
    assert familiar(after) > 0.9


@pytest.mark.parametrize("version", HEADS)
def test_e5_letter_by_letter_it_writes_what_one_pass_predicts(
    trained: Trained, version: str
) -> None:
    """Training looks at all places in one pass; writing asks for the last one, again and again."""
    task, _ = trained[version]
    start = torch.tensor([task.tokenizer.encode("how ").ids])
    written = task.model.generate(start, CONTEXT - 4, Sampling(temperature=0))
    with torch.no_grad():
        predicted = task.model(written[:, :-1]).argmax(-1)
    assert written[0, 4:].tolist() == predicted[0, 3:].tolist()


@pytest.mark.parametrize("version", HEADS)
def test_e5_and_it_never_looked_ahead(trained: Trained, version: str) -> None:
    audited(trained[version][0]).assert_ok()
