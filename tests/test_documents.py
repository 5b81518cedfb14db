"""What README and docs show is run: prompts as doctests, commands as commands, tables as made."""

from __future__ import annotations

import doctest
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import maskwright as mw
from docs import generate, pictures
from maskwright.__main__ import main
from tests._helpers.doc_namespaces import namespace_for
from tests._helpers.small_apps import shrink_apps

if TYPE_CHECKING:
    from _maskwright_pytest import MaskAudit

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


def pages_with(language: str) -> list[Path]:
    return [path for path in PAGES if blocks(path, language)]


def test_pages_that_teach_show_something() -> None:
    """Else the tests below would have nothing to run, and not say so."""
    docs = ROOT / "docs"
    folders = [docs.glob("guide/*.md"), docs.glob("migrate/*.md"), docs.glob("lessons/**/*-*.md")]
    teaching = {ROOT / "README.md", *(path for folder in folders for path in folder)}
    assert len(teaching) >= 37
    assert teaching <= set(pages_with("pycon"))


@pytest.mark.parametrize("path", pages_with("pycon"), ids=shown)
def test_doctests_of_pages(path: Path) -> None:
    examples = "\n".join(blocks(path, "pycon"))
    test = doctest.DocTestParser().get_doctest(examples, {}, path.name, str(path), 0)
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=report.append)
    assert not report, "".join(report)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
@pytest.mark.filterwarnings("ignore:_compile flag on create_block_mask:DeprecationWarning")
@pytest.mark.parametrize("path", pages_with("python"), ids=shown)
def test_scripts_run(path: Path, mask_audit: MaskAudit, capsys: pytest.CaptureFixture[str]) -> None:
    """All of a page in turn, as one; a test among them is run as well."""
    with namespace_for(path.name) as names:
        for script in blocks(path, "python"):
            exec(compile(script, shown(path), "exec"), names)
            printed = results(capsys.readouterr().out)
            comments = re.findall(r"# (.+), expected (?:0|False)$", script, re.MULTILINE)
            for claim in "; ".join(comments).split("; ") if comments else ():
                assert results(claim)[0] in printed, f"{claim} is not in {printed}"
        for test in [value for name, value in names.items() if name.startswith("test_")]:
            test(mask_audit)


def results(text: str) -> list[str]:
    """The truth values, and the numbers with two digits, of printed text or a comment."""
    words = re.findall(r"True|False|\d[\d.]*(?:e-?\d+)?", text)
    return [
        word if word in ("True", "False") else f"{float(word.rstrip('.')):.2g}" for word in words
    ]


def new_commands() -> dict[Path, list[list[str]]]:
    """The commands of each page that no page before it has, so that each is run once."""
    found: dict[Path, list[list[str]]] = {}
    seen: list[list[str]] = []
    for path in pages_with("console"):
        lines = "".join(blocks(path, "console")).splitlines()
        typed = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        every = [shlex.split(line, comments=True) for line in typed]
        if new := [command for command in every if command not in seen]:
            found[path] = new
        seen += every
    return found


@pytest.mark.parametrize("path", new_commands(), ids=shown)
def test_commands_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in turn, in its own folder; training runs for one step on a part of the data."""
    monkeypatch.chdir(tmp_path)
    shrink_apps(monkeypatch)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command, *words in new_commands()[path]:
        if command == "make":
            assert set(words) <= targets, words
        elif "cuda" in words:
            continue  # needs a GPU
        elif command == "maskwright":
            short = ["--max-steps", "1"] if words[0] in ("train", "compare-masks") else []
            monkeypatch.setattr(sys, "argv", ["maskwright", *words, *short])
            with pytest.raises(SystemExit) as stop:
                main()
            assert not stop.value.code, words
        else:
            assert command in ("git", "cd", "pip"), command


def test_generated_pages_are_current() -> None:
    for path, text in generate.pages().items():
        assert path.read_text() == text, f"{path.name} is stale: run `make docs`"


def test_drawings_are_current() -> None:
    for path, text in pictures.drawings().items():
        assert path.read_text() == text, f"{path.name} is stale: run `make pictures`"


def anchors(path: Path) -> set[str]:
    """What links to a page can name after the "#": its headings as GitHub writes them, and its ids."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'id="([^"]+)"', text))


@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_pictures_and_links_exist(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        name, _, anchor = link.partition("#")
        page = path.parent / name if name else path
        assert "://" in link or page.exists(), link
        assert not anchor or "://" in link or anchor in anchors(page), link


def test_link_to_a_heading_that_is_not_there_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("# One `heading`\n\n[to nothing](#another-heading)\n")
    test_pictures_and_links_exist(ROOT / "README.md")
    with pytest.raises(AssertionError, match="another-heading"):
        test_pictures_and_links_exist(tmp_path / "page.md")


def test_readme_counts_the_targets() -> None:
    for name, words in {"README.md": "one of {} formats", "README.zh-CN.md": "# {} 种格式"}.items():
        assert words.format(len(mw.capabilities())) in (ROOT / name).read_text()


def test_faq_leads_to_the_measurements_in_which_sdpa_is_faster() -> None:
    faq, performance = ((ROOT / "docs" / name).read_text() for name in ("faq.md", "performance.md"))
    (answer,) = re.findall(r"## Is it faster than `scaled_dot.*?\n\n(.*?)\n\n##", faq, re.DOTALL)
    assert "performance.md#configurations-in-which-a-baseline-is-faster" in answer
    assert "\n## Configurations in which a baseline is faster\n" in performance
