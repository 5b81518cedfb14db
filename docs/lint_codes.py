"""The page of lint codes: what each means, a call that has it, and what lint says to that."""

from __future__ import annotations

import ast
from typing import Any, Final

from maskwright.linting.codes import CODES

SETUP: Final = """\
import numpy as np
import maskwright as mw
past = np.tri(4, dtype=bool)  # causal
real = np.arange(4) < np.array([[2], [4]])  # two sequences, of 2 and of 4 tokens
keys = real[:, None, None, :]  # their padding, for attention of (batch, heads, query, key)
def added(keep, fill):
    return np.where(keep, 0, fill).astype(np.float32)
"""

PARTS: Final = {  # by the first code of each
    "fill-at-limit": "The values of an array",
    "batch-on-heads": "Its shape",
    "aligned-lower-right": "Its cells",
}

EXAMPLES: Final = {
    "fill-at-limit": "added(past & (np.arange(4) > 0), np.finfo(np.float32).min)",
    "fill-overflows": 'added(past, -1e9), dtype="float16"',
    "fill-too-weak": "added(past, -1), causal=True",
    "integer-bias": "(1 - past.astype(int)) * -10_000, causal=True",
    "integer-wrapped": '~past.astype(int), to="drop", causal=True',
    "nan-value": "np.where(past, np.nan, -np.inf), causal=True",
    "odd-values": "[[0, 0, 1, 1, 2, 2]]",
    "positive-value": "added(past, 1e9), causal=True",
    "summed-fills": "added(past, -1e9) + added(keys, -1e9), causal=True, padding=[2, 4]",
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


MORE: Final = {"no-values": "A tensor on the `meta` device is one."}


def sections() -> str:
    """A heading for every code, with its meaning, its example, and what lint says."""
    names: dict[str, Any] = {}
    exec(SETUP, names)
    lines = ["```pycon", *_prompted(SETUP), "```", ""]
    for code, entry in CODES.items():
        if not entry.lint:
            continue
        meaning = str(entry.meaning)
        if code in PARTS:
            lines += [f"## {PARTS[code]}", ""]
        lines += [f"### {code}", "", f"{meaning[0].upper()}{meaning[1:]}.", ""]
        lines += [MORE[code], ""] if code in MORE else []
        if code in EXAMPLES:
            call = f"mw.lint({EXAMPLES[code]})"
            lines += ["```pycon", f">>> {call}", repr(eval(call, names)), "```", ""]
    return "\n".join(lines).rstrip()


def _prompted(source: str) -> list[str]:
    """Source as it is typed at a prompt."""
    firsts = {statement.lineno for statement in ast.parse(source).body}
    lines = enumerate(source.splitlines(), start=1)
    return [f"{'>>>' if number in firsts else '...'} {line}" for number, line in lines]
