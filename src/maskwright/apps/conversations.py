"""Conversations as pairs, a line and its answer: the ChatterBot corpus, and what is held out of any."""

from __future__ import annotations

from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from maskwright._optional_deps import require
from maskwright.apps.training import seeded
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

Pair = tuple[str, str]
HELD_OUT = 0.1  # of the prompts


def corpus(language: str) -> list[Pair]:
    """Lines of the ChatterBot corpus in a language, each with the line that answers it.

    >>> from maskwright.apps.conversations import corpus
    >>> len(corpus("spanish")) > 500
    True
    """
    with require("dialogue"):
        folder = Path(import_module("chatterbot_corpus.corpus").DATA_DIRECTORY) / language
        yaml = import_module("yaml")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    pairs: list[Pair] = []
    for path in sorted(folder.glob("*.yml")):
        held = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
        for lines in held["conversations"]:
            if isinstance(lines, list):  # a few are a single line, which nothing answers
                said = [" ".join(str(line).split()) for line in lines]
                pairs += [pair for pair in pairwise(said) if all(pair)]
    return pairs


def split(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Pairs to train on, and pairs held out: neither their prompts nor their replies are trained on.

    >>> from maskwright.apps.conversations import split
    >>> training, held_out = split([(f"prompt {n}", f"reply {n}") for n in range(20)])
    >>> len(training), len(held_out)
    (18, 2)
    """
    pairs = list(dict.fromkeys(pairs))
    prompts = list(dict.fromkeys(_plain(prompt) for prompt, _ in pairs))
    order = torch.randperm(len(prompts), generator=seeded(0, 0)).tolist()
    chosen = {prompts[n] for n in order[: max(1, round(HELD_OUT * len(prompts)))]}
    training = [pair for pair in pairs if _plain(pair[0]) not in chosen]
    known = {_plain(reply) for _, reply in training}
    held_out = [p for p in pairs if _plain(p[0]) in chosen and _plain(p[1]) not in known]
    if not training or not held_out:
        raise ArgumentError(
            "The pairs are so alike that none can be held out. Give more prompts and replies."
        )
    return training, held_out


def _plain(text: str) -> str:
    """A line without capitals and marks, to tell whether two are the same."""
    return "".join(letter for letter in text.casefold() if letter.isalnum()) or text
