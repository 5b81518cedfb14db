"""`maskwright plan`, `bench` and `doctor`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import maskwright as mw
from tests._helpers.sampling import subset_of_cases
from tests.cli.conftest import RunCli, run, run_without

if TYPE_CHECKING:
    from pathlib import Path


def facts_of(text: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in text.splitlines())


def test_plan_prints_the_backend_and_its_work(cli: RunCli) -> None:
    ran = cli("plan", "window(back=255)", "--size", "1024", "--heads", "8", "--head-dim", "64")
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
    cli: RunCli, words: tuple[str, ...], backend: str
) -> None:
    from maskwright.engine.native.kernel import loaded

    found = json.loads(cli("plan", "causal()", "--size", "64", "--format", "json", *words).out)
    assert found["backend"] == (backend if loaded().isa else "blocks")
    assert found["instruction_set"] == (loaded().isa if found["backend"] == "native" else None)


def test_plan_of_the_backward_pass_takes_longer(cli: RunCli) -> None:
    words = ("plan", "causal()", "--size", "512", "--format", "json")
    forward, backward = (json.loads(cli(*words, *more).out) for more in ((), ("--backward",)))
    assert (forward["pass"], backward["pass"]) == ("forward", "backward")
    assert backward["work"]["milliseconds"] > forward["work"]["milliseconds"]


def test_plan_needs_no_framework() -> None:
    done = run_without("torch", "plan", "causal()", "--size", "64")
    assert done.returncode == 0, done.stderr


def test_plan_as_data_and_as_a_picture(cli: RunCli, tmp_path: Path) -> None:
    found = json.loads(cli("plan", "window(back=63)", "-n", "1k", "-f", "json").out)
    assert found["work"]["cells_visible"] == mw.window(back=63).on(1024).count()
    assert found["shape"]["q_len"] == 1024
    assert cli("plan", "window(back=63)", "-n", "1024", "-o", "plan.svg").code == 0
    assert "visited" in (tmp_path / "plan.svg").read_text()


def test_plan_over_ranks_prints_each_rank(cli: RunCli) -> None:
    ran = cli("plan", "window(back=255)", "--size", "4k", "--ranks", "4", "--heads", "8")
    assert ran.code == 0
    assert "contiguous" in ran.out.splitlines()[0]
    rows = [line.replace(",", "").split() for line in ran.out.splitlines()]
    assert ["1", "1024", "2097152", "255", "255", "1044480", "1044480"] in rows
    assert ["255", "·", "0", "0"] in rows


def test_plan_over_ranks_as_data(cli: RunCli, tmp_path: Path) -> None:
    words = ("plan", "causal()", "--size", "1k", "--ranks", "8", "--batch", "2")
    told = json.loads(cli(*words, "--format", "json", "--head-dim", "64").out)
    assert (told["tokens"], told["ranks"], told["strategy"]) == (1024, 8, "zigzag")
    assert sum(told["cost"]) == 2 * 1024 * 1025 // 2
    assert sum(told["rows"]) == 1024
    assert cli(*words, "-o", "plan.json").code == 0
    assert json.loads((tmp_path / "plan.json").read_text())["cost"] == told["cost"]


def test_bench_times_a_mask_and_sdpa(cli: RunCli) -> None:
    ran = cli("bench", "causal()", "--size", "64", "--heads", "2")
    first, ours, theirs, _ = ran.out.splitlines()
    assert first.startswith("causal(), 64 ")
    assert ours.startswith("maskwright")
    assert theirs.startswith("SDPA")
    found = json.loads(cli("bench", "causal()", "-n", "32", "--heads", "1", "-f", "json").out)
    assert len(found["seconds"]) == 2
    assert min(found["seconds"].values()) > 0


def test_bench_needs_memory_for_its_tensors(cli: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is allocated before: 10,000,000 queries would need 102 GB."""
    pytest.importorskip("torch")
    monkeypatch.setattr("maskwright.engine.doctor.free_memory", lambda: 16e9)
    for expression in ("causal()", "causal() | keys([0])"):
        ran = cli("bench", expression, "--size", "10000000", "--heads", "8")
        assert (ran.code, ran.out) == (2, "")
        assert "102.4 GB" in ran.err
        assert "16.0 GB" in ran.err
        assert "--size" in ran.err
        assert len(ran.err.splitlines()) == 1


def test_bench_leaves_out_sdpa_if_its_mask_does_not_fit(
    cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("maskwright.engine.doctor.free_memory", lambda: 1e6)
    words = ("bench", "window(back=9)", "--size", "512", "--heads", "1", "--head-dim", "64")
    ran = cli(*words)
    assert ran.code == 0, ran.err
    assert "without SDPA: its dense mask needs" in ran.out
    found = json.loads(cli(*words, "-f", "json").out)
    assert [*found["seconds"]] == ["maskwright"]
    assert found["speedup"] is None
    assert "GB" in found["sdpa_skipped_reason"]


@pytest.mark.parametrize(
    ("size", "free", "reason"),
    [
        (50_000, 20e9, None),
        (50_000, 10e9, "12.5 GB, more than 10.0 GB"),
        (100_000, 1e12, "10.0 GB"),
    ],
)
def test_size_of_the_dense_mask_of_sdpa(size: int, free: float, reason: str | None) -> None:
    """`dense()` makes a byte per cell, and SDPA four more."""
    pytest.importorskip("torch")
    from maskwright.engine.doctor import _sdpa_skipped_reason

    skipped = _sdpa_skipped_reason(mw.window(back=9).on(size), free)
    assert (skipped is None) == (reason is None)
    assert (reason or "") in (skipped or "")


def test_doctor_reports_the_kernel_its_threads_and_the_backend(cli: RunCli) -> None:
    from maskwright.engine.native.kernel import loaded

    ran = cli("doctor")
    assert ran.code == 0
    found = facts_of(ran.out)
    assert found["maskwright"] == mw.__version__
    assert found["kernel"].startswith(loaded().isa or "none")
    assert found["attention"].startswith(mw.explain_backend((1, 1, 8, 64)).backend)
    assert ("fix" in found) == (loaded().isa is None)
    assert json.loads(cli("doctor", "--format", "json").out) == found


@pytest.mark.parametrize(
    ("environment", "fix"),
    subset_of_cases(
        [
            ({"MASKWRIGHT_ISA": "none"}, "unset MASKWRIGHT_ISA"),
            ({"MASKWRIGHT_KERNEL": "missing.so"}, "pip install --force-reinstall"),
            ({"MASKWRIGHT_KERNEL": "missing.so", "CC": "no-such-compiler"}, "no-such-compiler"),
        ],
        every=2,
    ),
)
def test_doctor_says_how_to_get_a_missing_kernel(environment: dict[str, str], fix: str) -> None:
    found = facts_of(run("doctor", **environment).out)
    assert found["kernel"].startswith("none: ")
    assert found["attention"].startswith("blocks")
    assert fix in found["fix"]
