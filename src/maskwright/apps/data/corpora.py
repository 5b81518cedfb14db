"""Corpora: docstrings of installed packages, Debian's package descriptions, ChatterBot's dialogues."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
import warnings
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import torch

from maskwright._atomic_write import create_folder, write_atomic
from maskwright._optional_deps import require
from maskwright.apps.data.text import Pair, evenly_spaced
from maskwright.apps.trainer import step_generator
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# ── docstrings: the body, and its first line as the summary ─────────────────────────────────────

PACKAGES = ("networkx", "numpy", "scipy", "sklearn", "torch")
EXCLUDED_FOLDERS = {"site-packages", "test", "tests", "_vendor", "idlelib", "lib2to3", "turtledemo"}
MAX_FILES = 600  # per package, evenly spaced
MAX_BYTES = 300_000  # per file
SUMMARY_WORDS = (3, 14)  # minimum, maximum
BODY_WORDS = (10, 80)  # minimum; longer bodies are truncated to the maximum
HELD_OUT_ONE_IN = 10  # modules
NGRAM = 6  # words; texts that share many n-grams are copies
MIN_OVERLAP = 1 / 3  # of the summary's words, without stop words, that the body must contain
STOP_WORDS = {
    *("a", "an", "and", "are", "as", "at", "be", "by", "can", "for", "from", "given", "if", "in"),
    *("is", "it", "its", "not", "of", "on", "or", "return", "returns", "that", "the", "this"),
    *("to", "which", "with"),
}
MAX_COPIED = 0.3  # share of known n-grams from which a held-out text counts as a copy

Docstring = tuple[str, str, str]  # module, body, summary


def docstring_pairs() -> tuple[list[Pair], list[Pair]]:
    """Bodies of docstrings with their first lines: training and held-out, by module.

    They are read from the source files of the standard library and of `PACKAGES`; nothing is
    imported or run.
    """
    return split_by_module(deduplicate(read_docstrings(source_files())))


def source_files() -> list[tuple[str, Path]]:
    """Modules and their files, in a fixed order."""
    roots = [("", Path(sysconfig.get_paths()["stdlib"]))]
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            roots.append((name, Path(next(iter(spec.submodule_search_locations)))))
    files = []
    for name, root in roots:
        paths = [
            path
            for path in sorted(root.rglob("*.py"))
            if not EXCLUDED_FOLDERS & set(path.relative_to(root).parts[:-1])
        ]
        for path in evenly_spaced(paths, MAX_FILES):
            parts = path.relative_to(root).with_suffix("").parts
            files.append((".".join((name, *parts) if name else parts), path))
    return files


def read_docstrings(files: Iterable[tuple[str, Path]]) -> Iterator[Docstring]:
    """The docstrings of files that have a first line and a body."""
    for module, path in files:
        for text in _docstrings(path):
            parts = split_docstring(text)
            if parts is not None:
                yield module, *parts


def split_docstring(docstring: str) -> Pair | None:
    r"""Body and first line; None if one is missing, too short or too long.

    >>> from maskwright.apps.data.corpora import split_docstring
    >>> split_docstring("Return the sum.\n\nThe sum of nothing is 0; else all are added, one by one.")
    ('The sum of nothing is 0; else all are added, one by one.', 'Return the sum.')
    >>> split_docstring("Return the sum.")
    """
    first, _, rest = docstring.strip().partition("\n\n")
    summary, body = first.split(), rest.split()
    if not SUMMARY_WORDS[0] <= len(summary) <= SUMMARY_WORDS[1] or len(body) < BODY_WORDS[0]:
        return None
    if not summary[0][0].isalpha():
        return None
    return " ".join(body[: BODY_WORDS[1]]), " ".join(summary)


def deduplicate(docstrings: Iterable[Docstring]) -> Iterator[Docstring]:
    """Each summary and each body once, ignoring case and punctuation.

    >>> from maskwright.apps.data.corpora import deduplicate
    >>> list(deduplicate([("a", "A body.", "First."), ("b", "More.", "first"), ("c", "A body", "C.")]))
    [('a', 'A body.', 'First.')]
    """
    seen: set[tuple[str, ...]] = set()
    for module, body, summary in docstrings:
        keys = {tuple(words(body)), tuple(words(summary))}
        if not keys & seen:
            seen |= keys
            yield module, body, summary


def split_by_module(docstrings: Iterable[Docstring]) -> tuple[list[Pair], list[Pair]]:
    """Training and held-out pairs: some modules are held out, without copies of training texts."""
    training: list[Pair] = []
    held_out: list[Pair] = []
    for module, body, summary in docstrings:
        aside = crc32(module.encode()) % HELD_OUT_ONE_IN == 0
        (held_out if aside else training).append((body, summary))
    known = {ngram for body, _ in training for ngram in ngrams(body)}
    return training, [pair for pair in held_out if overlap(ngrams(pair[0]), known) < MAX_COPIED]


def is_summary(pair: Pair) -> bool:
    """Whether the summary shares enough words with the body to be predicted from it.

    >>> from maskwright.apps.data.corpora import is_summary
    >>> is_summary(("All numbers are added.", "Add numbers.")), is_summary(("See above.", "Add."))
    (True, False)
    """
    body, summary = set(words(pair[0])), [w for w in words(pair[1]) if w not in STOP_WORDS]
    return bool(summary) and sum(word in body for word in summary) >= MIN_OVERLAP * len(summary)


def ngrams(text: str) -> set[tuple[str, ...]]:
    """All n-grams of words.

    >>> from maskwright.apps.data.corpora import ngrams
    >>> len(ngrams("one two three four five six seven"))
    2
    """
    tokens = words(text)
    return {tuple(tokens[n : n + NGRAM]) for n in range(len(tokens) - NGRAM + 1)}


def overlap(some: set[tuple[str, ...]], known: set[tuple[str, ...]]) -> float:
    """The share of n-grams that are known."""
    return len(some & known) / len(some) if some else 0.0


def words(text: str) -> Sequence[str]:
    """Words in lower case, without punctuation."""
    return re.findall(r"\w+", text.lower())


def _docstrings(path: Path) -> Iterator[str]:
    try:
        source = path.read_bytes()
        if len(source) > MAX_BYTES or b'"""' not in source:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in others' strings
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in (tree, *_definitions(tree.body)):
        text = ast.get_docstring(node)
        if text:
            yield text


def _definitions(body: Sequence[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    """Functions, classes and methods, but not what is defined inside functions."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node
        if isinstance(node, (ast.ClassDef, ast.If, ast.Try)):
            yield from _definitions(node.body)
        if isinstance(node, (ast.If, ast.Try)):
            yield from _definitions(node.orelse)


# ── Debian: package descriptions in two languages, fetched by apt ───────────────────────────────

APT_HELPER = Path("/usr/lib/apt/apt-helper")
APT_SETTINGS = Path("/etc/apt/apt.conf.d")
APT_TIMEOUT = 300  # seconds
MIN_DESCRIPTIONS = 100
ALTERNATIVES = "Use numbers or dates, or --pairs."


def debian_descriptions(left: str, right: str) -> list[list[Pair]]:
    """Short package descriptions in two languages, grouped by package family; cached."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "maskwright")
    cached = root / f"debian-{left}-{right}.tsv"
    if not cached.exists():
        rows = join_descriptions(*fetch_descriptions(left, right))
        if len(rows) < MIN_DESCRIPTIONS:
            raise ArgumentError(
                f"debian: apt has {len(rows)} descriptions in both {left} and {right}, expected at "
                f"least {MIN_DESCRIPTIONS}. {ALTERNATIVES}"
            )
        create_folder(root)
        write_atomic(cached, "".join("\t".join(row) + "\n" for row in rows))
    lines = cached.read_text(encoding="utf-8").splitlines()
    return group_by_family(line.split("\t") for line in lines)


def group_by_family(rows: Iterable[Iterable[str]]) -> list[list[Pair]]:
    """Pairs by the first part of the package's name; no text occurs twice.

    >>> from maskwright.apps.data.corpora import group_by_family
    >>> group_by_family([("0ad", "a game", "ein Spiel"), ("0ad-data", "its data", "seine Daten"),
    ...                  ("vim", "an editor", "ein Editor"), ("nano", "an editor", "Editor")])
    [[('a game', 'ein Spiel'), ('its data', 'seine Daten')], [('an editor', 'ein Editor')]]
    """
    groups: dict[str, list[Pair]] = {}
    sources: set[str] = set()
    targets: set[str] = set()
    for package, source, target in rows:
        if source not in sources and target not in targets:
            sources.add(source)
            targets.add(target)
            groups.setdefault(package.split("-")[0], []).append((source, target))
    return list(groups.values())


def join_descriptions(left: str, right: str) -> list[tuple[str, str, str]]:
    r"""Packages with their short descriptions in both languages, joined by checksum, sorted.

    >>> from maskwright.apps.data.corpora import join_descriptions
    >>> one = "Package: vim\nDescription-md5: 1f\nDescription-en: an editor\n long text\n"
    >>> join_descriptions(one, one.replace("-en: an", "-de: ein").replace("editor", "Editor"))
    [('vim', 'an editor', 'ein Editor')]
    """
    translations = {checksum: text for _, checksum, text in _entries(right)}
    rows = {
        (package, text.replace("\t", " "), translations[checksum].replace("\t", " "))
        for package, checksum, text in _entries(left)
        if translations.get(checksum, text) != text
    }
    return sorted(rows)


def fetch_descriptions(left: str, right: str) -> tuple[str, str]:
    """The lists of descriptions in both languages, downloaded by apt into a temporary folder.

    The system's own lists and settings do not change: apt runs with another configuration.
    """
    apt = shutil.which("apt-get")
    if apt is None or not APT_HELPER.exists():
        raise ArgumentError(f"debian: apt is not installed. {ALTERNATIVES}")
    with tempfile.TemporaryDirectory(prefix="maskwright-apt-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # apt downloads as another user
        env = {**os.environ, "APT_CONFIG": str(_apt_config(folder, left, right)), "LC_ALL": "C"}
        update = _run([apt, "-qq", "update"], env)
        texts = []
        for language in (left, right):
            lists = sorted((folder / "lists").glob(f"*_i18n_Translation-{language}*"))
            if not lists:
                raise _not_fetched(update.stderr)
            done = _run([str(APT_HELPER), "cat-file", *map(str, lists)], env)
            if done.returncode:
                raise _not_fetched(done.stderr)
            texts.append(done.stdout)
        return texts[0], texts[1]


def _run(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            env=env,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=APT_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _not_fetched(f"timeout after {APT_TIMEOUT} seconds") from error


def _apt_config(folder: Path, left: str, right: str) -> Path:
    """A configuration of apt: the system's settings, but for those that name languages."""
    for part in ("parts", "lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    for setting in sorted(APT_SETTINGS.glob("*")) if APT_SETTINGS.is_dir() else ():
        if "Acquire::Languages" not in setting.read_text(encoding="utf-8", errors="replace"):
            (folder / "parts" / setting.name).symlink_to(setting)
    path = folder / "apt.conf"
    path.write_text(
        f'Acquire::Languages {{ "{left}"; "{right}"; }};\n'
        'Acquire::IndexTargets::deb::Packages::DefaultEnabled "false";\n'
        'Acquire::Retries "1";\n'
        'Acquire::http::Timeout "20";\n'
        f'Dir::Etc::parts "{folder}/parts";\n'
        f'Dir::State::lists "{folder}/lists";\n'
        f'Dir::Cache "{folder}/cache";\n',
        encoding="utf-8",
    )
    return path


def _entries(text: str) -> Iterator[tuple[str, str, str]]:
    """Package, checksum and short description of every entry."""
    package = checksum = ""
    for line in text.splitlines():
        if line.startswith("Package: "):
            package = line[9:]
        elif line.startswith("Description-md5: "):
            checksum = line[17:]
        elif line.startswith("Description-"):
            yield package, checksum, line.partition(": ")[2].strip()


def _not_fetched(reason: str) -> ArgumentError:
    first = next((line.strip() for line in reason.splitlines() if line.strip()), "no such lists")
    return ArgumentError(
        f"debian: apt cannot fetch the descriptions ({first[:120]}). Go online. {ALTERNATIVES}"
    )


# ── dialogues: a line and its answer ────────────────────────────────────────────────────────────

HELD_OUT_PROMPTS = 0.1


def chatterbot_pairs(language: str) -> list[Pair]:
    """Lines of the ChatterBot corpus in a language, each with the line that answers it.

    >>> from maskwright.apps.data.corpora import chatterbot_pairs
    >>> len(chatterbot_pairs("spanish")) > 500
    True
    """
    with require("dialogue"):
        folder = Path(import_module("chatterbot_corpus.corpus").DATA_DIRECTORY) / language
        yaml = import_module("yaml")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    pairs: list[Pair] = []
    for path in sorted(folder.glob("*.yml")):
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
        for lines in content["conversations"]:
            if isinstance(lines, list):  # a few are a single line, which nothing answers
                texts = [" ".join(str(line).split()) for line in lines]
                pairs += [pair for pair in pairwise(texts) if all(pair)]
    return pairs


def split_dialogue(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Training and held-out pairs that share neither prompts nor replies.

    >>> from maskwright.apps.data.corpora import split_dialogue
    >>> training, held_out = split_dialogue([(f"prompt {n}", f"reply {n}") for n in range(20)])
    >>> len(training), len(held_out)
    (18, 2)
    """
    pairs = list(dict.fromkeys(pairs))
    prompts = list(dict.fromkeys(_normalized(prompt) for prompt, _ in pairs))
    order = torch.randperm(len(prompts), generator=step_generator(0, 0)).tolist()
    aside = {prompts[n] for n in order[: max(1, round(HELD_OUT_PROMPTS * len(prompts)))]}
    training = [pair for pair in pairs if _normalized(pair[0]) not in aside]
    known = {_normalized(reply) for _, reply in training}
    held_out = [p for p in pairs if _normalized(p[0]) in aside and _normalized(p[1]) not in known]
    if not training or not held_out:
        raise ArgumentError(
            "The pairs are too similar to hold some out. Add more prompts and replies."
        )
    return training, held_out


def _normalized(text: str) -> str:
    """A line without case and punctuation."""
    return "".join(character for character in text.casefold() if character.isalnum()) or text
