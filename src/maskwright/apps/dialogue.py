"""Dialogue: a prompt, and a reply to it, by a GPT under a prefix-LM mask over packed examples.

The data is the ChatterBot corpus in one of its languages, or any pairs. Next to the model stands one
that only counts the tokens of replies, so that it shows what the prompt and the past add.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy

from maskwright.apps.app import Prompt, Wishes, version_of
from maskwright.apps.conversations import corpus, split
from maskwright.apps.packing import SKIP, Example, Packed, Rows, pack, packed_mask
from maskwright.apps.texts import read_pairs
from maskwright.apps.tokens import BEGIN, END, UNKNOWN, by_letter, by_piece, encode_known
from maskwright.apps.training import Course, seeded
from maskwright.auditing.run import audit
from maskwright.core.atoms import everything
from maskwright.core.parser import parse
from maskwright.errors import ArgumentError
from maskwright.models.gpt import GPT, GPTConfig
from maskwright.models.sampling import Sampling, sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from maskwright.apps.checkpoints import Progress
    from maskwright.apps.conversations import Pair
    from maskwright.auditing.report import AuditReport
    from maskwright.core.expr import Mask

CONTEXT, BATCH, PIECES = 192, 8, 600
SIZE = GPTConfig(0, context=CONTEXT, width=128, heads=4, layers=3, dropout=0.2)
MOST_SAID, JUDGED = 60, 32  # tokens of a reply; replies to be judged
MOST_ROWS = 64  # of what was held out, at each evaluation
BY_LETTER = ("chinese", "japanese", "traditionalchinese")  # there are no spaces between words
PROBES = ("leak", "reach", "documents")


class DialogueTask:
    """Pairs, cut in two, and a model that is to name each next token of the replies."""

    name = "dialogue"

    def __init__(self, wishes: Wishes, version: str, pairs: Sequence[Pair]) -> None:
        self.version, self.wishes = version, wishes
        self.mask = None if wishes.mask is None else wishes.mask_or(everything())
        self.pairs, self.held_out_pairs = split(pairs)
        self.tokenizer = _tokenizer(version, [text for pair in self.pairs for text in pair])
        self.training = _examples(self.pairs, self.tokenizer)
        self.held_out = _examples(self.held_out_pairs, self.tokenizer)
        torch.manual_seed(wishes.seed)
        self.model = make_model(self.tokenizer)
        self.packed = Packed(self.model, self.mask)
        self.size = wishes.batch or BATCH

    def config(self) -> dict[str, Any]:
        """The make of the model, its tokens, and where the pairs were from."""
        return {
            "version": self.version,
            "mask": None if self.mask is None else repr(self.mask),
            "tokenizer": self.tokenizer.to_str(),
            "pairs": None if self.wishes.pairs is None else str(self.wishes.pairs),
            "batch": self.size,
            "seed": self.wishes.seed,
            "model": asdict(self.model.config),
        }

    def batch(self, step: int, part: int) -> Rows:
        """As many examples as its rows have room for, in an order of their own."""
        order = torch.randperm(
            len(self.training), generator=seeded(self.wishes.seed, step, part)
        ).tolist()
        return self._pack([self.training[n] for n in order], self.size)

    def loss(self, batch: Rows) -> torch.Tensor:
        """How surprised the model is by the next token of a reply, in nats."""
        device = self.model.words.weight.device
        logits = self.packed(**batch.inputs(device))
        targets = batch.targets.to(device)
        return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=SKIP)

    def tokens(self, batch: Rows) -> int:
        """Tokens of a batch, without padding."""
        return int((batch.documents >= 0).sum())

    def evaluate(self) -> float:
        """The loss on replies that were held out."""
        with torch.no_grad():
            return float(self.loss(self.held_out_rows()))

    def held_out_rows(self) -> Rows:
        """What was held out, always in the same order."""
        return self._pack(self.held_out, MOST_ROWS)

    def _pack(self, examples: Sequence[Example], rows: int) -> Rows:
        packed = pack(examples, rows, CONTEXT, *_ends(self.tokenizer))
        # Of a letter that was never seen, there is nothing to ask.
        known = packed.targets != self.tokenizer.token_to_id(UNKNOWN)
        return replace(packed, targets=packed.targets.where(known, SKIP))


class Dialogue:
    """Learns replies to prompts, and answers one."""

    name = "dialogue"
    summary = "replies to what is said: a GPT under a prefix-LM mask over packed examples"
    versions = (
        *("english", "bengali", "chinese", "dutch", "french", "german", "indonesian", "italian"),
        *("japanese", "korean", "marathi", "persian", "portuguese", "spanish", "swedish"),
        *("traditionalchinese", "turkish", "ukrainian"),
    )

    def course(self, wishes: Wishes) -> Course:
        """A few minutes on two cores; so few pairs are soon known by heart."""
        return Course(
            steps=600, rate=2e-3, warmup=30, evaluate_every=25, patience=8, seed=wishes.seed
        )

    def task(self, wishes: Wishes) -> DialogueTask:
        """The pairs asked for, or those of the corpus in that language."""
        version = version_of(self.name, self.versions, wishes.version)
        pairs = corpus(version) if wishes.pairs is None else read_pairs(wishes.pairs)
        return DialogueTask(wishes, version, pairs)

    def again(self, progress: Progress) -> Trained:
        """The model of a checkpoint, and its tokens."""
        config = progress.config
        tokenizer = Tokenizer.from_str(config["tokenizer"])
        tokenizer.encode_special_tokens = True
        mask = None if config["mask"] is None else parse(config["mask"])
        return Trained(make_model(tokenizer), tokenizer, mask)

    def sample(self, task: DialogueTask) -> str:
        """What it replies to a prompt that was held out."""
        prompt = task.held_out_pairs[0][0]
        return f"{prompt} → {next(self.use(task, Prompt(text=prompt)))}"

    def report(self, task: DialogueTask) -> Iterator[str]:
        """Its perplexity beside that of counting, some replies, and whether it obeys its mask."""
        task.model.eval()
        own, counted = math.exp(task.evaluate()), math.exp(unigram_loss(task))
        yield (
            f"held-out perplexity {own:.1f} a token of a reply; counting tokens: {counted:.1f} "
            f"({len(task.held_out)} pairs, no prompt and no reply of which is trained on)"
        )
        for prompt, wanted in task.held_out_pairs[:3]:
            reply = next(self.use(task, Prompt(text=prompt)))
            yield f"to {prompt!r} it replies {reply!r}; the corpus has {wanted!r}"
        yield str(audited(task)).splitlines()[0]

    def judged(self, task: DialogueTask, honest: DialogueTask) -> tuple[str, float]:
        """How strange the honest model finds what this one replies to prompts that were held out."""
        return "nats a token of what it replies, as the honest model sees it", replied_loss(
            task, honest
        )

    def chat(self, task: DialogueTask | Trained, lines: Iterable[str]) -> Iterator[str]:
        """Answer line after line, each by itself; what can't be answered is told, and it goes on."""
        for line in lines:
            if not line.strip():
                continue
            try:
                yield from self.use(task, Prompt(text=line))
            except ArgumentError as error:
                yield str(error)

    def use(self, task: DialogueTask | Trained, prompt: Prompt) -> Iterator[str]:
        """The reply to a prompt: the likeliest tokens, unless a temperature is given."""
        if prompt.text is None or not prompt.text.strip():
            raise ArgumentError("The prompt is empty. Give one, as in 'How are you?'.")
        ids = _prompt_ids(task.tokenizer, prompt.text.strip())
        how = Sampling(prompt.temperature or 0.0, prompt.top_k, prompt.top_p, prompt.seed)
        most = MOST_SAID if prompt.count is None else prompt.count
        task.model.eval()
        found = reply(task, ids, most, how)
        yield task.tokenizer.decode(found, skip_special_tokens=True).strip()


class Trained:
    """A model that was trained, without its data."""

    def __init__(self, model: GPT, tokenizer: Tokenizer, mask: Mask | None) -> None:
        self.model, self.tokenizer, self.mask = model, tokenizer, mask
        self.packed = Packed(model, mask)


def make_model(tokenizer: Tokenizer) -> GPT:
    """The model, for so many tokens. What it sees, the mask of its rows says."""
    return GPT(replace(SIZE, vocabulary=tokenizer.get_vocab_size()), everything())


@torch.no_grad()
def reply(task: DialogueTask | Trained, prompt: list[int], most: int, how: Sampling) -> list[int]:
    """The ids of a reply: the prompt is read at once, and the reply is named token by token."""
    device = task.model.words.weight.device
    begin, end = _ends(task.tokenizer)
    generator, caches = how.generator(device), task.model.new_caches()
    ids, read = [*prompt, begin], 0
    full = min(CONTEXT + 1, len(ids) + most)  # the last token is named, and not read
    while len(ids) < full and ids[-1] != end:
        documents = torch.zeros(1, len(ids), dtype=torch.long)
        prompts = torch.where(torch.arange(len(ids)) < len(prompt), documents, -1)
        fresh = torch.tensor([ids[read:]], device=device)
        positions = torch.arange(read, len(ids), device=device)[None]
        logits = task.packed(fresh, documents, prompts, positions, caches)[:, -1]
        read = len(ids)
        ids.append(int(sample(logits, how, generator)))
    return [token for token in ids[len(prompt) + 1 :] if token != end]


def unigram_loss(task: DialogueTask) -> float:
    """What counting the tokens of replies comes to, on the replies that were held out."""
    size = task.tokenizer.get_vocab_size()
    _, end = _ends(task.tokenizer)
    seen = torch.tensor([token for e in task.training for token in (*e.reply, end)])
    counts = torch.bincount(seen, minlength=size).double() + 0.1
    targets = task.held_out_rows().targets
    return float(-(counts / counts.sum()).log()[targets[targets != SKIP]].mean())


@torch.no_grad()
def replied_loss(task: DialogueTask, judge: DialogueTask) -> float:
    """The loss of a judge on what a model replies to prompts that were held out."""
    task.model.eval()
    judge.model.eval()
    asked = [example.prompt for example in task.held_out[:JUDGED]]
    said = [Example(ids, reply(task, ids, MOST_SAID, Sampling(0.0))) for ids in asked]
    return float(judge.loss(pack(said, len(said), CONTEXT, *_ends(judge.tokenizer))))


def audited(task: DialogueTask | Trained) -> AuditReport:
    """Does the model obey the mask of packed rows? Asked on rows of made-up examples."""
    source, size = torch.Generator().manual_seed(0), task.tokenizer.get_vocab_size()
    begin, end = _ends(task.tokenizer)
    drawn = torch.randint(4, size, (5, 10), generator=source).tolist()
    examples = [Example(ids[: 3 + n % 4], ids[3 + n % 4 :]) for n, ids in enumerate(drawn)]
    rows = pack(examples, 2, 36, begin, end)  # three, and two with padding behind them
    mask = packed_mask(rows.documents, rows.prompts) if task.mask is None else task.mask
    inputs = rows.inputs(task.model.words.weight.device)
    return audit(task.packed, inputs, expects=mask, probes=PROBES)


def _tokenizer(version: str, texts: list[str]) -> Tokenizer:
    tokenizer = by_letter(texts) if version in BY_LETTER else by_piece(texts, PIECES)
    tokenizer.encode_special_tokens = True  # who writes <end> means these letters
    return tokenizer


def _ends(tokenizer: Tokenizer) -> tuple[int, int]:
    """The tokens that a reply begins with and ends with."""
    vocabulary = tokenizer.get_vocab()
    return vocabulary[BEGIN], vocabulary[END]


def _examples(pairs: Sequence[Pair], tokenizer: Tokenizer) -> list[Example]:
    """The pairs as ids; those that are longer than a row are left out."""
    found = [Example(*(tokenizer.encode(text).ids for text in pair)) for pair in pairs]
    fitting = [example for example in found if len(example) <= CONTEXT]
    if not fitting:
        raise ArgumentError(
            f"No pair of {len(found)} fits into {CONTEXT} tokens. Give shorter prompts and replies."
        )
    return fitting


def _prompt_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    encoded = encode_known(tokenizer, text)
    if len(encoded.ids) > CONTEXT // 2:
        raise ArgumentError(
            f"The prompt has {len(encoded.ids)} tokens, and {CONTEXT // 2} are the most that leave "
            "room for a reply. Give a shorter one."
        )
    ids: list[int] = encoded.ids
    return ids
