"""The site, built once for all workers, and a server and a browser to read it with."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests._helpers.shared_folder import shared_folder

if find_spec("playwright") is not None:  # else the tests in the browser skip by themselves
    from tests._helpers.browser import chromium  # noqa: F401

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests._helpers.browser import Chromium, Visit

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site. Workers of one run share it."""
    if find_spec("mkdocs") is None and os.environ.get("CI") != "true":
        pytest.skip("MkDocs is not installed. Run: pip install 'maskwright[docs]'")
    return shared_folder(tmp_path_factory, "site", build_strictly)


def build_strictly(folder: Path) -> None:
    done = build(folder)
    assert not done.returncode, done.stdout


def build(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Build the site as `make docs` does."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    return subprocess.run(
        [*command, *options],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing of the requests that went well."""


@pytest.fixture(scope="session")
def site_address(site: Path) -> Iterator[str]:
    """Where the site is served."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        serving.join()


@pytest.fixture
def reader(chromium: Chromium, site_address: str) -> Iterator[Visit]:
    """Opens pages; at the end they must have been quiet, and have asked nobody but the server."""
    from tests._helpers.browser import Visit

    with chromium.running_loop():
        opened = Visit(chromium.browser, site_address)
        try:
            yield opened
        finally:
            opened.close()
    opened.check()
