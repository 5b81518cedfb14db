"""The runner of other libraries' tests, with small suites of our own in their place."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.figures import MissingResultError
from conformance import __main__ as main
from conformance import report
from conformance.runners import WORKERS, Pytest, RunError, run_functions
from conformance.sources import NotRunError, Sources
from conformance.suite import CAUSES, Outcome, Reason, Runs, Suite, compare, unexplained
from conformance.suites import SUITES, families

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS_UP = Reason("by design", "assert 3 == 2", "It rounds up.")
TESTS = """
import math, pytest

def test_equal():
    assert math.sqrt(4) == 2

def test_differs():
    assert math.floor(2.5) == 2

def test_only_with_replacement():
    assert math.floor(2.5) == 3

@pytest.mark.skip(reason="no GPU")
def test_skipped():
    raise AssertionError
"""


def suite_of(runs: Runs, *reasons: Reason) -> Suite:
    return Suite("fake", "a fake", "`math.floor`", lambda _: runs, reasons)


@pytest.fixture
def tests(tmp_path: Path) -> Pytest:
    (tmp_path / "test_math.py").write_text(TESTS)
    (tmp_path / "round_up.py").write_text("import math\nmath.floor = math.ceil\n")
    return Pytest(tmp_path, ("test_math.py",), "round_up", workers=1)


def test_run_of_pytest_finds_the_differing_test(tests: Pytest) -> None:
    result = compare(suite_of(runs := tests.run("fake 1.0"), ROUNDS_UP), runs)
    counts = {name: result[name] for name in ("run", "skipped", "original", "maskwright", "of")}
    assert counts == {"run": 3, "skipped": 1, "original": 2, "maskwright": 2, "of": None}
    (difference,) = result["differences"]
    assert difference["test"] == "test_math.py::test_differs"
    assert (difference["cause"], difference["reason"]) == ("by design", "It rounds up.")
    assert result["only_maskwright"] == ["test_math.py::test_only_with_replacement"]
    assert unexplained(result) == result["unstable"] == []
    assert unexplained(compare(suite_of(runs), runs)) != []


def test_tests_that_differ_only_once_are_unstable(tests: Pytest) -> None:
    once = "from pathlib import Path\nif not Path('ran').exists():\n    Path('ran').touch()\n"
    (tests.folder / "round_up.py").write_text(
        f"{once}    import math\n    math.floor = math.ceil\n"
    )
    runs = tests.run("fake 1.0")
    assert [name.rpartition("::")[2] for name in runs.unstable] == [
        "test_differs",
        "test_only_with_replacement",
    ]
    result = compare(suite_of(runs), runs)
    assert result["original"] == result["maskwright"] == 2


def test_number_of_processes_is_that_of_the_command(
    tests: Pytest, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tests.folder / "test_math.py").write_text(
        "import os\ndef test_worker():\n    assert 'PYTEST_XDIST_WORKER' not in os.environ\n"
    )
    monkeypatch.setenv(WORKERS, "1")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # of the worker that runs this test
    outcomes, _ = replace(tests, workers=None).outcomes("original")
    assert [outcome.status for outcome in outcomes.values()] == ["passed"]


def test_sweep_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.integrations.sweep import CHECKS

    started = []

    def run(command: list[str], **options: Any) -> SimpleNamespace:
        started.append(command[3:])
        for family in command[3:]:
            for check in CHECKS:
                print(json.dumps({"family": family, "check": check}), file=options["stdout"])
        return SimpleNamespace(stderr="")

    monkeypatch.setattr(families.subprocess, "run", run)
    output = tmp_path / "cache" / "lines.jsonl"
    whole = families.run_sweep(output, ("bert", "gpt2"))
    assert len(whole) == 2 * len(CHECKS)
    assert not output.exists()
    lines = [json.dumps(line) for line in whole]
    output.write_text("\n".join(lines[: len(CHECKS) + 2]) + lines[-1][:9])  # it was ended here
    assert families.run_sweep(output, ("bert", "gpt2")) == whole
    assert started == [["bert", "gpt2"], ["gpt2"]]


def test_refusals_that_the_list_of_unsupported_models_lacks_have_no_reason() -> None:
    results = {"bert": "equal", "bloom": "refused", "new": "refused", "other": "not used"}
    lines = [
        {"family": name, "check": "forward", "result": result, "reason": "eager only"}
        for name, result in results.items()
    ]
    runs = Runs("fake 1.0", *families.read_outcomes(lines, ("new", "other")))
    result = compare(families.SUITE, runs)
    assert [d["test"] for d in result["differences"] if d["reason"]] == ["bloom, forward"]
    assert [text.partition(",")[0] for text in unexplained(result)] == ["new", "other"]


def test_sample_is_the_same_in_both_runs(tests: Pytest) -> None:
    drawn = Pytest(tests.folder, tests.paths, tests.plugin, workers=1, sample=2).run("fake 1.0")
    assert drawn.of == 4
    assert len(drawn.original) == 2
    assert drawn.original.keys() == drawn.maskwright.keys()


def test_file_that_cannot_be_imported_is_an_error(tests: Pytest) -> None:
    (tests.folder / "test_math.py").write_text("import no_such_module")
    with pytest.raises(RunError, match="no_such_module"):
        tests.run("fake 1.0")


def test_functions_run_with_both() -> None:
    def differs(side: str) -> None:
        assert (math.ceil if side == "maskwright" else math.floor)(2.5) == 2

    runs = run_functions("fake 1.0", {"equal": lambda _: None, "differs": differs})
    result = compare(suite_of(runs, Reason("theirs", "^differs", "A bug.")), runs)
    assert (result["original"], result["maskwright"]) == (2, 1)
    assert result["differences"][0]["reason"] == "A bug."


@pytest.mark.parametrize("status", ["failed", "skipped", "missing"])
def test_whatever_does_not_pass_with_maskwright_differs(status: Any) -> None:
    ours = {} if status == "missing" else {"a": Outcome(status, "why")}
    runs = Runs("fake 1.0", {"a": Outcome("passed"), "b": Outcome("skipped")}, ours)
    assert len(unexplained(compare(suite_of(runs), runs))) == 1


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> dict[str, Suite]:
    def absent(sources: Sources) -> Runs:
        raise NotRunError(f"nothing in {sources.suites}")

    runs = Runs("fake 1.0", {"a": Outcome("passed")}, {"a": Outcome("failed", "a | b")})
    suites = {
        "fake.explained": suite_of(runs, Reason("ours", "a | b", "A bug | of ours.")),
        "fake.unexplained": suite_of(runs),
        "absent": Suite("absent", "an absent one", "nothing", absent),
    }
    for module in (main, report):
        monkeypatch.setattr(module, "SUITES", suites)
    return suites


@pytest.mark.usefixtures("fake")
def test_exit_code_is_1_for_a_difference_without_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "results.json"
    assert main.main(["fake.explained", "--output", str(output)]) == 0
    assert main.main(["fake.unexplained", "--output", str(output)]) == 1
    assert main.main(["absent", "--output", str(output)]) == 0
    assert "no reason: a: a | b" in capsys.readouterr().out
    results = json.loads(output.read_text())
    assert list(results) == ["fake.explained", "fake.unexplained", "absent"]
    assert results["absent"]["not_run"] == "nothing in None"
    assert {"date", "commit", "clean", "versions", "seconds"} <= results["absent"].keys()
    page = report.page(results)
    assert "| A bug \\| of ours." in page
    assert "`absent`: nothing in None." in page


def test_suite_that_did_not_run_replaces_no_result(
    tmp_path: Path, fake: dict[str, Suite], capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "results.json"
    main.main(["fake.explained", "--output", str(output)])
    before = output.read_text()
    fake["fake.explained"] = fake["absent"]
    main.main(["fake.explained", "--output", str(output)])
    assert output.read_text() == before
    assert "the earlier result stays" in capsys.readouterr().out


def test_names_select_suites() -> None:
    assert main.select([]) == list(SUITES)
    assert main.select(["onnx"]) == ["onnx"]
    assert all(name.startswith("transformers.") for name in main.select(["transformers"]))
    with pytest.raises(SystemExit, match=r"tramsformers: .* transformers"):
        main.select(["tramsformers"])


def test_missing_folder_is_said_with_what_to_clone(tmp_path: Path) -> None:
    with pytest.raises(NotRunError, match=r"clone owner/name at v1 as name .* SUITES="):
        Sources(None, tmp_path).clone("name", "owner/name", "v1", "tests")
    with pytest.raises(NotRunError, match="has no tests"):
        Sources(tmp_path, tmp_path).clone("name", "owner/name", "v1", "tests")


def test_missing_results_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(MissingResultError, match=r"python -m conformance"):
        report.load(tmp_path / "results.json")


def test_committed_results_have_a_reason_for_every_difference() -> None:
    for name, result in report.load().items():
        if not result["not_run"]:
            assert unexplained(result) == [], name
            assert {d["cause"] for d in result["differences"]} <= set(CAUSES)
            assert len(result["differences"]) == result["original"] - (
                result["maskwright"] - len(result["only_maskwright"])
            )
