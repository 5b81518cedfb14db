"""Debian's package descriptions in two languages, fetched by apt into a folder of their own.

A translation is joined to its original by the checksum that both carry. The system's own lists and
settings stay as they are: apt is told of another configuration, which differs in the languages, in
what is fetched (descriptions only) and in where it goes. What was joined is kept in a cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from maskwright.apps.pairs import Pair

HELPER = Path("/usr/lib/apt/apt-helper")
SETTINGS = Path("/etc/apt/apt.conf.d")
PATIENCE = 300  # seconds
LEAST = 100  # pairs
INSTEAD = "Use numbers or dates, or your own pairs."
ONLINE = "Go online, or use numbers or dates, or your own pairs."


def descriptions(left: str, right: str) -> list[list[Pair]]:
    """Short descriptions in two languages; a group is the packages of one family, by name."""
    cached = cache_folder() / f"debian-{left}-{right}.tsv"
    if not cached.exists():
        rows = joined(*fetched(left, right))
        if len(rows) < LEAST:
            raise ArgumentError(
                f"debian: apt has {len(rows)} descriptions in both {left} and {right}, and {LEAST} "
                f"are the least to learn from. {INSTEAD}"
            )
        cached.parent.mkdir(parents=True, exist_ok=True)
        fresh = cached.with_name(f"{cached.name}.{os.getpid()}")
        fresh.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
        fresh.replace(cached)
    lines = cached.read_text(encoding="utf-8").splitlines()
    return families(line.split("\t") for line in lines)


def families(rows: Iterable[Iterable[str]]) -> list[list[Pair]]:
    """Pairs by the first part of the package's name; no text occurs twice.

    >>> from maskwright.apps.debian import families
    >>> families([("0ad", "a game", "ein Spiel"), ("0ad-data", "its data", "seine Daten"),
    ...           ("vim", "an editor", "ein Editor"), ("nano", "an editor", "Editor")])
    [[('a game', 'ein Spiel'), ('its data', 'seine Daten')], [('an editor', 'ein Editor')]]
    """
    found: dict[str, list[Pair]] = {}
    sources: set[str] = set()
    targets: set[str] = set()
    for package, source, target in rows:
        if source not in sources and target not in targets:
            sources.add(source)
            targets.add(target)
            found.setdefault(package.split("-")[0], []).append((source, target))
    return list(found.values())


def joined(left: str, right: str) -> list[tuple[str, str, str]]:
    r"""Packages with their short descriptions in both languages, in order of the name.

    >>> from maskwright.apps.debian import joined
    >>> one = "Package: vim\nDescription-md5: 1f\nDescription-en: an editor\n long text\n"
    >>> joined(one, one.replace("-en: an", "-de: ein").replace("editor", "Editor"))
    [('vim', 'an editor', 'ein Editor')]
    """
    translations = {checksum: text for _, checksum, text in _entries(right)}
    rows = {
        (package, text.replace("\t", " "), translations[checksum].replace("\t", " "))
        for package, checksum, text in _entries(left)
        if translations.get(checksum, text) != text
    }
    return sorted(rows)


def fetched(left: str, right: str) -> tuple[str, str]:
    """The lists of descriptions in both languages, as apt has them from its sources."""
    apt = shutil.which("apt-get")
    if apt is None or not HELPER.exists():
        raise ArgumentError(f"debian: there is no apt on this machine. {INSTEAD}")
    with tempfile.TemporaryDirectory(prefix="maskwright-apt-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # apt fetches as a user of its own
        told = {**os.environ, "APT_CONFIG": str(_configured(folder, left, right)), "LC_ALL": "C"}
        try:
            done = subprocess.run(
                [apt, "-qq", "update"],
                env=told,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            lists = {
                language: sorted((folder / "lists").glob(f"*_i18n_Translation-{language}*"))
                for language in (left, right)
            }
            if not all(lists.values()):
                raise ArgumentError(_not_fetched(done.stderr))
            return _read(lists[left], told), _read(lists[right], told)
        except subprocess.TimeoutExpired as error:
            raise ArgumentError(_not_fetched(f"no end after {PATIENCE} seconds")) from error


def cache_folder() -> Path:
    """Where what was fetched is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "maskwright")


def _configured(folder: Path, left: str, right: str) -> Path:
    """A configuration of apt; the system's settings hold, but for those that name languages."""
    for part in ("parts", "lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    for setting in sorted(SETTINGS.glob("*")) if SETTINGS.is_dir() else ():
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


def _read(paths: list[Path], told: dict[str, str]) -> str:
    """Files as text, whichever way apt keeps them packed."""
    done = subprocess.run(
        [HELPER, "cat-file", *paths], env=told, capture_output=True, timeout=PATIENCE, check=False
    )
    if done.returncode:
        raise ArgumentError(_not_fetched(done.stderr.decode(errors="replace")))
    return done.stdout.decode("utf-8", errors="replace")


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


def _not_fetched(reason: str) -> str:
    last = next((line.strip() for line in reason.splitlines() if line.strip()), "no such lists")
    return f"debian: apt could not fetch the descriptions ({last[:120]}). {ONLINE}"
