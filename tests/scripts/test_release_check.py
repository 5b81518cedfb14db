"""Results that are older than the code they measure fail `make release-check`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks import measure, staleness

ROOT = Path(__file__).parent.parent.parent
ENGINE, OTHER = "src/maskwright/engine/kernel.c", "docs/page.md"


class Repository:
    """A git repository with one result file outside of it."""

    def __init__(self, root: Path, results: Path) -> None:
        self.root, self.results = root, results
        root.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        self.first = self.commit(ENGINE)

    def git(self, *args: str) -> str:
        names = [x for key in ("user.name", "user.email") for x in ("-c", f"{key}=a@b.c")]
        command = ["git", *names, "-c", "commit.gpgsign=false", *args]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, name: str) -> str:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.read_text() + "\n" if path.exists() else "\n")
        self.git("add", name)
        self.git("commit", "--quiet", "-m", f"Change {name}")
        return self.git("rev-parse", "HEAD")

    def measured(self, name: str = "attention", **measured: Any) -> None:
        content = {"measured": measured} if measured else {}
        (self.results / f"{name}.json").write_text(json.dumps(content))

    def problems(self) -> list[str]:
        return staleness.stale_results(self.root)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    results = tmp_path / "results"
    results.mkdir()
    monkeypatch.setattr(measure, "RESULTS", results)
    return Repository(tmp_path / "repository", results)


def test_result_of_the_last_change_of_the_engine_is_current(repository: Repository) -> None:
    repository.measured(commit=repository.first, clean=True)
    assert repository.problems() == []
    repository.commit(OTHER)
    assert repository.problems() == []


def test_result_before_a_change_of_the_engine_is_stale(repository: Repository) -> None:
    repository.measured(commit=repository.commit(OTHER), clean=True)
    repository.commit(ENGINE)
    repository.commit(OTHER)
    (problem,) = repository.problems()
    assert "attention.json was measured at" in problem
    assert f"Change {ENGINE}" in problem
    assert "python -m benchmarks attention" in problem


def test_result_before_a_change_of_what_it_also_measures_is_stale(repository: Repository) -> None:
    for name in ("attention", "explore", "targets"):
        repository.measured(name, commit=repository.first, clean=True)
    repository.commit("src/maskwright/draw/svg.py")
    (problem,) = repository.problems()
    assert "explore.json was measured at" in problem
    assert "python -m benchmarks explore" in problem
    repository.commit("src/maskwright/targets/xformers.py")
    assert repository.problems() == [problem]


def test_watched_paths_and_results_exist() -> None:
    assert staleness.ALSO.keys() <= {path.stem for path in measure.results()}
    for paths in (staleness.WATCHED, *staleness.ALSO.values()):
        assert all((ROOT / path).exists() for path in paths)


def test_result_of_another_branch_is_stale(repository: Repository) -> None:
    """A newer date does not help: the commit has to contain the change."""
    repository.git("checkout", "--quiet", "-b", "other")
    elsewhere = repository.commit(OTHER)
    repository.git("checkout", "--quiet", "main")
    repository.commit("src/maskwright/core/spans.py")
    repository.measured(commit=elsewhere, clean=True)
    assert "core/spans.py" in repository.problems()[0]


@pytest.mark.parametrize(
    ("measured", "problem"),
    [
        ({}, "does not say which commit"),
        ({"commit": None, "clean": None}, "does not say which commit"),
        ({"commit": "0" * 40, "clean": True}, "is not in this repository"),
        ({"commit": "HEAD", "clean": False}, "with uncommitted changes"),
    ],
)
def test_result_without_a_known_clean_commit_is_stale(
    repository: Repository, measured: dict[str, Any], problem: str
) -> None:
    if measured.get("commit") == "HEAD":
        measured = {**measured, "commit": repository.first}
    repository.measured(**measured)
    assert problem in repository.problems()[0]


def test_uncommitted_changes_of_the_engine_are_a_problem(repository: Repository) -> None:
    repository.measured(commit=repository.first, clean=True)
    (repository.root / OTHER).parent.mkdir()
    (repository.root / OTHER).write_text("draft")
    assert repository.problems() == []
    (repository.root / ENGINE).write_text("changed")
    assert ENGINE in repository.problems()[0]


def test_without_history_nothing_is_claimed(repository: Repository, tmp_path: Path) -> None:
    repository.commit(OTHER)
    shallow = tmp_path / "shallow"
    source = repository.root.as_uri()
    subprocess.run(["git", "clone", "--quiet", "--depth=1", source, str(shallow)], check=True)
    for folder in (shallow, tmp_path):
        with pytest.raises(staleness.NoHistoryError):
            staleness.stale_results(folder)


def test_script_explains_itself() -> None:
    script = [sys.executable, str(ROOT / "scripts" / "release_check.py")]
    done = subprocess.run([*script, "--help"], capture_output=True, text=True, check=True)
    for watched in staleness.WATCHED:
        assert watched.rpartition("/")[2] in done.stdout
