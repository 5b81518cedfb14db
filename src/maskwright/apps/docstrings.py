"""Docstrings, cut into the first line and the rest: a text, and its summary by whoever wrote it.

They are read out of source files, those of the standard library and of some packages. Nothing is
imported and nothing is run. The files come in a fixed order, and only so many of a package.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sysconfig
import warnings
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from maskwright.apps.pairs import evenly

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from maskwright.apps.pairs import Pair

PACKAGES = ("networkx", "numpy", "scipy", "sklearn", "torch")
NOT_READ = {"site-packages", "test", "tests", "_vendor", "idlelib", "lib2to3", "turtledemo"}
MOST_FILES = 600  # of a package, evenly spaced
MAX_BYTES = 300_000  # of a file
SUMMARY_WORDS = (3, 14)  # at least, at most
BODY_WORDS = (10, 80)  # at least, and at most: what comes after is cut off
HELD_OUT_ONE_IN = 10  # modules
STRETCH = 6  # words; texts that share many such stretches are copies
TOLD = 1 / 3  # of the first line's words, common ones left out, that the body has at the least
COMMON = {
    *("a", "an", "and", "are", "as", "at", "be", "by", "can", "for", "from", "given", "if", "in"),
    *("is", "it", "its", "not", "of", "on", "or", "return", "returns", "that", "the", "this"),
    *("to", "which", "with"),
}
COPIED = 0.3  # the share from which a held-out text counts as a copy

Known = tuple[str, str, str]  # a module, a body, and its first line


def docstring_pairs() -> tuple[list[Pair], list[Pair]]:
    """Bodies with their first lines, to learn from and held out; no module is in both."""
    return split_by_module(unlike(found_in(source_files())))


def source_files() -> list[tuple[str, Path]]:
    """Modules and their files, in a fixed order."""
    roots = [("", Path(sysconfig.get_paths()["stdlib"]))]
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            roots.append((name, Path(next(iter(spec.submodule_search_locations)))))
    return [(module, path) for name, root in roots for module, path in _below(name, root)]


def found_in(files: Iterable[tuple[str, Path]]) -> Iterator[Known]:
    """The docstrings of files that have a first line and a body."""
    for module, path in files:
        for text in _docstrings(path):
            cut = cut_in_two(text)
            if cut is not None:
                yield module, *cut


def cut_in_two(docstring: str) -> Pair | None:
    r"""The body and the first line, if there are both and neither is too short or too long.

    >>> from maskwright.apps.docstrings import cut_in_two
    >>> cut_in_two("Return the sum.\n\nThe sum of nothing is 0; else all are added, one by one.")
    ('The sum of nothing is 0; else all are added, one by one.', 'Return the sum.')
    >>> cut_in_two("Return the sum.")
    """
    first, _, rest = docstring.strip().partition("\n\n")
    spoken, told = first.split(), rest.split()
    if not SUMMARY_WORDS[0] <= len(spoken) <= SUMMARY_WORDS[1] or len(told) < BODY_WORDS[0]:
        return None
    if not spoken[0][0].isalpha():
        return None
    return " ".join(told[: BODY_WORDS[1]]), " ".join(spoken)


def unlike(found: Iterable[Known]) -> Iterator[Known]:
    """Each first line and each body once, whatever their capitals and stops.

    >>> from maskwright.apps.docstrings import unlike
    >>> list(unlike([("a", "A body.", "First."), ("b", "Another.", "first"), ("c", "A body", "Second.")]))
    [('a', 'A body.', 'First.')]
    """
    seen: set[tuple[str, ...]] = set()
    for module, body, summary in found:
        kinds = {tuple(words(body)), tuple(words(summary))}
        if not kinds & seen:
            seen |= kinds
            yield module, body, summary


def split_by_module(found: Iterable[Known]) -> tuple[list[Pair], list[Pair]]:
    """One module in some is held out, without those of its texts that are copies of learned ones."""
    training: list[Pair] = []
    held_out: list[Pair] = []
    for module, body, summary in found:
        aside = crc32(module.encode()) % HELD_OUT_ONE_IN == 0
        (held_out if aside else training).append((body, summary))
    learned = {stretch for body, _ in training for stretch in stretches(body)}
    return training, [pair for pair in held_out if share_of(stretches(pair[0]), learned) < COPIED]


def sums_up(pair: Pair) -> bool:
    """Is the first line about what the body says? From some bodies nobody could tell it.

    >>> from maskwright.apps.docstrings import sums_up
    >>> sums_up(("All numbers are added.", "Add numbers.")), sums_up(("See above.", "Add numbers."))
    (True, False)
    """
    body, summary = set(words(pair[0])), [word for word in words(pair[1]) if word not in COMMON]
    return bool(summary) and sum(word in body for word in summary) >= TOLD * len(summary)


def stretches(text: str) -> set[tuple[str, ...]]:
    """All runs of some words.

    >>> from maskwright.apps.docstrings import stretches
    >>> len(stretches("one two three four five six seven"))
    2
    """
    spoken = words(text)
    return {tuple(spoken[n : n + STRETCH]) for n in range(len(spoken) - STRETCH + 1)}


def share_of(some: set[tuple[str, ...]], known: set[tuple[str, ...]]) -> float:
    """The share of them that is known."""
    return len(some & known) / len(some) if some else 0.0


def words(text: str) -> Sequence[str]:
    """Words in small letters, without what stands between them."""
    return re.findall(r"\w+", text.lower())


def _below(name: str, root: Path) -> Iterator[tuple[str, Path]]:
    """The modules below a folder, evenly spaced if there are too many."""
    paths = [
        path
        for path in sorted(root.rglob("*.py"))
        if not NOT_READ & set(path.relative_to(root).parts[:-1])
    ]
    for path in evenly(paths, MOST_FILES):
        inside = path.relative_to(root).with_suffix("").parts
        yield ".".join((name, *inside) if name else inside), path


def _docstrings(path: Path) -> Iterator[str]:
    try:
        source = path.read_bytes()
        if len(source) > MAX_BYTES or b'"""' not in source:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the ways others write strings
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in (tree, *_definitions(tree.body)):
        text = ast.get_docstring(node)
        if text:
            yield text


def _definitions(body: Sequence[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    """Functions, classes and methods; what is inside a function is nobody's to see."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node
        if isinstance(node, (ast.ClassDef, ast.If, ast.Try)):
            yield from _definitions(node.body)
        if isinstance(node, (ast.If, ast.Try)):
            yield from _definitions(node.orelse)
