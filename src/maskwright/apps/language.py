"""A language model, letter by letter: BabyGPT with one look at the past, with several, and a GPT.

The data is Python's own help, or any text. Next to the models stands one that only counts which
letter follows which, so that it shows what attention adds.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy

from maskwright.apps.app import Prompt, Wishes, version_of
from maskwright.apps.texts import python_topics, read_text
from maskwright.apps.tokens import by_letter, encode_known
from maskwright.apps.training import Course, seeded
from maskwright.auditing.run import audit
from maskwright.core.atoms import causal
from maskwright.core.parser import parse
from maskwright.errors import ArgumentError
from maskwright.models.gpt import GPT, BabyGPT, GPTConfig
from maskwright.models.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.apps.checkpoints import Progress
    from maskwright.auditing.report import AuditReport
    from maskwright.core.expr import Mask

CONTEXT, BATCH = 128, 32
HELD_OUT = 0.1  # the end of the text
JUDGED = 32  # texts that it writes, to be judged
WINDOWS = 64  # of what was held out, at each evaluation
SIZES = {
    "gpt": GPTConfig(0, context=CONTEXT, width=128, heads=4, layers=4),
    "v4": GPTConfig(0, context=CONTEXT, width=128, heads=8, layers=1),
    "v3": GPTConfig(0, context=CONTEXT, width=128, heads=1, layers=1),
}
PROBES = ("leak", "reach", "gradient")
STEPS = {"gpt": 800, "v4": 1500, "v3": 1500}
RATES = {"gpt": 2e-3, "v4": 3e-3, "v3": 3e-3}


class LanguageTask:
    """A text, cut in two, and a model that is to name each next letter."""

    name = "language"

    def __init__(self, wishes: Wishes, version: str, text: str) -> None:
        self.version, self.wishes = version, wishes
        self.mask = wishes.mask_or(causal())
        self.tokenizer = by_letter([text])
        ids = torch.tensor(self.tokenizer.encode(text).ids)
        cut = int(len(ids) * (1 - HELD_OUT))
        self.training, self.held_out = ids[:cut], ids[cut:]
        torch.manual_seed(wishes.seed)
        self.model = make_model(version, self.tokenizer.get_vocab_size(), self.mask)
        self.size = wishes.batch or BATCH

    def config(self) -> dict[str, Any]:
        """The make of the model, its letters, and where the text was from."""
        return {
            "version": self.version,
            "mask": repr(self.mask),
            "tokenizer": self.tokenizer.to_str(),
            "text": None if self.wishes.text is None else str(self.wishes.text),
            "batch": self.size,
            "seed": self.wishes.seed,
            "model": asdict(self.model.config),
        }

    def batch(self, step: int, part: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Some windows of the text, and the same a letter later."""
        last = len(self.training) - CONTEXT - 1
        starts = torch.randint(
            max(last, 1), (self.size,), generator=seeded(self.wishes.seed, step, part)
        )
        return windows(self.training, starts)

    def loss(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """How surprised the model is by the next letter, in nats."""
        ids, targets = (x.to(self.device) for x in batch)
        return cross_entropy(self.model(ids).flatten(0, 1), targets.flatten())

    def tokens(self, batch: tuple[torch.Tensor, torch.Tensor]) -> int:
        """Letters of a batch."""
        return int(batch[0].numel())

    def evaluate(self) -> float:
        """The loss on windows of the text that was held out, always the same ones."""
        last = max(len(self.held_out) - CONTEXT - 1, 1)
        starts = torch.linspace(0, last - 1, WINDOWS).long()
        with torch.no_grad():
            return float(self.loss(windows(self.held_out, starts)))

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.words.weight.device


class Language:
    """Learns a text letter by letter, and goes on with one."""

    name = "language"
    summary = "a language model, letter by letter: BabyGPT v3, v4, and a GPT"
    versions = ("gpt", "v4", "v3")

    def course(self, wishes: Wishes) -> Course:
        """Some minutes on two cores."""
        version = wishes.version or self.versions[0]
        return Course(
            steps=STEPS[version], rate=RATES[version], evaluate_every=100, seed=wishes.seed
        )

    def task(self, wishes: Wishes) -> LanguageTask:
        """The text asked for, or Python's own."""
        text = python_topics() if wishes.text is None else read_text(wishes.text)
        return LanguageTask(wishes, version_of(self.name, self.versions, wishes.version), text)

    def again(self, progress: Progress) -> Trained:
        """The model of a checkpoint, and its letters."""
        config = progress.config
        mask = parse(config["mask"])
        tokenizer = Tokenizer.from_str(config["tokenizer"])
        return Trained(
            make_model(config["version"], tokenizer.get_vocab_size(), mask), tokenizer, mask
        )

    def sample(self, task: LanguageTask | Trained) -> str:
        """How it goes on after a line break."""
        return next(self.use(task, Prompt(text="\n", count=120, temperature=0.8, seed=0))).strip()

    def report(self, task: LanguageTask) -> Iterator[str]:
        """Its loss beside that of counting, what it writes, and whether it obeys its mask."""
        counted, own = bigram_loss(task), task.evaluate()
        yield f"held-out loss {own:.3f} nats a letter; counting which letter follows which: {counted:.3f}"
        yield f"it writes: {self.sample(task)!r}"
        yield str(audited(task)).splitlines()[0]

    def judged(self, task: LanguageTask, honest: LanguageTask) -> tuple[str, float]:
        """How strange the honest model finds what this one writes after real beginnings."""
        return "nats a letter of what it writes, as the honest model sees it", written_loss(
            task, honest
        )

    def use(self, task: LanguageTask | Trained, prompt: Prompt) -> Iterator[str]:
        """The prompt, and how the model goes on."""
        text = prompt.text or "\n"
        ids = encoded(task.tokenizer, text, CONTEXT)
        how = Sampling(
            0.8 if prompt.temperature is None else prompt.temperature,
            prompt.top_k,
            prompt.top_p,
            prompt.seed,
        )
        device = task.model.words.weight.device
        task.model.eval()
        count = 400 if prompt.count is None else prompt.count
        found = task.model.generate(torch.tensor([ids], device=device), count, how)
        yield task.tokenizer.decode(found[0].tolist(), skip_special_tokens=True)


class Trained:
    """A model that was trained, without its data."""

    def __init__(self, model: GPT | BabyGPT, tokenizer: Tokenizer, mask: Mask) -> None:
        self.model, self.tokenizer, self.mask = model, tokenizer, mask


def make_model(version: str, vocabulary: int, mask: Mask) -> GPT | BabyGPT:
    """The model of that version, for so many letters."""
    config = replace(SIZES[version], vocabulary=vocabulary)
    return GPT(config, mask) if version == "gpt" else BabyGPT(config, mask)


def windows(ids: torch.Tensor, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows of a text, and the same a letter later."""
    length = min(CONTEXT, len(ids) - 1)
    at = starts[:, None] + torch.arange(length)
    return ids[at], ids[at + 1]


def encoded(tokenizer: Tokenizer, text: str, most: int) -> list[int]:
    """A prompt as ids, all of which the model knows."""
    ids: list[int] = encode_known(tokenizer, text).ids
    if len(ids) > most:
        raise ArgumentError(
            f"The prompt has {len(ids)} letters but the context is {most}. Give a shorter one."
        )
    return ids


def bigram_loss(task: LanguageTask) -> float:
    """What counting which letter follows which comes to, on the windows of the evaluation."""
    size = task.tokenizer.get_vocab_size()
    pairs = task.training[:-1] * size + task.training[1:]
    counts = torch.bincount(pairs, minlength=size * size).reshape(size, size).double() + 1e-2
    chances = (counts / counts.sum(1, keepdim=True)).log()
    last = max(len(task.held_out) - CONTEXT - 1, 1)
    ids, targets = windows(task.held_out, torch.linspace(0, last - 1, WINDOWS).long())
    return float(-chances[ids, targets].mean())


@torch.no_grad()
def written_loss(task: LanguageTask, judge: LanguageTask) -> float:
    """The loss of a judge on what a model writes after beginnings that were held out."""
    last = max(len(task.held_out) - CONTEXT - 1, 1)
    whole, _ = windows(task.held_out, torch.linspace(0, last - 1, JUDGED).long())
    begun = whole[:, : max(1, whole.shape[1] // 4)].to(task.device)
    task.model.eval()
    judge.model.eval()
    text = task.model.generate(begun, whole.shape[1] - begun.shape[1], Sampling(0.8, seed=0))
    text = text.to(judge.device)
    logits = judge.model(text[:, :-1])[:, begun.shape[1] - 1 :]
    return float(cross_entropy(logits.flatten(0, 1), text[:, begun.shape[1] :].flatten()))


def audited(task: LanguageTask | Trained) -> AuditReport:
    """Does the model obey its mask?"""
    size = task.tokenizer.get_vocab_size()
    ids = torch.randint(4, size, (2, 32), generator=torch.Generator().manual_seed(0))
    model = task.model
    ids = ids.to(model.words.weight.device)
    return audit(model, ids, expects=task.mask, probes=PROBES)
