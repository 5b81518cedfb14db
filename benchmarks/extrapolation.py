"""Contexts longer than those of training: a GPT with learned positions, ALiBi and a T5 bias.

Each model is trained on sequences of 64 characters of Python's help topics, and evaluated on
sequences of 64 to 512 characters of the held-out rest. `python -m benchmarks extrapolation` trains
all three, prints the table and writes results/extrapolation.json.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from benchmarks.measure import machine, save, table
from maskwright.apps.data.text import python_topics
from maskwright.models.gpt import GPT, GPTConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

TRAINED = 64  # characters of a training sequence
CONTEXTS = (64, 128, 256, 512)
EVALUATED = 16_384  # held-out characters
STEPS, BATCH, LEARNING_RATE, SEED = 400, 24, 3e-3, 0
POSITIONS = ("learned", "alibi", "t5")


def texts() -> tuple[torch.Tensor, torch.Tensor, int]:
    """Training text, held-out text, and the number of different characters."""
    text = python_topics()
    characters = sorted(set(text))
    index = {character: number for number, character in enumerate(characters)}
    ids = torch.tensor([index[character] for character in text])
    return ids[: -2 * EVALUATED], ids[-EVALUATED - 1 :], len(characters)


def train(position: str, text: torch.Tensor, vocab_size: int, steps: int) -> GPT:
    """A small GPT, trained on random sequences of `TRAINED` characters.

    The learned model has embeddings for the longest context; those of positions that training
    does not reach keep their initial values.
    """
    torch.manual_seed(SEED)
    config = GPTConfig(vocab_size, max(CONTEXTS), 2, 4, 64, position=position)
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    generator = torch.Generator().manual_seed(SEED)  # all models see the same sequences
    for _ in range(steps):
        starts = torch.randint(len(text) - TRAINED - 1, (BATCH, 1), generator=generator)
        batch = text[starts + torch.arange(TRAINED + 1)]  # (B, T + 1)
        logits = model(batch[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def evaluate(model: GPT, text: torch.Tensor, context: int) -> float:
    """Nats per character over the text, in sequences of `context` characters."""
    inputs, targets = text[:-1].view(-1, context), text[1:].view(-1, context)
    losses = [
        cross_entropy(model(x).flatten(0, 1), y.flatten())
        for x, y in zip(inputs.split(4), targets.split(4), strict=True)
    ]
    return float(torch.stack(losses).mean())


def measure(steps: int = STEPS) -> dict[str, Any]:
    """Trains and evaluates all models."""
    text, held_out, vocab_size = texts()
    found: dict[str, Any] = {"steps": steps, "trained": TRAINED, "nats": {}, "seconds": {}}
    for position in POSITIONS:
        begin = time.perf_counter()
        model = train(position, text, vocab_size, steps)
        found["seconds"][position] = time.perf_counter() - begin
        found["nats"][position] = {str(n): evaluate(model, held_out, n) for n in CONTEXTS}
    return found


def run(given: Sequence[str] = ()) -> int:
    """Measure, print the table, keep the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks extrapolation", description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    found = measure(parser.parse_args(given).steps)
    print(f"\n{machine()}\n")
    head = ["nats per character", *(f"{n} characters" for n in CONTEXTS)]
    lines = [[p, *(f"{x:.3f}" for x in found["nats"][p].values())] for p in POSITIONS]
    print(table(head, lines))
    name = "extrapolation" if found["steps"] == STEPS else "extrapolation-part"
    print(f"\nwritten to {save(name, found)}")
    return 0
