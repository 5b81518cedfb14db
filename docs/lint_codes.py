"""The page of lint codes: the meaning of each, an example call, and its output."""

from __future__ import annotations

import ast
from typing import Any, Final

from maskwright.linting.codes import CODES, Code, Subject

SETUP: Final = """\
import numpy as np
import maskwright as mw
past = np.tri(4, dtype=bool)  # causal
real = np.arange(4) < np.array([[2], [4]])  # (batch, key): sequences of 2 and 4 tokens
keys = real[:, None, None, :]  # their padding mask, (batch, heads, query, key)
def added(keep, fill):
    return np.where(keep, 0, fill).astype(np.float32)
"""

TITLES: Final = {
    Subject.VALUES: "Values of an array or a bias",
    Subject.SHAPE: "Shape of an array",
    Subject.CELLS: "Cells of a mask",
}

EXAMPLES: Final = {
    "bias-hides": "mw.bias.tensor(added(past, -1e9))",
    "fill-at-limit": "added(past & (np.arange(4) > 0), np.finfo(np.float32).min)",
    "fill-overflows": 'added(past, -1e9), dtype="float16"',
    "fill-too-weak": "added(past, -1), causal=True",
    "integer-bias": "(1 - past.astype(int)) * -10_000, causal=True",
    "integer-wrapped": '~past.astype(int), to="drop", causal=True',
    "nan-value": "np.where(past, np.nan, -np.inf), causal=True",
    "odd-values": "[[0, 0, 1, 1, 2, 2]]",
    "positive-value": "added(past, 1e9), causal=True",
    "summed-fills": "added(past, -1e9) + added(keys, -1e9), causal=True, padding=[2, 4]",
    "wrong-dtype": 'past.astype(int), to="torch.sdpa"',
    "wrong-form": 'added(past, -np.inf), to="keep"',
    "zero-one-added": "past.astype(np.float32), causal=True",
    "wrong-device": 'past, device="cuda"',
    "batch-on-heads": "(past & keys)[:, 0], heads=2, padding=[2, 4], causal=True",
    "batch-on-queries": "np.arange(4) < [[2], [4], [1], [3]], padding=[2, 4, 1, 3]",
    "does-not-broadcast": "past & keys, batch=3",
    "does-not-fit": "past & keys, padding=[3, 9]",
    "keys-mismatch": "past, kv_len=5",
    "queries-mismatch": "past, q_len=3",
    "wrong-rank": "(past & keys)[None]",
    "aligned-lower-right": "np.tri(2, 4, 2, dtype=bool), causal=True, q_start=0",
    "aligned-upper-left": "np.tri(2, 4, dtype=bool), causal=True",
    "differs": "past, expects=mw.window(back=1)",
    "documents-leak": "past, causal=True, documents=[[2, 2]]",
    "empty-row": "past & (np.arange(4) > 0)",
    "future-visible": "np.ones((4, 4), bool), causal=True",
    "inverted": "~past, causal=True",
    "own-position-hidden": "np.tri(4, k=-1, dtype=bool), causal=True",
    "padding-on-queries": "real[:, None, :, None], padding=[2, 4], kv_len=4",
    "padding-visible": "past, padding=[2, 4], causal=True",
    "queries-and-keys-swapped": "past.T, causal=True",
    "real-key-hidden": "past & keys & (np.arange(4) != 1), padding=[2, 4], causal=True",
    "window-missing": "mw.causal(), q_len=9, window=3",
    "window-off-by-one": "mw.window(back=3), q_len=9, window=3",
    "window-too-narrow": "mw.window(back=1), q_len=9, window=6",
    "window-too-wide": "mw.window(back=5), q_len=9, window=3",
}

NOTES: Final = {"no-values": "Tensors on the `meta` device, for example."}


def sections() -> str:
    """A heading for each code of lint, with its severity, meaning, example and output."""
    names: dict[str, Any] = {}
    exec(SETUP, names)
    lines = ["```pycon", *_prompted(SETUP), "```", ""]
    for subject, title in TITLES.items():
        lines += [f"## {title}", ""]
        for code in CODES.values():
            if code.lint and code.subject is subject:
                lines += _section(code, names)
    return "\n".join(lines).rstrip()


def _section(code: Code, names: dict[str, Any]) -> list[str]:
    meaning = str(code.meaning)
    lines = [
        f"### {code.name}",
        "",
        f"{meaning[0].upper()}{meaning[1:]} ({code.severity.value}).",
        "",
    ]
    if code.name in NOTES:
        lines += [NOTES[code.name], ""]
    if code.name in EXAMPLES:
        call = f"mw.lint({EXAMPLES[code.name]})"
        lines += ["```pycon", f">>> {call}", repr(eval(call, names)), "```", ""]
    return lines


def _prompted(source: str) -> list[str]:
    """Source with the prompts of the interpreter."""
    firsts = {statement.lineno for statement in ast.parse(source).body}
    lines = enumerate(source.splitlines(), start=1)
    return [f"{'>>>' if number in firsts else '...'} {line}" for number, line in lines]
