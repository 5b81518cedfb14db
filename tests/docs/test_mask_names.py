"""Masks that the documentation presents as causal do not attend to later positions."""

from __future__ import annotations

import ast
import contextlib
import re
from pathlib import Path

import pytest

import maskwright as mw
from docs import commands
from maskwright.core.atoms.index import Keys
from maskwright.core.atoms.position import Window
from maskwright.core.expr import find
from maskwright.core.operators import Or
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
    text = re.sub("```.*?```", "\n\n", text, flags=re.DOTALL)
    for sentence in re.split(r"(?<=[.;。；])\s|\n\n|\n(?=\||\$|- )", text):
        if not CAUSAL.search(CODE.sub("", sentence)):
            continue
        for inline, quoted in CODE.findall(sentence):
            with contextlib.suppress(mw.MaskError):  # other code
                found.append(mw.parse((inline or quoted).replace("\\|", "|").replace("mw.", "")))
    return found


def masks_with_sinks(text: str) -> list[mw.Mask]:
    """The masks in which a window without later keys is united with keys: attention sinks."""
    sources = {inline or quoted for inline, quoted in CODE.findall(text.replace("```", "\n"))}
    for line in re.findall(r"^(?:>>>|\.\.\.) (.+)$", text, re.MULTILINE):
        with contextlib.suppress(SyntaxError):  # a part of a statement
            nodes = ast.walk(ast.parse(line))
            sources |= {ast.unparse(node) for node in nodes if isinstance(node, ast.BinOp)}
    found = []
    for source in sources:
        with contextlib.suppress(mw.MaskError):  # other code
            mask = mw.parse(source.replace("\\|", "|").replace("mw.", ""))
            if any(map(_unites_window_and_keys, find(mask, Or))):
                found.append(mask)
    return found


def _unites_window_and_keys(union: Or) -> bool:
    windows = [term for term in union.terms if isinstance(term, Window)]
    keys = [key for term in union.terms for key in find(term, Keys)]
    return bool(keys) and any(window.ahead == 0 for window in windows)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_masks_called_causal_are_causal(path: Path) -> None:
    for mask in causal_masks(path.read_text(encoding="utf-8")):
        assert mw.lint(mask, q_len=16, causal=True).ok, mask


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_windows_with_sinks_are_causal(path: Path) -> None:
    for mask in masks_with_sinks(path.read_text(encoding="utf-8")):
        assert mw.lint(mask, q_len=16, causal=True).ok, mask


def test_help_shows_windows_with_causal_sinks() -> None:
    [mask] = masks_with_sinks(commands.sections())
    assert mw.lint(mask, q_len=16, causal=True).ok


def test_a_leaking_window_with_sinks_is_found() -> None:
    text = '$ maskwright show "window(back=255) | keys(range(4))" --size 65536'
    [leaks] = masks_with_sinks(text)
    assert leaks == masks_with_sinks(">>> m = mw.window(back=255) | mw.keys(range(4))")[0]
    assert mw.lint(leaks, q_len=16, causal=True).codes == ("future-visible",)


def test_a_leaking_mask_called_causal_is_found() -> None:
    [leaks] = causal_masks("A window with sinks: `window(back=255) \\| keys(range(4))`.")
    assert mw.lint(leaks, q_len=16, causal=True).codes == ("future-visible",)


@pytest.mark.parametrize("name", sorted(CAUSAL_RECIPES))
def test_causal_recipes_are_causal(name: str) -> None:
    recipe = name.split(".")[0]
    size = EXAMPLES[recipe].size or 8
    assert mw.lint(dict(example_masks(recipe))[name], q_len=size, causal=True).ok
