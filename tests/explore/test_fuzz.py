"""Random and near-valid requests: never a crash, and a JSON message for what is refused.

MASKWRIGHT_EXPLORE_CASES sets their number, and enables the test of the workers' memory.
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
from msgspec import inspect

from maskwright.explore.page_data import EXAMPLES
from maskwright.explore.schema import MAX_SIZE, PAD, REQUESTS
from maskwright.explore.workers import MAX_MEMORY
from maskwright.recipes.registry import recipe_table
from tests._helpers.explore_requests import VALID

if TYPE_CHECKING:
    from tests.explore.conftest import Page

LONG = int(os.environ.get("MASKWRIGHT_EXPLORE_CASES", "0"))
CASES = LONG or 65
STATUSES = {200, 400, 413, 422, 503, 504}

# ── requests ──────────────────────────────────────────────────────────────────────────────

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
    """Usually the one, rarely the other."""
    return st.sampled_from([usual] * 24 + [strange]).flatmap(lambda chosen: chosen)


sizes = rarely(
    st.sampled_from([8] * 12 + [1, 2, 3, 9, 16, 64, 300, 4096, 2**16, MAX_SIZE]),
    st.sampled_from([-1, 0, 2**21]),
)
atoms = st.sampled_from([*EXAMPLES.values(), *(row.expression for row in recipe_table())])
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


numbers = st.one_of(st.integers(-5, 5), st.floats(-1e6, 1e6))


def matrix(rows: int, columns: int) -> Any:
    row = st.lists(numbers, min_size=columns, max_size=columns)
    return st.lists(row, min_size=rows, max_size=rows)


values = st.one_of(
    st.fixed_dictionaries({}, optional={name: st.integers(0, 4) for name in ("seed", "width")}),
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


# Fields whose values are not generated from their types.
FIELDS = {
    "expression": texts,
    "others": st.lists(texts, min_size=1, max_size=2),
    "tokens": rarely(st.one_of(st.none(), token_rows()), odd),
    "size": sizes,
    "values": values,
    "array": arrays(),
    "npy": npys(),
    "format": st.just("svg"),
}


def of_type(info: Any, name: str = "") -> Any:
    """Values of a type of the schema, mostly small."""
    if name in FIELDS:
        return FIELDS[name]
    if isinstance(info, inspect.StructType):
        fields = {f.encode_name: of_type(f.type, f.encode_name) for f in info.fields}
        required = {f.encode_name for f in info.fields if f.required}
        return st.fixed_dictionaries(
            {name: fields[name] for name in required},
            optional={name: fields[name] for name in fields if name not in required},
        )
    if isinstance(info, inspect.UnionType):
        return st.one_of(*map(of_type, info.types))
    if isinstance(info, inspect.VarTupleType):
        return st.lists(of_type(info.item_type), max_size=4)
    if isinstance(info, inspect.IntType):
        return rarely(st.integers(info.ge, info.ge + 1), st.integers(info.ge - 1, info.ge + 99))
    if isinstance(info, inspect.LiteralType):
        return st.sampled_from(info.values)
    plain = {inspect.StrType: st.text(max_size=80), inspect.FloatType: numbers}
    return {**plain, inspect.BoolType: st.booleans(), inspect.NoneType: st.none()}[type(info)]


@st.composite
def bodies(draw: st.DrawFn, name: str) -> bytes:
    """Mostly near-valid; sometimes with an odd field, sometimes not JSON."""
    data = draw(of_type(inspect.type_info(REQUESTS[name])))
    if name == "recognize":
        data.pop(draw(st.sampled_from(["array", "npy"])), None)
    way = draw(st.sampled_from([9] * 36 + [0, 1, 2, 3]))
    if way == 0:
        data[draw(st.sampled_from([*REQUESTS[name].__struct_encode_fields__, "x"]))] = draw(odd)
    if way == 1 and "subject" in data:
        data["subject"][draw(st.sampled_from(["size", "tokens", "keys", "padding"]))] = draw(odd)
    body = json.dumps(data).encode()
    if way == 2:
        body = body[: draw(st.integers(0, len(body)))]
    return draw(st.binary(max_size=30)) if way == 3 else body


# ── responses ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_every_request_has_a_response(page: Page, name: str) -> None:
    counts: dict[int, int] = {}

    @settings(max_examples=max(CASES // len(REQUESTS), 5))
    @given(bodies(name))
    def test(body: bytes) -> None:
        reply = page.post_bytes(name, body)
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
    if LONG:  # a few requests may all be invalid by chance
        assert counts[200] > sum(counts.values()) // 10
    assert page.post(name, VALID[name]).status_code == 200  # the workers still work


@pytest.mark.skipif(not LONG, reason="set MASKWRIGHT_EXPLORE_CASES, for example to 10000")
def test_workers_release_memory(page: Page) -> None:
    for _ in range(8):  # both workers import everything
        for name, data in VALID.items():
            page.post(name, data)
    before = {pid: resident(pid) for pid in page.pool.pids}
    big = {"subject": {"expression": "causal() & (window(back=9) | keys([0]))", "size": 2**18}}
    for _ in range(20):
        assert page.post("mask", big).status_code == 200
    for pid in page.pool.pids & set(before):
        assert resident(pid) < before[pid] + MAX_MEMORY // 2


def resident(pid: int) -> int:
    """Resident bytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
