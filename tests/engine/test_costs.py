"""The cost table: the machine's own where there is one, else the package's; never half a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import maskwright as mw
from maskwright.engine import costs
from maskwright.engine.costs import own_table, read_costs, write_costs
from tests.engine.test_plan import CHEAP_CALLS


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("MASKWRIGHT_CACHE", str(tmp_path / "own"))
    return tmp_path


def test_without_a_table_of_its_own_the_packages_holds(home: Path) -> None:
    package = json.loads((Path(costs.__file__).parent / "costs.json").read_text())
    found = read_costs()
    assert set(found) == {"forward", "backward"}
    for name, known in found.items():
        assert list(known.heights) == package[name]["heights"]
        assert list(known.heights) == sorted(known.heights)
        assert len(known.heights) == len(known.cell) == len(known.masked) == len(known.row)
    assert not (home / "own").exists()  # reading writes nothing


@pytest.mark.parametrize(
    ("variable", "where"), [("MASKWRIGHT_CACHE", ""), ("XDG_CACHE_HOME", "maskwright")]
)
def test_where_a_machines_own_table_is(
    variable: str, where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MASKWRIGHT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    monkeypatch.setenv(variable, str(tmp_path))
    assert own_table() == tmp_path / where / "costs.json"


def test_what_is_written_is_read_again(home: Path) -> None:
    package = read_costs()
    table = {name: replace(known, call=known.call + 17.0) for name, known in package.items()}
    where = write_costs(table, "a machine")
    assert where == own_table()
    assert read_costs() == table != package
    assert json.loads(where.read_text())["machine"] == "a machine"
    assert [p.name for p in where.parent.iterdir()] == ["costs.json"]


def test_a_path_may_be_given(home: Path) -> None:
    table = read_costs()
    where = home / "deep" / "down" / "costs.json"
    assert write_costs(table, "m", where) == where
    assert read_costs(where) == table
    assert read_costs(home / "none.json") == table


def test_a_failed_write_leaves_the_good_table(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = read_costs()
    where = write_costs(table, "good")
    before = where.read_text()
    write = Path.write_text

    def broken(self: Path, text: str) -> int:
        write(self, text[: len(text) // 2])
        raise OSError("the disk is full")

    monkeypatch.setattr(Path, "write_text", broken)
    with pytest.raises(OSError, match="full"):
        write_costs(table, "other")
    assert where.read_text() == before
    assert read_costs() == table


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"forward": {}, "backward": {}}',
        '{"forward": 3, "backward": 4}',
    ],
)
def test_a_broken_table_is_told_of(text: str, home: Path) -> None:
    own_table().parent.mkdir()
    own_table().write_text(text)
    with pytest.raises(mw.ArgumentError, match=r"can't be read .*Delete it, or measure anew"):
        read_costs()


def test_the_kernel_in_c_takes_what_is_seen() -> None:
    known = replace(CHEAP_CALLS, native_cell=2.0, native_row=100.0, native_call=5_000.0)
    assert known.native(cells=1_000, rows=10) == 8_000


def test_rates_are_read_off_the_measured_heights() -> None:
    known = replace(
        CHEAP_CALLS,
        heights=(1, 16, 32, 128),
        cell=(8.0, 4.0, 2.0, 1.0),
        masked=(9.0, 5.0, 3.0, 2.0),
        row=(80.0, 40.0, 20.0, 10.0),
    )
    for height, cell, masked, row in zip(
        known.heights, known.cell, known.masked, known.row, strict=True
    ):
        assert known.rates(height, masked=False) == (cell, row)
        assert known.rates(height, masked=True) == (masked, row)
    assert known.rates(24, masked=False) == (3.0, 30.0)
    assert known.rates(127, masked=False) == known.rates(32, masked=False)
    assert known.rates(10**6, masked=False) == known.rates(128, masked=False)
    assert known.strip(128, 10, masked=False, planes=3) == 3 * 128 * (10 * 1.0 + 10.0) + known.call
