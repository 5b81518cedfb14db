"""The library's reasons in Chinese, by patterns; a sentence with a part that is unknown has none.

The texts are those of `core/why.py` and of every atom's `_reason`.
"""

from __future__ import annotations

import re
from typing import Final

_START = re.compile(r"query (\d+)(?: \(at position (-?\d+)\))? (may|may not) see key (\d+): (.*)")
_FOLLOWS = re.compile(r"(head|batch row) (\d+) follows (.*)")
_DECIDES = re.compile(r"(.*) (lets it through|stops it) \((.*)\)")
_WOULD = re.compile(r"(.*) would allow it")

REASONS: Final = tuple(
    (re.compile(english), chinese)
    for english, chinese in (
        (r"with query and key changed over, ", "把查询与键对调后，"),
        (r"it allows every key", "它允许所有的键"),
        (r"it allows no key", "它不允许任何键"),
        (r"key (-?\d+) is in the prefix of (\d+)", r"键 \1 在长度为 \2 的前缀之内"),
        (r"key (-?\d+) is after the prefix of (\d+)", r"键 \1 在长度为 \2 的前缀之后"),
        (r"both in chunk (-?\d+)", r"两者同在第 \1 块"),
        (r"query in chunk (-?\d+), key in chunk (-?\d+)", r"查询在第 \1 块，键在第 \2 块"),
        (r"a token sees itself", "词元总能看到自己"),
        (r"key (-?\d+) is an ancestor of query (-?\d+)", r"键 \1 是查询 \2 的祖先"),
        (r"key (-?\d+) is no ancestor of query (-?\d+)", r"键 \1 不是查询 \2 的祖先"),
        (r"a node sees itself", "节点能看到自己"),
        (r"there is an edge from (-?\d+) to (-?\d+)", r"从 \1 到 \2 有边"),
        (r"there is no edge from (-?\d+) to (-?\d+)", r"从 \1 到 \2 没有边"),
        (r"pixel (\(.*?\)) is in the neighbourhood of (\(.*?\))", r"像素 \1 在 \2 的邻域内"),
        (r"pixel (\(.*?\)) is not in the neighbourhood of (\(.*?\))", r"像素 \1 不在 \2 的邻域内"),
        (r"key (-?\d+) is a real token of sequence (\d+)", r"键 \1 是序列 \2 的真实词元"),
        (r"key (-?\d+) is padding of sequence (\d+)", r"键 \1 是序列 \2 的填充"),
        (r"both in document (\d+)", r"两者同在文档 \1"),
        (r"query in document (\d+)", r"查询在文档 \1 中"),
        (r"query in padding", "查询是填充"),
        (r", key in document (\d+)", r"，键在文档 \1 中"),
        (r", key in padding", "，键是填充"),
        (r"key (-?\d+) is chosen", r"键 \1 被选中"),
        (r"key (-?\d+) is not chosen", r"键 \1 未被选中"),
        (r"query (-?\d+) is chosen", r"查询 \1 被选中"),
        (r"query (-?\d+) is not chosen", r"查询 \1 未被选中"),
        (r"the array holds (True|False) there", r"数组在此处为 \1"),
        (r"their block is switched on", "它们所在的块是打开的"),
        (r"their block is switched off", "它们所在的块是关闭的"),
        (r"the predicate says (True|False)", r"判定函数给出 \1"),
    )
)
# What may be left of Latin letters: calls such as window(back=3), .T, and what mathematics uses.
_CALL = re.compile(r"[a-z_]+\((?:[^()\[\]]|\[[^\[\]]*\])*\)|\.T\b|\b(?:True|False|mod)\b")


def translate(sentence: str) -> str | None:
    """The sentence of a `Why` in Chinese, or None if part of it is not known.

    >>> import maskwright as mw
    >>> translate(str((mw.causal() & mw.padding(lengths=[3])).on(4).why(0, 2)))
    '查询 0 看不到键 2：causal() 拦下了它（2 > 0）；padding(...) 本会放行'
    """
    found = _START.fullmatch(sentence)
    if found is None:
        return None
    query, position, may, key, rest = found.groups()
    verdicts = [_verdict(part) for part in rest.split("; ")]
    if any(verdict is None for verdict in verdicts):
        return None
    at = " " if position is None else f"（位于 {position}）"
    sees = "能看到" if may == "may" else "看不到"
    return f"查询 {query}{at}{sees}键 {key}：" + "；".join(map(str, verdicts))


def _verdict(part: str) -> str | None:
    if found := _FOLLOWS.fullmatch(part):
        who = "头" if found[1] == "head" else "序列"
        return f"{who} {found[2]} 采用 {found[3]}"
    if found := _WOULD.fullmatch(part):
        return f"{found[1].replace(' and ', ' 和 ')} 本会放行"
    if found := _DECIDES.fullmatch(part):
        reason = _reason(found[3])
        verb = "放行" if found[2] == "lets it through" else "拦下了它"
        return None if reason is None else f"{found[1]} {verb}（{reason}）"
    return None


def _reason(english: str) -> str | None:
    said = english
    for pattern, chinese in REASONS:
        said = pattern.sub(chinese, said)
    left = _CALL.sub("", said)
    while left != (left := _CALL.sub("", left)):  # calls within calls
        pass
    return None if re.search(r"[A-Za-z]", left) else said
