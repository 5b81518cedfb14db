"""Python code cut into parts, each with a kind that decides its colour."""

from __future__ import annotations

import io
import keyword
import tokenize
from typing import Final, Literal, NamedTuple

Kind = Literal["plain", "keyword", "text", "number", "comment"]

KINDS: Final[dict[int, Kind]] = {
    tokenize.STRING: "text",
    tokenize.NUMBER: "number",
    tokenize.COMMENT: "comment",
    # From Python 3.12 on an f-string comes in pieces.
    **{
        getattr(tokenize, name): "text"
        for name in ("FSTRING_START", "FSTRING_MIDDLE", "FSTRING_END")
        if hasattr(tokenize, name)
    },
}


class Part(NamedTuple):
    """A stretch of code, without line breaks."""

    kind: Kind
    text: str


def lines_of(source: str) -> list[list[Part]]:
    """The parts of every line; joined, they are the line.

    >>> from maskwright.tour.source import lines_of
    >>> [(part.kind, part.text) for part in lines_of("import x  # why")[0]]
    [('keyword', 'import'), ('plain', ' x  '), ('comment', '# why')]
    """
    lines = source.splitlines()
    kinds: list[list[Kind]] = [["plain"] * len(line) for line in lines]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = KINDS.get(token.type, "plain")
        if token.type == tokenize.NAME and keyword.iskeyword(token.string):
            kind = "keyword"
        if kind != "plain":
            (row, first), (last_row, stop) = token.start, token.end
            for at in range(row - 1, last_row):
                begin = first if at == row - 1 else 0
                end = stop if at == last_row - 1 else len(lines[at])
                kinds[at][begin:end] = [kind] * (end - begin)
    return [_joined(line, own) for line, own in zip(lines, kinds, strict=True)]


def _joined(line: str, kinds: list[Kind]) -> list[Part]:
    parts: list[Part] = []
    for sign, kind in zip(line, kinds, strict=True):
        if parts and parts[-1].kind == kind:
            parts[-1] = Part(kind, parts[-1].text + sign)
        else:
            parts.append(Part(kind, sign))
    return parts
