"""Where tests come from: installed packages, PyPI, or a folder with clones of repositories."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from maskwright._atomic_write import create_folder

PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


class NotRunError(Exception):
    """The tests of a suite are not there; the message says why, and how to get them."""


def default_cache() -> Path:
    """The folder for downloads, outside of the repository."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "maskwright" / "conformance"


def installed(package: str) -> str:
    """The version of an installed package.

    Raises:
        NotRunError: If it is not installed.
    """
    try:
        return version(package)
    except PackageNotFoundError:
        raise NotRunError(
            f"{package} is not installed: run `make conformance`, which installs it"
        ) from None


@dataclass(frozen=True)
class Sources:
    """The folder with clones of repositories, or None, and the cache of downloads."""

    suites: Path | None
    cache: Path

    def clone(self, name: str, repository: str, release: str, contains: str) -> Path:
        """The clone of a repository in the folder that the user named.

        Args:
            name: The name of its folder.
            repository: Owner and name on GitHub.
            release: The version that fits the installed package.
            contains: A path that it must contain.

        Raises:
            NotRunError: If no folder was named, or the clone is not in it.
        """
        how = f"clone {repository} at {release} as {name} into a folder, and pass SUITES=folder"
        if self.suites is None:
            raise NotRunError(f"no package contains these tests: {how}")
        if not (self.suites / name / contains).exists():
            raise NotRunError(f"{self.suites / name} has no {contains}: {how}")
        return (self.suites / name).resolve()

    def packages(self, *requirements: str) -> Path:
        """A folder with packages that the tests import, and maskwright does not need.

        Args:
            requirements: Pinned versions. Their dependencies are not installed.

        Raises:
            NotRunError: If pip fails.
        """
        folder = self.cache / "+".join(sorted(requirements))
        if not folder.exists():
            install = ("install", "--no-deps", "--no-compile", *requirements, "--target")
            self._download(folder, *install)
        return folder

    def sdist(self, requirement: str) -> Path:
        """The unpacked source distribution of a pinned version from PyPI.

        Raises:
            NotRunError: If there is none, or pip cannot read it without building it.
        """
        folder = self.cache / f"{requirement}.sdist"
        if not folder.exists():
            self._download(folder, "download", "--no-deps", "--no-binary=:all:", requirement, "-d")
            (archive,) = folder.glob("*.tar.gz")
            with tarfile.open(archive) as file:
                file.extractall(folder, filter="data")
            archive.unlink()
        (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
        return unpacked

    def _download(self, folder: Path, *command: str) -> None:
        """Run a command of pip that fills a folder, which appears when it is complete."""
        create_folder(self.cache)
        with tempfile.TemporaryDirectory(dir=self.cache) as temporary:
            content = Path(temporary) / "content"
            done = subprocess.run(
                [*PIP, *command, content], capture_output=True, text=True, check=False
            )
            if done.returncode:
                lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
                raise NotRunError(f"pip {command[0]} failed: {' '.join(lines[:1])}")
            content.rename(folder)


def version_in(file: Path, pattern: str) -> str:
    """The version that a file of a repository states; `pattern` has one group."""
    match = re.search(pattern, file.read_text())
    assert match, f"{file} has no version"
    return match[1]
