"""Dialogue: a GPT that replies to a prompt, under a prefix-LM mask over packed examples.

The tokens of a prompt attend to each other in both directions, those of the reply to the prompt and
their own past. Several examples are packed into a row and do not attend to each other. The mask
depends on how a batch is packed, so each batch has its own. The data is the ChatterBot corpus in one
of its languages, or any pairs. The report compares the model with a unigram model.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from maskwright.apps import Prompt, Task
from maskwright.apps.data.corpora import chatterbot_pairs, split_dialogue
from maskwright.apps.data.text import (
    BEGIN_ID,
    END_ID,
    IGNORE_INDEX,
    UNKNOWN_ID,
    bpe_tokenizer,
    character_tokenizer,
    encode_prompt,
    read_pairs,
)
from maskwright.apps.trainer import TrainingConfig, step_generator
from maskwright.core.atoms import causal, everything, prefix
from maskwright.core.atoms import documents as documents_mask
from maskwright.errors import ArgumentError
from maskwright.models.gpt import GPT, GPTConfig
from maskwright.models.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from maskwright.apps.data.text import Pair
    from maskwright.core.expr import Mask

BLOCK_SIZE, VOCAB_SIZE = 192, 600
CONFIG = GPTConfig(0, BLOCK_SIZE, n_embd=128, n_head=4, n_layer=3, dropout=0.2)
MAX_PROMPT_TOKENS = BLOCK_SIZE // 2  # which leaves space for a reply
MAX_NEW_TOKENS, NUM_SCORED = 60, 32  # per reply; replies to be scored
MAX_HELD_OUT_ROWS = 64  # per evaluation
WITHOUT_SPACES = ("chinese", "japanese", "traditionalchinese")  # tokenized by character


@dataclass(frozen=True)
class Example:
    """A prompt and its reply, as ids."""

    prompt: list[int]
    reply: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + 1 + len(self.reply)  # <begin> between the two


@dataclass(frozen=True)
class PackedExamples:
    """Examples packed into rows; all tensors are (B, T)."""

    ids: torch.Tensor
    documents: torch.Tensor  # the example of each token; -1 is padding
    prompts: torch.Tensor  # the example of each prompt token; -1 for all others
    positions: torch.Tensor  # from 0 in each example
    labels: torch.Tensor  # the next token of the reply, or IGNORE_INDEX

    def inputs(self, device: torch.device) -> dict[str, torch.Tensor]:
        """The arguments of `PackedGPT`; what the mask is made of stays on the CPU."""
        return {
            "ids": self.ids.to(device),
            "documents": self.documents,
            "prompts": self.prompts,
            "positions": self.positions.to(device),
        }


class PackedGPT(nn.Module):
    """A GPT on packed examples, under their mask or a given one."""

    def __init__(self, gpt: GPT, mask: Mask | None = None) -> None:
        super().__init__()
        self.gpt, self.mask = gpt, mask

    def forward(
        self,
        ids: torch.Tensor,
        documents: torch.Tensor,
        prompts: torch.Tensor,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        """Logits of the next token: (B, T) → (B, T, vocab_size)."""
        mask = packed_mask(documents, prompts) if self.mask is None else self.mask
        logits: torch.Tensor = self.gpt(ids, mask, positions=positions)
        return logits


class Dialogue(Task):
    """Replies to a prompt."""

    name = "dialogue"
    summary = "replies to a prompt: a GPT under a prefix-LM mask over packed examples"
    versions = (
        *("english", "bengali", "chinese", "dutch", "french", "german", "indonesian", "italian"),
        *("japanese", "korean", "marathi", "persian", "portuguese", "spanish", "swedish"),
        *("traditionalchinese", "turkish", "ukrainian"),
    )
    own_data = ("pairs",)
    default_training = TrainingConfig(
        600, learning_rate=2e-3, warmup_steps=30, eval_interval=25, patience=8
    )
    default_batch_size = 8  # rows of packed examples
    tokenizers = ("tokenizer",)
    encode_special_tokens = True
    probes = ("leak", "reach", "documents")
    model_config = CONFIG

    model: GPT

    def load_data(self) -> None:
        """The user's pairs or those of the corpus, split into training and held-out."""
        path = self.options.pairs
        pairs = chatterbot_pairs(self.version) if path is None else read_pairs(path)
        training, self.held_out_pairs = split_dialogue(pairs)
        texts = [text for pair in training for text in pair]
        if self.version in WITHOUT_SPACES:
            self.tokenizer = character_tokenizer(texts)
        else:
            self.tokenizer = bpe_tokenizer(texts, VOCAB_SIZE)
        self.tokenizer.encode_special_tokens = self.encode_special_tokens
        self.training = self._examples(training)
        self.held_out = self._examples(self.held_out_pairs)

    def default_mask(self) -> None:
        """None: the mask of each batch."""

    def make_model(self, config: GPTConfig) -> GPT:
        """A GPT without a mask of its own: the batches have it."""
        return GPT(config, everything())

    @property
    def packed_model(self) -> PackedGPT:
        """The model on packed examples."""
        return PackedGPT(self.model, self.mask)

    def batch(self, step: int, micro_step: int) -> PackedExamples:
        """Random examples that fill the rows."""
        generator = step_generator(self.options.seed, step, micro_step)
        order = torch.randperm(len(self.training), generator=generator).tolist()
        return self._pack([self.training[n] for n in order], self.batch_size)

    def loss(self, batch: PackedExamples) -> torch.Tensor:
        """Cross-entropy of the tokens of replies."""
        logits = self.packed_model(**batch.inputs(self.device))
        labels = batch.labels.to(self.device)
        return cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX)

    def num_tokens(self, batch: PackedExamples) -> int:
        """Tokens without padding."""
        return int((batch.documents >= 0).sum())

    def held_out_batch(self) -> PackedExamples:
        """The held-out examples in a fixed order."""
        return self._pack(self.held_out, MAX_HELD_OUT_ROWS)

    def sample(self) -> str:
        """The reply to a held-out prompt."""
        prompt = self.held_out_pairs[0][0]
        return f"{prompt} → {self._greedy_reply(prompt)}"

    def report(self) -> Iterator[str]:
        """Held-out perplexity compared with that of a unigram model, and examples."""
        self.model.eval()
        perplexity, unigram = math.exp(self.evaluate()), math.exp(self.unigram_loss())
        yield (
            f"held-out perplexity {perplexity:.1f} per reply token; unigram model: {unigram:.1f} "
            f"({len(self.held_out)} pairs whose prompts and replies are not in the training data)"
        )
        for prompt, reference in self.held_out_pairs[:3]:
            yield f"{prompt!r} → {self._greedy_reply(prompt)!r} (corpus: {reference!r})"

    def unigram_loss(self) -> float:
        """The loss of a unigram model of replies on the held-out replies."""
        seen = torch.tensor([token for e in self.training for token in (*e.reply, END_ID)])
        counts = torch.bincount(seen, minlength=self.tokenizer.get_vocab_size()).double() + 0.1
        labels = self.held_out_batch().labels
        return float(-(counts / counts.sum()).log()[labels[labels != IGNORE_INDEX]].mean())

    @torch.no_grad()
    def score_generation(self, reference: Any) -> tuple[str, float]:
        """The reference's loss on what this model replies to held-out prompts."""
        self.model.eval()
        reference.model.eval()
        greedy = SamplingParams(temperature=0)
        prompts = [example.prompt for example in self.held_out[:NUM_SCORED]]
        replies = [Example(ids, self.reply(ids, MAX_NEW_TOKENS, greedy)) for ids in prompts]
        loss = reference.loss(pack(replies, len(replies), BLOCK_SIZE))
        return "nats/token of its replies under the reference model", float(loss)

    def predict(self, prompt: Prompt) -> Iterator[str]:
        """The reply; greedy unless a temperature is given."""
        if prompt.text is None or not prompt.text.strip():
            raise ArgumentError("The prompt is empty. Pass one, such as 'How are you?'.")
        ids = encode_prompt(self.tokenizer, prompt.text.strip(), MAX_PROMPT_TOKENS)
        params = SamplingParams(prompt.temperature or 0.0, prompt.top_k, prompt.top_p, prompt.seed)
        limit = MAX_NEW_TOKENS if prompt.max_new_tokens is None else prompt.max_new_tokens
        self.model.eval()
        yield self._decode(self.reply(ids, limit, params))

    def reply(self, prompt: list[int], max_new_tokens: int, params: SamplingParams) -> list[int]:
        """The ids of a reply, under the mask of a prompt that is packed alone."""
        mask = causal() | prefix(len(prompt)) if self.mask is None else self.mask
        start = torch.tensor([[*prompt, BEGIN_ID]], device=self.device)
        limit = min(max_new_tokens, BLOCK_SIZE - len(prompt))  # the last token is not read
        ids = self.model.generate(start, limit, mask=mask, stop_token=END_ID, **asdict(params))
        return [token for token in ids[0, start.shape[1] :].tolist() if token != END_ID]

    def chat(self, lines: Iterable[str]) -> Iterator[str]:
        """Replies to each line by itself; an error is printed and the chat continues."""
        for line in lines:
            if not line.strip():
                continue
            try:
                yield from self.predict(Prompt(text=line))
            except ArgumentError as error:
                yield str(error)

    def audit_inputs(self) -> tuple[Any, Any, Mapping[str | None, Mask]]:
        """Two rows of random packed examples, the second one with padding."""
        draws = self.random_ids(4, self.tokenizer.get_vocab_size(), (5, 10)).tolist()
        examples = [Example(ids[: 3 + n % 4], ids[3 + n % 4 :]) for n, ids in enumerate(draws)]
        packed = pack(examples, 2, 36)
        mask = packed_mask(packed.documents, packed.prompts) if self.mask is None else self.mask
        return self.packed_model, packed.inputs(self.device), {None: mask}

    def _greedy_reply(self, prompt: str) -> str:
        """The reply to a held-out prompt, which may be long or have unknown characters."""
        self.model.eval()
        ids = self.tokenizer.encode(prompt).ids[-MAX_PROMPT_TOKENS:]
        return self._decode(self.reply(ids, MAX_NEW_TOKENS, SamplingParams(temperature=0)))

    def _decode(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text.strip()

    def _pack(self, examples: Sequence[Example], max_rows: int) -> PackedExamples:
        packed = pack(examples, max_rows, BLOCK_SIZE)
        known = packed.labels != UNKNOWN_ID  # unknown characters cannot be predicted
        return replace(packed, labels=packed.labels.where(known, IGNORE_INDEX))

    def _examples(self, pairs: Sequence[Pair]) -> list[Example]:
        """The pairs as ids, without those that do not fit."""
        every = [Example(*(self.tokenizer.encode(text).ids for text in pair)) for pair in pairs]
        fitting = [example for example in every if len(example) <= BLOCK_SIZE]
        if not fitting:
            raise ArgumentError(
                f"None of {len(every)} pairs has at most {BLOCK_SIZE} tokens. Pass shorter ones."
            )
        return fitting


def packed_mask(documents: Any, prompts: Any) -> Mask:
    """The prefix-LM mask of packed examples: (B, T) each, -1 where a token belongs to none.

    >>> from maskwright.apps.dialogue import packed_mask
    >>> mask = packed_mask([[0, 0, 0, 1, 1, -1]], [[0, 0, -1, 1, -1, -1]])
    >>> for row in mask.on(6).dense()[0, 0].astype(int).tolist():
    ...     print(*row)
    1 1 0 0 0 0
    1 1 0 0 0 0
    1 1 1 0 0 0
    0 0 0 1 0 0
    0 0 0 1 1 0
    0 0 0 0 0 0
    """
    return documents_mask(ids=documents) & (causal() | documents_mask(ids=prompts))


def pack(examples: Sequence[Example], max_rows: int, length: int) -> PackedExamples:
    """Packs examples first-fit, in their order, until one fits into no row.

    `mw.pack` packs all that it is given; this stops when `max_rows` are full.

    >>> from maskwright.apps.dialogue import Example, pack
    >>> packed = pack([Example([7, 8], [9]), Example([5], [6])], max_rows=1, length=9)
    >>> packed.ids.tolist(), packed.labels.tolist()
    ([[7, 8, 1, 9, 5, 1, 6]], [[-100, -100, 9, 2, -100, 6, 2]])
    """
    rows: list[list[Example]] = []
    space: list[int] = []
    for example in examples:
        row = next((n for n, free in enumerate(space) if len(example) <= free), len(space))
        if row == max_rows:
            break
        if row == len(space):
            rows.append([])
            space.append(length)
        rows[row].append(example)
        space[row] -= len(example)
    shape = (len(rows), length - min(space))
    packed = PackedExamples(*(torch.full(shape, fill) for fill in (0, -1, -1, 0, IGNORE_INDEX)))
    for row, members in enumerate(rows):
        start = 0
        for number, example in enumerate(members):
            cut, stop = start + len(example.prompt), start + len(example)
            packed.ids[row, start:stop] = torch.tensor([*example.prompt, BEGIN_ID, *example.reply])
            packed.documents[row, start:stop] = number
            packed.prompts[row, start:cut] = number
            packed.positions[row, start:stop] = torch.arange(stop - start)
            packed.labels[row, cut:stop] = torch.tensor([*example.reply, END_ID])
            start = stop
    return packed
