"""Masked language modelling: a bidirectional encoder predicts masked tokens.

The data is the prose of Python's own help and docstrings, or any text, by sentences. The sentences
of a batch are padded, and padding is the only mask. The report compares the model with a unigram
model.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from maskwright.apps import Prompt, Task
from maskwright.apps.data.corpora import docstring_pairs
from maskwright.apps.data.text import IGNORE_INDEX, SPECIAL, bpe_tokenizer, python_topics, read_text
from maskwright.apps.trainer import TrainingConfig, step_generator
from maskwright.core.atoms import everything
from maskwright.core.atoms import padding as padding_mask
from maskwright.errors import ArgumentError
from maskwright.models.bert import Bert, BertConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from maskwright.core.expr import Mask

MASK = "<mask>"
BLANK = re.compile(rf"\s*(?:_{{3,}}|{MASK})")  # with the space before it, as in the tokens of words
BLOCK_SIZE, VOCAB_SIZE = 64, 1000
CONFIG = BertConfig(0, BLOCK_SIZE, n_embd=128, n_head=4, n_layer=3)
HELD_OUT, MAX_EVALUATED = 0.1, 256  # share of the sentences; sentences per evaluation
MLM_PROBABILITY, MASKED, REPLACED = 0.3, 0.8, 0.1  # of all tokens; of the chosen ones
SENTENCE_ENDS = tuple(".:!?。！？")
BETWEEN_SENTENCES = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
MIN_CHARACTERS, MIN_SENTENCES = 20, 20


class MaskedBatch(NamedTuple):
    """Sentences with masked tokens, (B, T) each."""

    ids: torch.Tensor
    keep: torch.Tensor  # False for padding
    labels: torch.Tensor  # the original token, or IGNORE_INDEX


class PaddedBert(nn.Module):
    """A Bert with its padding as a boolean tensor, which an audit can change."""

    def __init__(self, bert: Bert) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, ids: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        """Logits of the token at every position: (B, T) → (B, T, vocab_size)."""
        logits: torch.Tensor = self.bert(ids, padding_mask(keep=keep))
        return logits


class MaskedLM(Task):
    """Fills in blanks."""

    name = "masked-lm"
    summary = "fills in masked words: a bidirectional encoder"
    versions = ("bert",)
    own_data = ("text",)
    default_training = TrainingConfig(1200, learning_rate=2e-3, warmup_steps=100, eval_interval=100)
    default_batch_size = 64
    tokenizers = ("tokenizer",)
    encode_special_tokens = True
    probes = ("leak", "reach", "padding")
    model_class, model_config = Bert, CONFIG

    model: Bert

    def load_data(self) -> None:
        """The user's text or Python's prose, split into training and held-out sentences."""
        path = self.options.text
        text = python_prose() if path is None else read_text(path)
        training, self.held_out_sentences = split_held_out(split_sentences(text))
        self.tokenizer = bpe_tokenizer(training, VOCAB_SIZE)
        self.tokenizer.add_special_tokens([MASK])
        self.tokenizer.encode_special_tokens = self.encode_special_tokens
        self.training = sorted(map(self._encode, training), key=len)
        self.held_out = [self._encode(sentence) for sentence in self.held_out_sentences]

    def default_mask(self) -> Mask:
        """All tokens, without padding."""
        return everything()

    @property
    def mask_id(self) -> int:
        """The id of `<mask>`."""
        return int(self.tokenizer.token_to_id(MASK))

    def batch(self, step: int, micro_step: int) -> MaskedBatch:
        """Random sentences of similar length, so with little padding."""
        generator = step_generator(self.options.seed, step, micro_step)
        start = torch.randint(len(self.training), (), generator=generator)
        near = torch.randperm(4 * self.batch_size, generator=generator)[: self.batch_size]
        rows = ((start + near) % len(self.training)).tolist()
        return mask_tokens([self.training[n] for n in rows], self.mask_id, generator)

    def logits(self, batch: MaskedBatch) -> torch.Tensor:
        """Logits of the token at every position."""
        logits: torch.Tensor = self.model(batch.ids.to(self.device), padding_mask(keep=batch.keep))
        return logits

    def loss(self, batch: MaskedBatch) -> torch.Tensor:
        """Cross-entropy of the chosen tokens."""
        labels = batch.labels.to(self.device).flatten()
        return cross_entropy(self.logits(batch).flatten(0, 1), labels, ignore_index=IGNORE_INDEX)

    def num_tokens(self, batch: MaskedBatch) -> int:
        """Tokens without padding."""
        return int(batch.keep.sum())

    def held_out_batch(self) -> MaskedBatch:
        """Held-out sentences, always with the same masked tokens."""
        return mask_tokens(self.held_out[:MAX_EVALUATED], self.mask_id, step_generator(0, 0))

    def sample(self) -> str:
        """A held-out sentence with a blank, filled in."""
        return next(self._examples(), "")

    def report(self) -> Iterator[str]:
        """Held-out loss and accuracy compared with those of a unigram model, and examples."""
        self.model.eval()
        unigram_loss, unigram_accuracy = self.unigram_scores()
        yield (
            f"held-out loss {self.evaluate():.3f} nats/masked token, accuracy {self.accuracy():.1%}; "
            f"unigram model: {unigram_loss:.3f} nats, {unigram_accuracy:.1%}"
        )
        yield from islice(self._examples(), 3)

    @torch.no_grad()
    def accuracy(self) -> float:
        """The share of held-out masked tokens that are predicted."""
        batch = self.held_out_batch()
        chosen = batch.labels != IGNORE_INDEX
        correct = self.logits(batch).cpu().argmax(-1)[chosen] == batch.labels[chosen]
        return float(correct.double().mean())

    def unigram_scores(self) -> tuple[float, float]:
        """Loss and accuracy of a unigram model on the same tokens."""
        seen = torch.tensor([token for row in self.training for token in row])
        counts = torch.bincount(seen, minlength=self.tokenizer.get_vocab_size()).double() + 1
        labels = self.held_out_batch().labels
        labels = labels[labels != IGNORE_INDEX]
        loss = -(counts / counts.sum()).log()[labels].mean()
        return float(loss), float((labels == counts.argmax()).double().mean())

    def score_generation(self, reference: Any) -> tuple[str, float]:  # noqa: ARG002
        """The accuracy on held-out masked tokens."""
        return "accuracy on masked tokens", self.accuracy()

    @torch.no_grad()
    def predict(self, prompt: Prompt) -> Iterator[str]:
        """The text filled in, and the best tokens for each blank (___ or <mask>)."""
        self.model.eval()
        ids = self._encode_blanks(prompt.text or "")
        logits = self.model(torch.tensor([ids], device=self.device))[0].cpu()  # (T, vocab_size)
        logits[:, [*range(len(SPECIAL)), self.mask_id]] = -torch.inf  # never a prediction
        probs = logits.softmax(-1)
        best = probs.argmax(-1).tolist()
        blanks = [n for n, token in enumerate(ids) if token == self.mask_id]
        filled = [best[n] if n in blanks else token for n, token in enumerate(ids)]
        yield self.tokenizer.decode(filled).strip()
        top_k = 5 if prompt.top_k is None else prompt.top_k
        for number, position in enumerate(blanks, start=1):
            top = probs[position].topk(min(top_k, probs.shape[-1]))
            tokens = zip(top.indices.tolist(), top.values.tolist(), strict=True)
            shown = ", ".join(f"{self.tokenizer.decode([n]).strip()} {p:.0%}" for n, p in tokens)
            yield f"blank {number}: {shown}"

    def audit_inputs(self) -> tuple[Any, Any, Mapping[str | None, Mask]]:
        """Random tokens, the first row with padding."""
        assert self.mask is not None
        ids = self.random_ids(len(SPECIAL), self.tokenizer.get_vocab_size(), (2, 16))
        keep = torch.arange(16) < torch.tensor([[11], [16]])
        expected = self.mask & padding_mask(keep=keep)
        return PaddedBert(self.model), {"ids": ids, "keep": keep}, {None: expected}

    def _encode(self, sentence: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(sentence).ids[:BLOCK_SIZE]
        return ids

    def _encode_blanks(self, text: str) -> list[int]:
        """The ids of a text, with <mask> for its blanks."""
        first, *rest = BLANK.split(text.strip())
        if not rest:
            raise ArgumentError(f"{text[:40]!r} has no blank. Write ___ or {MASK} for a word.")
        ids: list[int] = self.tokenizer.encode(first).ids
        for part in rest:
            ids += [self.mask_id, *self.tokenizer.encode(part).ids]
        if len(ids) > BLOCK_SIZE:
            raise ArgumentError(
                f"The text has {len(ids)} tokens, expected at most {BLOCK_SIZE}. Pass a shorter one."
            )
        return ids

    def _examples(self) -> Iterator[str]:
        """Held-out sentences with a one-token word blanked, and the predictions."""
        for sentence in self.held_out_sentences:
            words = sentence.split()
            candidates = [
                n
                for n, word in enumerate(words)
                if word.isalpha() and len(self.tokenizer.encode(f" {word}").ids) == 1
            ]
            if not candidates or len(self.tokenizer.encode(sentence).ids) > BLOCK_SIZE:
                continue
            blank = candidates[len(candidates) // 2]
            text = " ".join([*words[:blank], "___", *words[blank + 1 :]])
            _, guesses = self.predict(Prompt(text=text, top_k=3))
            yield f"{text} → {guesses.partition(': ')[2]} (original: {words[blank]})"


def python_prose() -> str:
    """Python's own help, and the bodies of docstrings."""
    bodies, _ = docstring_pairs()
    return "\n\n".join([python_topics(), *(body for body, _ in bodies)])


def split_sentences(text: str) -> list[str]:
    """The different sentences of a text, without headings and code; its lines, if there are too few.

    >>> from maskwright.apps.masked_lm import split_sentences
    >>> split_sentences(" ".join(f"This is the sentence number {n}. Short." for n in range(20)))[0]
    'This is the sentence number 0.'
    """
    paragraphs = [
        " ".join(part.split()) for part in re.split(r"\n\s*\n", text) if ">>>" not in part
    ]
    candidates = [sentence for part in paragraphs for sentence in BETWEEN_SENTENCES.split(part)]
    sentences = _long_enough(x for x in candidates if x[-1:] in SENTENCE_ENDS)
    if len(sentences) < MIN_SENTENCES:
        sentences = _long_enough(" ".join(line.split()) for line in text.splitlines())
    if len(sentences) < MIN_SENTENCES:
        raise ArgumentError(
            f"The text has {len(sentences)} different sentences or lines of at least "
            f"{MIN_CHARACTERS} characters, expected {MIN_SENTENCES}. Pass a longer text."
        )
    return sentences


def split_held_out(sentences: Sequence[str]) -> tuple[list[str], list[str]]:
    """Training and held-out sentences, always the same.

    >>> from maskwright.apps.masked_lm import split_held_out
    >>> training, held_out = split_held_out([f"sentence {n}" for n in range(40)])
    >>> len(training), len(held_out)
    (36, 4)
    """
    order = torch.randperm(len(sentences), generator=step_generator(0, 0)).tolist()
    cut = max(1, round(HELD_OUT * len(sentences)))
    return [sentences[n] for n in order[cut:]], [sentences[n] for n in order[:cut]]


def mask_tokens(
    rows: Sequence[Sequence[int]], mask_id: int, generator: torch.Generator
) -> MaskedBatch:
    """Pads sentences and chooses tokens to predict, at least one of each.

    Most of the chosen tokens are masked, some are replaced by random ones, and some stay.

    >>> import torch
    >>> from maskwright.apps.masked_lm import mask_tokens
    >>> batch = mask_tokens([[7, 8, 9], [7, 8]], mask_id=10, generator=torch.Generator())
    >>> batch.ids.shape, batch.keep.tolist()
    (torch.Size([2, 3]), [[True, True, True], [True, True, False]])
    """
    lengths = torch.tensor([len(row) for row in rows])
    shape = (len(rows), int(lengths.max()))
    keep = torch.arange(shape[1]) < lengths[:, None]
    ids = torch.zeros(shape, dtype=torch.long)
    ids[keep] = torch.tensor([token for row in rows for token in row])
    draw = torch.rand(shape, generator=generator).masked_fill(~keep, 2.0)
    chosen = (draw < MLM_PROBABILITY) | (draw == draw.min(dim=1, keepdim=True).values)
    kind = torch.rand(shape, generator=generator)
    random_ids = torch.randint(len(SPECIAL), mask_id, shape, generator=generator)
    inputs = ids.where(~chosen | (kind >= MASKED), mask_id)
    inputs = inputs.where(~chosen | (kind < MASKED) | (kind >= MASKED + REPLACED), random_ids)
    return MaskedBatch(inputs, keep, ids.where(chosen, IGNORE_INDEX))


def _long_enough(sentences: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(x for x in sentences if len(x) >= MIN_CHARACTERS))
