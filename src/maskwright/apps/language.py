"""A character-level language model: BabyGPT with one head, with several, and a GPT.

The data is Python's own help, or any text. The report compares the model with a bigram model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from maskwright.apps import Prompt, Task, TaskOptions
from maskwright.apps.data.text import character_tokenizer, encode_prompt, python_topics, read_text
from maskwright.apps.trainer import TrainingConfig, step_generator
from maskwright.models.gpt import GPT, BabyGPT, GPTConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from maskwright.core.expr import Mask

BLOCK_SIZE = 128
HELD_OUT = 0.1  # the end of the text
NUM_WINDOWS = 64  # of the held-out text, per evaluation
NUM_SCORED = 32  # generated texts to be scored
PRESETS = {  # the sizes of the model, and hyperparameters of training
    "gpt": (GPTConfig(0, BLOCK_SIZE, n_embd=128, n_head=4, n_layer=4), TrainingConfig(800, 2e-3)),
    "v4": (GPTConfig(0, BLOCK_SIZE, n_embd=128, n_head=8, n_layer=1), TrainingConfig(1500, 3e-3)),
    "v3": (GPTConfig(0, BLOCK_SIZE, n_embd=128, n_head=1, n_layer=1), TrainingConfig(1500, 3e-3)),
}

Batch = tuple[torch.Tensor, torch.Tensor]  # ids and labels, (B, T) each


class Language(Task):
    """Continues a text, character by character."""

    name = "language"
    summary = "a character-level language model: BabyGPT v3, v4, and a GPT"
    versions = tuple(PRESETS)
    own_data = ("text",)
    default_batch_size = 32
    tokenizers = ("tokenizer",)
    model_config = PRESETS["gpt"][0]

    model: GPT | BabyGPT

    @classmethod
    def training_config(cls, options: TaskOptions) -> TrainingConfig:
        """Some minutes on two cores."""
        return replace(PRESETS[cls.resolve_version(options)][1], seed=options.seed)

    def load_data(self) -> None:
        """The user's text or Python's help, split into training and held-out."""
        path = self.options.text
        text = python_topics() if path is None else read_text(path)
        self.tokenizer = character_tokenizer([text])
        ids = torch.tensor(self.tokenizer.encode(text).ids)
        cut = int(len(ids) * (1 - HELD_OUT))
        self.training, self.held_out = ids[:cut], ids[cut:]

    def make_config(self) -> GPTConfig:
        """The sizes of the version."""
        return replace(PRESETS[self.version][0], vocab_size=self.tokenizer.get_vocab_size())

    def make_model(self, config: GPTConfig) -> GPT | BabyGPT:
        """A GPT, or a BabyGPT for v3 and v4."""
        return (GPT if self.version == "gpt" else BabyGPT)(config, self.mask)

    def batch(self, step: int, micro_step: int) -> Batch:
        """Random windows of the text."""
        generator = step_generator(self.options.seed, step, micro_step)
        last = max(len(self.training) - BLOCK_SIZE - 1, 1)
        starts = torch.randint(last, (self.batch_size,), generator=generator)
        return windows(self.training, starts)

    def loss(self, batch: Batch) -> torch.Tensor:
        """Cross-entropy of the next character."""
        ids, labels = (x.to(self.device) for x in batch)
        return cross_entropy(self.model(ids).flatten(0, 1), labels.flatten())

    def num_tokens(self, batch: Batch) -> int:
        """Characters of a batch."""
        return int(batch[0].numel())

    def held_out_batch(self, count: int = NUM_WINDOWS) -> Batch:
        """Evenly spaced windows of the held-out text."""
        last = max(len(self.held_out) - BLOCK_SIZE - 1, 1)
        return windows(self.held_out, torch.linspace(0, last - 1, count).long())

    def sample(self) -> str:
        """A continuation of a line break."""
        prompt = Prompt(text="\n", max_new_tokens=120, temperature=0.8, seed=0)
        return next(self.predict(prompt)).strip()

    def report(self) -> Iterator[str]:
        """Held-out loss compared with that of a bigram model, and a sample."""
        yield (
            f"held-out loss {self.evaluate():.3f} nats/character; "
            f"bigram model: {self.bigram_loss():.3f}"
        )
        yield f"sample: {self.sample()!r}"

    def bigram_loss(self) -> float:
        """The loss of a bigram model on the windows of the evaluation."""
        size = self.tokenizer.get_vocab_size()
        pairs = self.training[:-1] * size + self.training[1:]
        counts = torch.bincount(pairs, minlength=size * size).reshape(size, size).double() + 1e-2
        log_probs = (counts / counts.sum(1, keepdim=True)).log()
        ids, labels = self.held_out_batch()
        return float(-log_probs[ids, labels].mean())

    @torch.no_grad()
    def score_generation(self, reference: Any) -> tuple[str, float]:
        """The reference's loss on what this model writes after held-out beginnings."""
        text, _ = self.held_out_batch(NUM_SCORED)
        prompt_len = max(1, text.shape[1] // 4)
        self.model.eval()
        reference.model.eval()
        prompts, count = text[:, :prompt_len].to(self.device), text.shape[1] - prompt_len
        written = self.model.generate(prompts, count, temperature=0.8, seed=0).to(reference.device)
        logits = reference.model(written[:, :-1])[:, prompt_len - 1 :]
        loss = cross_entropy(logits.flatten(0, 1), written[:, prompt_len:].flatten())
        return "nats/character of its text under the reference model", float(loss)

    def predict(self, prompt: Prompt) -> Iterator[str]:
        """The prompt and its continuation."""
        ids = encode_prompt(self.tokenizer, prompt.text or "\n", BLOCK_SIZE)
        self.model.eval()
        generated = self.model.generate(
            torch.tensor([ids], device=self.device),
            400 if prompt.max_new_tokens is None else prompt.max_new_tokens,
            temperature=0.8 if prompt.temperature is None else prompt.temperature,
            top_k=prompt.top_k,
            top_p=prompt.top_p,
            seed=prompt.seed,
        )
        yield self.tokenizer.decode(generated[0].tolist(), skip_special_tokens=True)

    def audit_inputs(self) -> tuple[Any, Any, Mapping[str | None, Mask]]:
        """Random characters."""
        assert self.mask is not None
        ids = self.random_ids(4, self.tokenizer.get_vocab_size(), (2, 32))
        return self.model, ids, {None: self.mask}


def windows(ids: torch.Tensor, starts: torch.Tensor) -> Batch:
    """Windows of a text, and the same one character later."""
    length = min(BLOCK_SIZE, len(ids) - 1)
    index = starts[:, None] + torch.arange(length)
    return ids[index], ids[index + 1]
