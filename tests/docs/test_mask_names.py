"""Masks that the documentation calls causal do not attend to later positions."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

import maskwright as mw
from maskwright.recipes.registry import EXAMPLES, example_masks

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
CAUSAL = re.compile(
    r"\bcausal\b|\bdecoder\b|\bsinks?\b|autoregressive|因果|解码器|注意力汇", re.IGNORECASE
)
CODE = re.compile(r'`([^`]+)`|"([^"]+)"')  # inline code, and quoted arguments of commands
CAUSAL_RECIPES = {
    "chunked",
    "gpt",
    "packed",
    "sinks",
    "sliding",
    "sparse_transformer",
    "translation.decoder",
}


def causal_masks(text: str) -> list[mw.Mask]:
    """The mask expressions in sentences that call them causal; code is not part of the sentence."""
    found = []
    for sentence in re.split(r"(?<=[.;。；])\s|\n\n|\n(?=\||\$|- )", text):
        if not CAUSAL.search(CODE.sub("", sentence)):
            continue
        for inline, quoted in CODE.findall(sentence):
            with contextlib.suppress(mw.MaskError):  # other code
                found.append(mw.parse((inline or quoted).replace("\\|", "|").replace("mw.", "")))
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_masks_called_causal_are_causal(path: Path) -> None:
    for mask in causal_masks(path.read_text(encoding="utf-8")):
        assert mw.lint(mask, q_len=16, causal=True).ok, mask


def test_a_leaking_mask_called_causal_is_found() -> None:
    [leaks] = causal_masks("A window with sinks: `window(back=255) \\| keys(range(4))`.")
    assert mw.lint(leaks, q_len=16, causal=True).codes == ("future-visible",)


@pytest.mark.parametrize("name", sorted(CAUSAL_RECIPES))
def test_causal_recipes_are_causal(name: str) -> None:
    recipe = name.split(".")[0]
    size = EXAMPLES[recipe].size or 8
    assert mw.lint(dict(example_masks(recipe))[name], q_len=size, causal=True).ok
