"""Masked words: an encoder that sees both ways fills in what was blanked out.

The data is the prose of Python's own help and docstrings, or any text, sentence by sentence.
Sentences of a batch are filled up to the same length, and padding is all the mask there is. Next to
the model stands one that always says the commonest pieces: it shows what the words around add.
"""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn.functional import cross_entropy

from maskwright.apps.app import Prompt, Wishes, version_of
from maskwright.apps.blanks import SKIP, Blanks, blanked, sentences, split
from maskwright.apps.docstrings import docstring_pairs
from maskwright.apps.texts import python_topics, read_text
from maskwright.apps.tokens import SPECIAL, by_piece
from maskwright.apps.training import Course, seeded
from maskwright.auditing.run import audit
from maskwright.core.atoms import everything
from maskwright.core.atoms import padding as padding_of
from maskwright.core.parser import parse
from maskwright.errors import ArgumentError
from maskwright.models.bert import Bert, BertConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maskwright.apps.checkpoints import Progress
    from maskwright.auditing.report import AuditReport
    from maskwright.core.expr import Mask

MASK = "<mask>"
BLANK = re.compile(rf"\s*(?:_{{3,}}|{MASK})")  # a piece of a word holds the space before it
CONTEXT, BATCH, PIECES = 64, 64, 1000
SIZE = BertConfig(0, context=CONTEXT, width=128, heads=4, layers=3)
MOST_HELD_OUT = 256  # sentences, at each evaluation
PROBES = ("leak", "reach", "padding")


class Padded(nn.Module):
    """An encoder that is told its padding as an array, as (B, T), which an audit can cut."""

    def __init__(self, bert: Bert) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, ids: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        """Logits of the token at every place: (B, T) → (B, T, vocabulary)."""
        logits: torch.Tensor = self.bert(ids, padding_of(keep=keep))
        return logits


class MaskedWordsTask:
    """Sentences, cut in two, and a model that is to name what was blanked out."""

    name = "masked-words"

    def __init__(self, wishes: Wishes, text: str) -> None:
        self.wishes, self.mask = wishes, wishes.mask_or(everything())
        self.sentences, self.held_out_sentences = split(sentences(text))
        self.tokenizer = by_piece(self.sentences, PIECES)
        self.tokenizer.add_special_tokens([MASK])
        self.tokenizer.encode_special_tokens = True  # who writes <end> means these letters
        self.training = sorted((self._ids(one) for one in self.sentences), key=len)
        self.held_out = [self._ids(one) for one in self.held_out_sentences]
        torch.manual_seed(wishes.seed)
        self.model = make_model(self.tokenizer, self.mask)
        self.padded = Padded(self.model)
        self.size = wishes.batch or BATCH

    def config(self) -> dict[str, Any]:
        """The make of the model, its pieces, and where the text was from."""
        return {
            "mask": repr(self.mask),
            "tokenizer": self.tokenizer.to_str(),
            "text": None if self.wishes.text is None else str(self.wishes.text),
            "batch": self.size,
            "seed": self.wishes.seed,
            "model": asdict(self.model.config),
        }

    def batch(self, step: int, part: int) -> Blanks:
        """Some sentences of about the same length, so that there is little padding, with blanks."""
        source, count = seeded(self.wishes.seed, step, part), len(self.training)
        start = torch.randint(count, (), generator=source)
        near = torch.randperm(4 * self.size, generator=source)[: self.size]
        drawn = ((start + near) % count).tolist()
        return self._blanked([self.training[n] for n in drawn], source)

    def loss(self, batch: Blanks) -> torch.Tensor:
        """How surprised the model is by what stood in the blanks, in nats."""
        device = self.model.words.weight.device
        logits = self.padded(batch.ids.to(device), batch.keep)
        targets = batch.targets.to(device)
        return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=SKIP)

    def tokens(self, batch: Blanks) -> int:
        """Tokens of a batch, without padding."""
        return int(batch.keep.sum())

    def evaluate(self) -> float:
        """The loss on sentences that were held out, always with the same blanks."""
        with torch.no_grad():
            return float(self.loss(self.held_out_blanks()))

    def held_out_blanks(self) -> Blanks:
        """Sentences that were held out, with the same blanks every time."""
        return self._blanked(self.held_out[:MOST_HELD_OUT], seeded(0, 0))

    def _ids(self, sentence: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(sentence).ids[:CONTEXT]
        return ids

    def _blanked(self, rows: Sequence[Sequence[int]], source: torch.Generator) -> Blanks:
        return blanked(rows, self.tokenizer.get_vocab()[MASK], source)


class MaskedWords:
    """Learns which words fit where, and fills in blanks."""

    name = "masked-words"
    summary = "fills in words that were blanked out: an encoder that sees both ways"
    versions = ("bert",)

    def course(self, wishes: Wishes) -> Course:
        """A few minutes on two cores."""
        return Course(steps=1200, rate=2e-3, warmup=100, evaluate_every=100, seed=wishes.seed)

    def task(self, wishes: Wishes) -> MaskedWordsTask:
        """The text asked for, or Python's own."""
        version_of(self.name, self.versions, wishes.version)
        text = python_prose() if wishes.text is None else read_text(wishes.text)
        return MaskedWordsTask(wishes, text)

    def again(self, progress: Progress) -> Trained:
        """The model of a checkpoint, and its pieces."""
        tokenizer = Tokenizer.from_str(progress.config["tokenizer"])
        tokenizer.encode_special_tokens = True
        return Trained(make_model(tokenizer, parse(progress.config["mask"])), tokenizer)

    def sample(self, task: MaskedWordsTask) -> str:
        """A sentence that was held out, with a word blanked, and filled in."""
        return next(self._examples(task), "")

    def report(self, task: MaskedWordsTask) -> Iterator[str]:
        """Its loss and its hits beside those of counting, some blanks, and the audit of its mask."""
        task.model.eval()
        loss, hits = scores(task)
        counted, common = unigram_scores(task)
        yield (
            f"held-out loss {loss:.3f} nats a blank, {hits:.1%} right; "
            f"counting pieces: {counted:.3f} nats, {common:.1%} right"
        )
        yield from islice(self._examples(task), 3)
        yield str(audited(task)).splitlines()[0]

    def judged(self, task: MaskedWordsTask, honest: MaskedWordsTask) -> tuple[str, float]:
        """The share of blanks that it fills with what stood there."""
        del honest
        return "blanks that it fills rightly", scores(task)[1]

    def use(self, task: MaskedWordsTask | Trained, prompt: Prompt) -> Iterator[str]:
        """The text filled in, and for each blank the best guesses. A blank is ___ or <mask>."""
        task.model.eval()
        ids = _with_blanks(task.tokenizer, prompt.text or "")
        hidden = task.tokenizer.get_vocab()[MASK]
        chances = _chances(task, ids)  # (T, vocabulary)
        best = chances.argmax(-1).tolist()
        filled = [best[n] if token == hidden else token for n, token in enumerate(ids)]
        yield task.tokenizer.decode(filled).strip()
        count = 5 if prompt.count is None else prompt.count
        places = [n for n, token in enumerate(ids) if token == hidden]
        for number, place in enumerate(places, start=1):
            top = chances[place].topk(min(count, chances.shape[-1]))
            pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
            told = ", ".join(f"{task.tokenizer.decode([n]).strip()} {p:.0%}" for n, p in pairs)
            yield f"blank {number}: {told}"

    def _examples(self, task: MaskedWordsTask) -> Iterator[str]:
        """Of sentences that were held out, a word of one piece is blanked out, and filled in."""
        for sentence in task.held_out_sentences:
            words = sentence.split()
            places = [
                n
                for n, word in enumerate(words)
                if word.isalpha() and len(task.tokenizer.encode(f" {word}").ids) == 1
            ]
            if not places or len(task.tokenizer.encode(sentence).ids) > CONTEXT:
                continue
            place = places[len(places) // 2]
            text = " ".join([*words[:place], "___", *words[place + 1 :]])
            guesses = list(self.use(task, Prompt(text=text, count=3)))[1]
            yield f"{text} → {guesses.partition(': ')[2]} (it was {words[place]})"


class Trained:
    """A model that was trained, without its data."""

    def __init__(self, model: Bert, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer, self.mask = model, tokenizer, model.mask
        self.padded = Padded(model)


def python_prose() -> str:
    """Python's own help, and the bodies of docstrings."""
    bodies, _ = docstring_pairs()
    return "\n\n".join([python_topics(), *(body for body, _ in bodies)])


def make_model(tokenizer: Tokenizer, mask: Mask) -> Bert:
    """The model, for so many pieces."""
    return Bert(replace(SIZE, vocabulary=tokenizer.get_vocab_size()), mask)


@torch.no_grad()
def scores(task: MaskedWordsTask) -> tuple[float, float]:
    """The loss on what was held out, and the share of blanks whose likeliest piece is right."""
    batch = task.held_out_blanks()
    logits = task.padded(batch.ids.to(task.model.words.weight.device), batch.keep).cpu()
    asked = batch.targets != SKIP
    right = logits.argmax(-1)[asked] == batch.targets[asked]
    return task.evaluate(), float(right.double().mean())


def unigram_scores(task: MaskedWordsTask) -> tuple[float, float]:
    """The same of one who knows how common each piece is, and nothing else."""
    seen = torch.tensor([token for row in task.training for token in row])
    counts = torch.bincount(seen, minlength=task.tokenizer.get_vocab_size()).double() + 1
    targets = task.held_out_blanks().targets
    targets = targets[targets != SKIP]
    loss = -(counts / counts.sum()).log()[targets].mean()
    return float(loss), float((targets == counts.argmax()).double().mean())


def audited(task: MaskedWordsTask | Trained) -> AuditReport:
    """Does the model obey its mask, padding included?"""
    source, size = torch.Generator().manual_seed(0), task.tokenizer.get_vocab_size()
    ids = torch.randint(len(SPECIAL), size, (2, 16), generator=source)
    keep = torch.arange(16) < torch.tensor([[11], [16]])
    inputs = {"ids": ids.to(task.model.words.weight.device), "keep": keep}
    return audit(task.padded, inputs, expects=task.mask & padding_of(keep=keep), probes=PROBES)


def _chances(task: MaskedWordsTask | Trained, ids: list[int]) -> torch.Tensor:
    """How likely each piece is at every place; what is no piece of a text is not."""
    device = task.model.words.weight.device
    given = torch.tensor([ids], device=device)
    with torch.no_grad():
        logits = task.padded(given, torch.ones(given.shape, dtype=torch.bool))[0]
    barred = [task.tokenizer.token_to_id(name) for name in (*SPECIAL, MASK)]
    logits[:, barred] = -torch.inf
    chances: torch.Tensor = logits.softmax(-1)
    return chances


def _with_blanks(tokenizer: Tokenizer, text: str) -> list[int]:
    """A text as ids, its blanks hidden."""
    parts = BLANK.split(text.strip())
    if len(parts) < 2:
        raise ArgumentError(
            f"There is no blank in {text[:40]!r}. Write ___ or {MASK} in place of a word."
        )
    ids: list[int] = tokenizer.encode(parts[0]).ids
    hidden = tokenizer.get_vocab()[MASK]
    for part in parts[1:]:
        ids += [hidden, *tokenizer.encode(part).ids]
    if len(ids) > CONTEXT:
        raise ArgumentError(
            f"The text has {len(ids)} tokens but the context is {CONTEXT}. Give a shorter one."
        )
    return ids
