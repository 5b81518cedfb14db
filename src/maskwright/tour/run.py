"""The tour: short chapters, each of which shows the code that it runs and what that gives.

What may enter: chapters of a few lines on things that exist. The code shown is the code run.
"""

from __future__ import annotations

import ast
import contextlib
import io
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Chapter(NamedTuple):
    """A title, a sentence or two, and the code to show and run."""

    title: str
    words: str
    code: str


CHAPTERS: Final = (
    Chapter(
        "Say a mask",
        "A mask says which keys each query may see. Atoms name simple sets of them; & | ~ combine\n"
        "them. Here two sentences of 3 and 4 tokens are padded to 4, and no token sees the future.",
        """
import maskwright as mw
mask = mw.causal() & mw.padding(lengths=[3, 4])
print(mask.on(4))
""",
    ),
    Chapter(
        "Ask why",
        "Every cell can be asked which term stops it, or lets it through.",
        """
mask.on(4).why(0, 2)
mask.on(4).why(3, 3, batch=0)
mask.on(4).why(3, 2, batch=0)
""",
    ),
    Chapter(
        "See why masks go before the softmax",
        "Hidden scores become -inf, so that softmax gives them no weight at all, and the rest of\n"
        "the row still adds up to 1.",
        """
import numpy as np
scores = np.array([[0.8, 0.2, 0.9], [0.4, 0.7, 0.5], [0.3, 1.1, 0.6]])
hidden = np.where(mw.causal().on(3).dense()[0, 0], scores, -np.inf)
weights = np.exp(hidden) / np.exp(hidden).sum(axis=1, keepdims=True)
weights.round(4)
""",
    ),
    Chapter(
        "Compose what papers name",
        "Sliding windows, attention sinks, packed documents, trees of drafts: all are compositions.\n"
        "The recipes are the ones with a name.",
        """
mw.recipes.sinks(3, sinks=1)
print(mw.recipes.sinks(3, sinks=1).on(8))
print(mw.recipes.packed(lengths=[[3, 2, 3]]).on(8))
""",
    ),
    Chapter(
        "Decode with a cache",
        "Positions are absolute, so one row of a long mask is the mask of one decoding step.",
        """
whole = mw.window(back=2).on(6)
whole.step(4, kv_len=5).dense().astype(int)
""",
    ),
    Chapter(
        "Hand it over",
        "Frameworks say masks in their own ways. Each gets exactly this mask, or a refusal that\n"
        "names what it can't say.",
        """
mw.lower(mw.window(back=1), "additive", q_len=3)
print(mw.explain_lowering(mask, "numpy", q_len=4))
try:
    mw.lower(mw.causal() | mw.prefix([3]), "flash.varlen", q_len=8)
except mw.Unsupported as refusal:
    print(refusal)
""",
    ),
    Chapter(
        "Read one back",
        "A tensor that somebody left behind says what it is, and what is wrong with it.",
        """
mw.recognize(mw.lower(mask, "additive", q_len=4, fill=-1e9))
print(mw.lint(np.triu(np.ones((4, 4))), causal=True))
""",
    ),
    Chapter(
        "Stay exact at a million tokens",
        "A mask is kept as intervals of keys, a few a row. Nothing of the size T × T is built.",
        """
import time
start = time.perf_counter()
long = mw.causal() & mw.window(back=4095) & mw.documents(lengths=[[2048] * 512])
bound = long.on(1_048_576)
bound.spans
bound.tiles(128)
f"{time.perf_counter() - start:.2f} s, {bound.spans.starts.nbytes * 3 / 1e6:.0f} MB; \
a dense mask would take {1_048_576**2 / 1e9:,.0f} GB"
""",
    ),
    Chapter(
        "Where to go next",
        "maskwright show 'causal() | prefix(3)'    draws any mask in the terminal\n"
        "help(mw.padding), help(mw.recipes)        tell about every atom and recipe\n"
        "docs/masks.md                             the conventions and the whole table of atoms",
        "",
    ),
)


def walk(chapter: int | None = None) -> Iterator[str]:
    """The lines of one chapter, or of all; code is run as it is shown."""
    if chapter is not None and not 1 <= chapter <= len(CHAPTERS):
        raise ArgumentError(
            f"tour: there is no chapter {chapter}. Give a number from 1 to {len(CHAPTERS)}."
        )
    names: dict[str, Any] = {}
    for number, part in enumerate(CHAPTERS, start=1):
        shown = chapter in (None, number)
        if shown:
            yield f"── {number}. {part.title} " + "─" * max(0, 80 - len(part.title))
            yield part.words
            yield ""
        for line in _run(part.code, names):
            if shown:
                yield line
        if shown:
            yield ""


def _run(code: str, names: dict[str, Any]) -> Iterator[str]:
    """Each statement as a prompt would show it, and then what it gives."""
    for statement in ast.parse(code).body:
        source = ast.get_source_segment(code, statement) or ""
        first, *rest = source.splitlines()
        yield f">>> {first}"
        yield from (f"... {line}" for line in rest)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if isinstance(statement, ast.Expr):
                value = eval(compile(ast.Expression(statement.value), "<tour>", "eval"), names)
            else:
                value = None
                exec(compile(ast.Module([statement], []), "<tour>", "exec"), names)
        yield from printed.getvalue().splitlines()
        if value is not None:
            yield from repr(value).splitlines()
