"""Files about the project itself: one version, and everything that they name is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tomllib
import yaml
from packaging.version import Version

import maskwright as mw

ROOT = Path(__file__).parent.parent
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", ".github/PULL_REQUEST_TEMPLATE.md")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_version_stands_in_one_place_and_others_follow() -> None:
    assert read(ROOT / "CITATION.cff")["version"] == mw.__version__
    release, dev, _ = mw.__version__.partition(".dev")
    changes = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## \[(.+?)\]", changes, re.MULTILINE)
    assert headings[0] == "Unreleased"
    if dev:  # what the next release contains
        assert f"Planned as {release}." in changes
        assert release not in headings
    else:
        assert headings[1] == release


def test_development_version_is_later_than_the_last_release() -> None:
    headings = re.findall(r"^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert Version(mw.__version__) >= Version(headings[0])
    assert str(Version(mw.__version__)) == mw.__version__


def test_citation_has_required_fields() -> None:
    held = read(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors", "type", "license"} <= held.keys()
    assert held["cff-version"] == "1.2.0"
    assert held["type"] == "software"
    assert all("name" in author for author in held["authors"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_is_read_only_and_has_no_secrets(path: Path) -> None:
    held = read(path)
    assert "secrets" not in path.read_text()
    assert held["permissions"] == {"contents": "read"}
    for job in held["jobs"].values():
        assert all(step.keys() & {"uses", "run"} for step in job["steps"])


def test_ci_runs_our_make_targets() -> None:
    path = ROOT / ".github" / "workflows" / "ci.yml"
    made = set(read(path)["jobs"]["make"]["strategy"]["matrix"]["target"])
    made |= set(re.findall(r"run: make ([a-z-]+)", path.read_text()))
    assert made <= TARGETS
    assert made >= {"check", "test", "test-core", "test-tf", "docs", "dist"}


@pytest.mark.parametrize("target", ["docs", "release-check", "bench", "test"])
def test_targets_that_import_torch_install_it(target: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["make", "--dry-run", target, f"VENV={tmp_path}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r"scripts/install\.py .*\btorch==", done.stdout)


def test_wheels_are_built_and_checked_on_every_platform() -> None:
    held = read(ROOT / ".github" / "workflows" / "wheels.yml")
    runners = {entry["os"] for entry in held["jobs"]["wheels"]["strategy"]["matrix"]["include"]}
    assert {name.partition("-")[0] for name in runners} == {"ubuntu", "macos", "windows"}
    assert any(name.endswith("-arm") for name in runners)
    with (ROOT / "pyproject.toml").open("rb") as file:
        settings = tomllib.load(file)["tool"]["cibuildwheel"]
    assert (ROOT / settings["test-command"].rpartition("{project}/")[2]).is_file()
    assert settings["linux"]["environment"] == {"MASKWRIGHT_BUILD": "required"}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_form_for_issues_can_be_filled_in(path: Path) -> None:
    held = read(path)
    if path.name == "config.yml":
        assert held.keys() == {"blank_issues_enabled"}
        return
    assert {"name", "description", "body"} <= held.keys()
    ids = [field["id"] for field in held["body"]]
    assert len(ids) == len(set(ids))
    for field in held["body"]:
        assert field["type"] in ("textarea", "input", "dropdown", "checkboxes")
        assert field["attributes"]["label"]


@pytest.mark.parametrize("name", PAGES)
def test_targets_and_links_of_pages_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert "://" in link or ((ROOT / name).parent / link).exists(), link
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= TARGETS


def test_check_before_commit_is_check() -> None:
    (repository,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [hook["entry"] for hook in repository["hooks"]] == ["make check"]
