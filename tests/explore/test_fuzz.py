"""Random and near-valid requests: never a crash, always JSON with a sentence for what is refused.

MASKWRIGHT_EXPLORE_CASES asks for more of them, and then for the workers' memory too.
"""

from __future__ import annotations

import base64
import io
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskwright.explore.requests import MOST_SIZE, PAD, READERS
from maskwright.explore.vocabulary import EXAMPLES, RECIPE_EXAMPLES
from tests.explore.test_requests import VALID

if TYPE_CHECKING:
    from tests.explore.conftest import Page

LONG = int(os.environ.get("MASKWRIGHT_EXPLORE_CASES", "0"))
CASES = LONG or 65
STATUSES = {200, 400, 413, 422, 503, 504}
ROOM = 200 * 2**20  # bytes that a worker may keep: what was imported, and what the heap holds

# ── what is sent ──────────────────────────────────────────────────────────────────────────────

odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.lists(st.integers(-3, 3), max_size=4),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)


def rarely(usual: st.SearchStrategy[Any], strange: st.SearchStrategy[Any]) -> Any:
    """Mostly the one, now and then the other."""
    return st.sampled_from([usual] * 24 + [strange]).flatmap(lambda chosen: chosen)


sizes = rarely(
    st.sampled_from([8] * 12 + [1, 2, 3, 9, 16, 64, 300, 4096, 2**16, MOST_SIZE]),
    st.sampled_from([-1, 0, 2**21]),
)
atoms = st.sampled_from([*EXAMPLES.values(), *(repr(mask) for _, mask, _ in RECIPE_EXAMPLES)])
expressions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds("({} & {})".format, inner, inner),
        st.builds("({} | {})".format, inner, inner),
        st.builds("({} - {})".format, inner, inner),
        st.builds("~({})".format, inner),
        st.builds("({}).T".format, inner),
        st.builds("by_head([{}, {}])".format, inner, inner),
    ),
    max_leaves=5,
)
letters = st.text("causl()wind(back=3, ahead)|&~[]01.T 猫'\"\\\n", max_size=40)
texts = rarely(expressions, st.one_of(letters, st.text(max_size=40)))
words = st.sampled_from(["I", "like", "猫", PAD, "👩‍👩‍👧", "<b>", ""])


@st.composite
def token_rows(draw: st.DrawFn) -> Any:
    length = draw(st.sampled_from([8] * 6 + [1, 3, 16]))
    row = st.lists(words, min_size=length, max_size=length)
    return draw(st.lists(row, min_size=1, max_size=3))


few = st.sampled_from([None, None, None, 1, 2, 3])
subjects = st.fixed_dictionaries(
    {"expression": texts},
    optional={
        "tokens": rarely(st.one_of(st.none(), token_rows()), odd),
        "padding": st.booleans(),
        "size": sizes,
        "keys": st.one_of(st.none(), st.none(), sizes),
        "q_start": st.one_of(st.none(), st.integers(-9, 40), st.sampled_from([0, 2**20])),
        "batch": few,
        "heads": few,
    },
)
small = rarely(st.integers(0, 3), st.integers(-1, 99))
index = rarely(st.sampled_from([0, 0, 0, 0, 1]), st.integers(-1, 99))
views = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {"row": small, "rows": st.integers(1, 4), "key": small, "keys": st.integers(1, 4)}
    ),
)
numbers = st.one_of(st.integers(-5, 5), st.floats(-1e6, 1e6))


def matrix(rows: int, columns: int) -> Any:
    row = st.lists(numbers, min_size=columns, max_size=columns)
    return st.lists(row, min_size=rows, max_size=rows)


few_sizes = rarely(st.integers(1, 5), st.sampled_from([0, 65]))
values = st.one_of(
    st.fixed_dictionaries({}, optional={"seed": small, "width": few_sizes, "head_size": few_sizes}),
    st.fixed_dictionaries({"scores": rarely(matrix(8, 8), matrix(2, 3))}),
    st.fixed_dictionaries(
        {"x": rarely(matrix(8, 3), matrix(2, 2))},
        optional={"wq": matrix(3, 2), "wk": matrix(3, 2), "wv": rarely(matrix(3, 4), matrix(2, 0))},
    ),
)
cells = st.one_of(st.integers(-2, 2), st.booleans(), st.sampled_from(["-inf", "nan", 0.0, -1e9]))


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    shape = draw(st.lists(rarely(st.integers(1, 4), st.just(0)), min_size=1, max_size=4))
    cell = draw(st.sampled_from([cells, st.booleans(), st.integers(0, 1)]))

    def made(sides: list[int]) -> Any:
        return [made(sides[1:]) for _ in range(sides[0])] if sides else draw(cell)

    return made(shape)


@st.composite
def npys(draw: st.DrawFn) -> str:
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    dtype = draw(st.sampled_from(["?", "i1", "u8", "f2", "f8", "c8", "U3"]))
    file = io.BytesIO()
    save = draw(st.sampled_from([np.save, np.savez_compressed]))
    save(file, np.ones(shape, dtype))
    data = bytearray(file.getvalue())
    for place in draw(rarely(st.just([]), st.lists(st.integers(0, len(data) - 1), max_size=3))):
        data[place] = draw(st.integers(0, 255))
    return base64.b64encode(bytes(data)).decode()


FILES = {"array": arrays(), "npy": npys()}
plane = {"batch": index, "head": index}
most = rarely(st.integers(1, 20), st.sampled_from([0, 513]))
FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tokens": (
        {"text": st.text(max_size=80)},
        {"side": rarely(st.sampled_from(["left", "right"]), odd)},
    ),
    "mask": ({"subject": subjects}, {**plane, "view": views, "most": most}),
    "why": ({"subject": subjects, "query": small, "key": small}, plane),
    "steps": (
        {"subject": subjects},
        {
            **plane,
            "values": values,
            "scaled": st.booleans(),
            "fill": st.one_of(st.just("-inf"), numbers, st.just(-1e38)),
            "rows_too": st.booleans(),
        },
    ),
    "generate": ({"subject": subjects}, {**plane, "values": values}),
    "compare": (
        {"subject": subjects, "others": st.lists(texts, min_size=1, max_size=2)},
        {**plane, "view": views, "most": most},
    ),
    "code": ({"subject": subjects}, {}),
    "cost": ({"subject": subjects}, {}),
    "scaling": (
        {},
        {"sizes": st.lists(rarely(st.integers(1, 64), st.just(0)), max_size=4), "seed": small},
    ),
    "recognise": ({}, {"causal": st.booleans()}),
    "picture": (
        {"subject": subjects},
        {**plane, "view": views, "format": st.just("svg"), "theme": st.just("dark")},
    ),
}


@st.composite
def bodies(draw: st.DrawFn, name: str) -> bytes:
    """Mostly near-valid; sometimes with a field that is odd, and sometimes no JSON at all."""
    needed, optional = FIELDS[name]
    data = draw(st.fixed_dictionaries(needed, optional=optional))
    if name == "recognise":
        data |= draw(st.one_of(*(st.fixed_dictionaries({n: s}) for n, s in FILES.items())))
    way = draw(st.sampled_from([9] * 36 + [0, 1, 2, 3]))
    if way == 0:
        data[draw(st.sampled_from([*needed, *optional, "surprise"]))] = draw(odd)
    if way == 1 and "subject" in data:
        data["subject"][draw(st.sampled_from(["size", "tokens", "keys", "padding"]))] = draw(odd)
    body = json.dumps(data).encode()
    if way == 2:
        body = body[: draw(st.integers(0, len(body)))]
    return draw(st.binary(max_size=30)) if way == 3 else body


# ── what comes back ───────────────────────────────────────────────────────────────────────────


def test_every_request_is_tried() -> None:
    assert set(FIELDS) == set(READERS)


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_whatever_is_sent_is_answered_or_refused_in_a_sentence(page: Page, name: str) -> None:
    counts: dict[int, int] = {}

    @settings(max_examples=max(CASES // len(FIELDS), 5))
    @given(bodies(name))
    def test(body: bytes) -> None:
        headers = {**page.headers, "Content-Type": "application/json"}
        reply = page.client.post(f"/api/{name}", content=body, headers=headers)
        counts[reply.status_code] = counts.get(reply.status_code, 0) + 1
        assert reply.status_code in STATUSES, reply.text
        if reply.headers["content-type"] == "image/svg+xml":
            assert b"<svg" in reply.content
            return
        data = reply.json()
        if reply.status_code != 200:
            assert set(data["error"]) == {"message", "kind", "at"}
            assert data["error"]["message"].rstrip()[-1] in ".?!", data
            assert data["error"]["kind"] not in ("Unexpected", "WorkerDied")

    test()
    assert counts[200] > sum(counts.values()) // 10  # else nothing much was tried
    assert page.post(name, VALID[name]).status_code == 200  # the workers still work


@pytest.mark.skipif(not LONG, reason="set MASKWRIGHT_EXPLORE_CASES, for example to 10000")
def test_workers_give_their_memory_back(page: Page) -> None:
    """After all of the above; what stays is about what a worker had once it knew all requests."""
    for _ in range(8):  # so that both have imported everything
        for name, data in VALID.items():
            page.post(name, data)
    before = {pid: resident(pid) for pid in page.crew.pids}
    big = {"subject": {"expression": "causal() & (window(back=9) | keys([0]))", "size": MOST_SIZE}}
    for _ in range(20):
        assert page.post("mask", big).status_code == 200
    for pid in page.crew.pids & set(before):
        assert resident(pid) < before[pid] + ROOM


def resident(pid: int) -> int:
    """Bytes that a process holds in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
