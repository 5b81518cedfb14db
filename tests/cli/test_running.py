"""`maskwright plan`, `bench` and `doctor`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import maskwright as mw

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Here


def facts_of(text: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in text.splitlines())


def test_plan_prints_the_backend_and_its_work(here: Here) -> None:
    ran = here("plan", "window(back=255)", "--size", "1024", "--heads", "8", "--head-dim", "64")
    choice = mw.explain_backend((1, 8, 1024, 64), mask=mw.window(back=255))
    found, work = facts_of(ran.out), choice.work
    assert ran.code == 0
    assert found["backend"].startswith(choice.backend)
    assert found["reason"] == choice.reason
    assert found["tiles visited"].startswith(f"{work.tiles_visited:,} of {work.tiles:,}, ")
    assert found["scores computed"].startswith(f"{work.cells_computed:,}, ")
    assert found["estimated time"].split()[1] in ("ms", "s")


@pytest.mark.parametrize(
    ("words", "backend"),
    [(("--dtype", "float64"), "blocks"), (("--head-dim", "300"), "blocks"), ((), "native")],
)
def test_plan_selects_the_backend_of_the_arguments(
    here: Here, words: tuple[str, ...], backend: str
) -> None:
    from maskwright.engine.native.bindings import loaded

    found = json.loads(here("plan", "causal()", "--size", "64", "--format", "json", *words).out)
    assert found["backend"] == (backend if loaded().isa else "blocks")
    assert found["instruction_set"] == (loaded().isa if found["backend"] == "native" else None)


def test_plan_of_the_backward_pass_takes_longer(here: Here) -> None:
    words = ("plan", "causal()", "--size", "512", "--format", "json")
    forward, backward = (json.loads(here(*words, *more).out) for more in ((), ("--backward",)))
    assert (forward["pass"], backward["pass"]) == ("forward", "backward")
    assert backward["work"]["milliseconds"] > forward["work"]["milliseconds"]


def test_plan_refuses_an_invalid_head_dim(here: Here) -> None:
    ran = here("plan", "causal()", "--head-dim", "0")
    assert ran.code == 2
    assert "--head-dim" in ran.err


def test_plan_needs_no_framework(here: Here) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from maskwright.__main__ import main\n"
        "sys.argv = ['maskwright', 'plan', 'causal()', '--size', '64']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_plan_refuses_what_does_not_fit(here: Here) -> None:
    ran = here("plan", "padding(lengths=[3, 4])", "--size", "4", "--batch", "3")
    assert ran.code == 2
    assert ran.out == ""
    assert len(ran.err.splitlines()) == 1


def test_bench_times_a_mask_and_sdpa(here: Here) -> None:
    ran = here("bench", "causal()", "--size", "64", "--heads", "2")
    first, ours, theirs, last = ran.out.splitlines()
    assert first == "causal(), 64 queries and keys, 2 heads, head_dim 64, float32"
    assert ours.startswith("maskwright")
    assert theirs.startswith("SDPA")
    assert "times the speed of SDPA" in last


def test_plan_as_data_and_as_a_picture(here: Here, tmp_path: Path) -> None:
    found = json.loads(here("plan", "window(back=63)", "-n", "1024", "-f", "json").out)
    assert found["work"]["cells_visible"] == mw.window(back=63).on(1024).count()
    assert found["shape"]["q_len"] == 1024
    assert here("plan", "window(back=63)", "-n", "1024", "-o", "plan.svg").code == 0
    assert "visited" in (tmp_path / "plan.svg").read_text()


def test_bench_as_data(here: Here) -> None:
    found = json.loads(here("bench", "causal()", "-n", "32", "--heads", "1", "-f", "json").out)
    assert set(found["seconds"]) == {"maskwright", "SDPA, dense mask"}


def test_doctor_reports_the_kernel_its_threads_and_the_backend(here: Here) -> None:
    from maskwright.engine.native.bindings import loaded

    ran = here("doctor")
    assert ran.code == 0
    found = facts_of(ran.out)
    assert found["maskwright"] == mw.__version__
    assert found["kernel"].startswith(loaded().isa or "none")
    assert found["attention"].startswith(mw.explain_backend((1, 1, 8, 64)).backend)
    assert ("fix" in found) == (loaded().isa is None)
    told = here("doctor", "--format", "json")
    assert json.loads(told.out) == found


@pytest.mark.parametrize(
    ("environment", "fix"),
    [
        ({"MASKWRIGHT_ISA": "none"}, "unset MASKWRIGHT_ISA"),
        ({"MASKWRIGHT_KERNEL": "missing.so", "CC": "no-such-compiler"}, "no-such-compiler"),
        ({"MASKWRIGHT_KERNEL": "missing.so"}, "pip install --force-reinstall"),
    ],
)
def test_doctor_says_how_to_get_a_missing_kernel(environment: dict[str, str], fix: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "maskwright", "doctor"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    found = facts_of(done.stdout)
    assert found["kernel"].startswith("none: ")
    assert found["attention"].startswith("blocks")
    assert fix in found["fix"]


def test_plan_over_ranks_says_what_it_assumes(here: Here) -> None:
    words = ("--ranks", "64", "--heads", "32", "--link", "50GB/s", "--flops", "400T")
    ran = here("plan", "causal()", "--size", "64k", *words)
    assert ran.code == 0
    assert ran.out.startswith("65536 tokens over 64 ranks, zig-zag: work 1.00")
    assert "assumed: 4e+14 flops a second" in ran.out


def test_plan_over_ranks_has_a_line_for_each_and_who_needs_whom(here: Here) -> None:
    ran = here("plan", "window(back=255)", "--size", "4k", "--ranks", "4", "--heads", "8")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0].startswith("4096 tokens over 4 ranks, contiguous: work 1.03 and rows 1.00")
    assert " ".join(lines[1].split()) == "rank rows work keys in keys out bytes in bytes out"
    assert lines[3].split() == ["1", "1024", "2097152", "255", "255", "1044480", "1044480"]
    assert lines[7].split() == ["·", "0", "0", "0"]
    assert lines[8].split() == ["255", "·", "0", "0"]


def test_plan_over_ranks_as_data(here: Here, tmp_path: Path) -> None:
    words = ("plan", "causal()", "--size", "1k", "--ranks", "8", "--batch", "2")
    told = json.loads(here(*words, "--format", "json", "--head-dim", "64").out)
    assert (told["tokens"], told["ranks"], told["how"]) == (1024, 8, "zig-zag")
    assert sum(told["work"]) == 2 * 1024 * 1025 // 2
    assert sum(told["rows"]) == 1024
    assert told["bytes_in"] == [2 * 2 * 64 * 2 * keys for keys in told["keys_in"]]
    assert sum(told["keys_in"]) == sum(told["keys_out"])
    assert told["assumed"] == {"link": 50e9, "flops": 400e12, "head_dim": 64}
    assert told["seconds"]["ideal"] <= told["seconds"]["hidden"] <= told["seconds"]["bare"]
    assert here(*words, "-o", "plan.json").code == 0
    assert json.loads((tmp_path / "plan.json").read_text())["work"] == told["work"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--ranks", "0"), "less than 1"),
        (("--ranks", "2", "--keys", "128"), "as many queries as keys"),
        (("--ranks", "2", "--flops", "0"), "flops=0.0 is no speed"),
        (("--ranks", "2", "--format", "svg"), "plan --ranks gives text or json, not svg"),
    ],
)
def test_plan_over_ranks_refuses_what_it_cannot_tell(
    here: Here, words: tuple[str, ...], says: str
) -> None:
    ran = here("plan", "causal()", "--size", "64", *words)
    assert ran.code != 0
    assert says in ran.err


def test_plan_over_ranks_refuses_strange_speeds_and_sizes(here: Here) -> None:
    assert (
        "--link 'fast' is no amount"
        in here("plan", "causal()", "--ranks", "2", "--link", "fast").err
    )
    assert here("plan", "causal()", "--size", "many").code != 0
