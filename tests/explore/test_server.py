"""The server as a whole: a real one on a free port, with signals, sockets and streams."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2 as httpx
import pytest

from maskwright.errors import ArgumentError
from maskwright.explore.fields import MAX_BYTES
from maskwright.explore.server import PORT, listen
from tests.thinned import thinned

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = """
import sys
from maskwright.explore.server import serve
if __name__ == "__main__":
    look = "--open" in sys.argv
    serve(int(sys.argv[1]), open_browser=look, say=lambda line: print(line, flush=True))
    print("returned", flush=True)
"""
SLOW = {"subject": {"expression": "window(back=255) | keys(range(4))", "size": 2**19}}
SHORTER = {
    "subject": {"expression": "window(back=255) | keys(range(4))", "size": 2**17}
}  # still far above 50 ms


@dataclass
class Running:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    port: int
    opened: Path  # is there once a browser was opened

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def headers(self) -> dict[str, str]:
        page = httpx.get(self.origin, timeout=60).text
        found = re.search(r'name="maskwright-token" content="([^"]+)"', page)
        assert found is not None
        return {"X-Maskwright-Token": found[1], "Origin": self.origin}

    def post(self, name: str, body: Any, headers: dict[str, str]) -> httpx.Response:
        return httpx.post(f"{self.origin}/api/{name}", json=body, headers=headers, timeout=60)

    def workers(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir() if sys.platform == "linux" else ():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    words = (entry / "cmdline").read_bytes()
                    if parent == self.process.pid and b"spawn_main" in words:
                        found.append(int(entry.name))
        return found


@contextlib.contextmanager
def running(folder: Path, *options: str) -> Iterator[Running]:
    """A server, and a browser that only writes down what it was shown."""
    script, browser, opened = (folder / name for name in ("run.py", "browser.py", "opened"))
    script.write_text(SCRIPT)
    browser.write_text(
        "import sys, urllib.request, pathlib\n"
        "page = urllib.request.urlopen(sys.argv[1]).read()\n"
        f"pathlib.Path({str(opened)!r}).write_bytes(page)\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(script), "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "BROWSER": f"{sys.executable} {browser} %s"},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        said = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", said)
        assert found is not None, process.stderr.read()
        yield Running(process, int(found[1]), opened)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for all tests that leave it as it was."""
    with running(tmp_path_factory.mktemp("server")) as found:
        yield found


def gone(pid: int) -> bool:
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True


def test_it_says_where_it_is_and_how_to_stop_it(server: Running) -> None:
    assert server.process.stdout is not None
    assert server.process.stdout.readline().strip() == "Ctrl+C stops it."
    headers = server.headers()
    reply = server.post("mask", {"subject": {"expression": "causal()"}}, headers)
    assert reply.json()["count"] == 36
    assert "server" not in reply.headers
    assert reply.headers["x-content-type-options"] == "nosniff"


SIGNALS = list(product([signal.SIGINT, signal.SIGTERM], [True, False]))


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize(("number", "busy"), thinned(SIGNALS, 3))
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: int, busy: bool) -> None:
    with running(tmp_path) as server:
        headers = server.headers()
        assert server.post("tokens", {"text": "a"}, headers).status_code == 200
        workers = server.workers()
        if sys.platform == "linux":
            assert len(workers) == 2
        with contextlib.ExitStack() as held:
            if busy:
                held.enter_context(asking(server, headers))
                time.sleep(0.3)
            os.killpg(server.process.pid, number)  # as a terminal does: to all of them
            out, err = server.process.communicate(timeout=60)
        assert server.process.returncode == 0
        assert out.endswith("returned\n")
        assert err == ""
        assert all(gone(pid) for pid in workers)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_a_signal_before_it_listens_ends_it_too(tmp_path: Path) -> None:
    with running(tmp_path) as server:  # it has said where it will be, and starts
        server.process.send_signal(signal.SIGINT)
        out, err = server.process.communicate(timeout=60)
        assert server.process.returncode == 0, err
        assert out.endswith("returned\n")


@pytest.mark.skipif(sys.platform == "win32", reason="the browser is chosen otherwise there")
def test_the_browser_is_opened(tmp_path: Path) -> None:
    with running(tmp_path, "--open") as server:
        while not (server.opened.exists() and server.opened.stat().st_size):
            time.sleep(0.05)
        server.process.send_signal(signal.SIGTERM)
        server.process.communicate(timeout=60)


@pytest.mark.skipif(sys.platform == "win32", reason="the browser is chosen otherwise there")
def test_the_browser_is_not_opened_where_it_should_not_be(server: Running) -> None:
    assert server.headers()
    time.sleep(0.6)  # twice as long as until one is opened
    assert not server.opened.exists()


@contextlib.contextmanager
def asking(server: Running, headers: dict[str, str], job: Any = SLOW) -> Iterator[socket.socket]:
    """A connection on which a long job was asked for."""
    body = json.dumps(job).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head(server, headers, f"Content-Length: {len(body)}", "cost") + body)
        yield connection


def head(server: Running, headers: dict[str, str], more: str, name: str = "tokens") -> bytes:
    own = "".join(f"{key}: {value}\r\n" for key, value in headers.items())
    return (
        f"POST /api/{name} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n{own}"
        f"Content-Type: application/json\r\n{more}\r\n\r\n"
    ).encode()


def read_all(connection: socket.socket) -> bytes:
    """What is answered until the server closes, or a reset after the answer."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            data += part
    return data


def test_a_long_body_is_refused_before_it_is_sent(server: Running) -> None:
    headers = server.headers()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head(server, headers, f"Content-Length: {10**9}"))
        assert b" 413 " in read_all(connection).split(b"\r\n")[0]


def test_a_stream_without_a_length_is_cut_off(server: Running) -> None:
    headers = server.headers()
    part = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    sent = 0
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head(server, headers, "Transfer-Encoding: chunked"))
        try:
            while sent < 64 * MAX_BYTES and not select.select([connection], [], [], 0)[0]:
                connection.sendall(part)
                sent += len(part)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert b" 413 " in read_all(connection).split(b"\r\n")[0]
    assert sent < 64 * MAX_BYTES
    assert server.post("tokens", {"text": "a"}, headers).status_code == 200


def test_clients_that_leave_take_nothing_with_them(server: Running) -> None:
    headers = server.headers()
    server.post("tokens", {"text": "a"}, headers)
    before = set(server.workers())
    for _ in range(4):
        with asking(server, headers, SHORTER):
            time.sleep(0.05)  # then the connection is closed
    assert server.post("tokens", {"text": "a"}, headers).status_code == 200
    assert server.post("cost", {"subject": {"expression": "causal()"}}, headers).status_code == 200
    assert set(server.workers()) == before


def test_it_is_bound_to_this_machine_alone() -> None:
    with contextlib.closing(listen(0)) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        assert listener.proto == socket.IPPROTO_TCP  # else asyncio leaves small answers waiting


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "localhost", "192.168.0.1", "127.0.0.2"])
def test_no_other_host_is_taken(host: str) -> None:
    with pytest.raises(ArgumentError, match="this machine alone"):
        listen(0, host)


def test_a_port_that_is_taken() -> None:
    with contextlib.closing(listen(0)) as first:
        taken = first.getsockname()[1]
        with pytest.raises(ArgumentError, match=f"port {taken} is taken"):
            listen(taken)
    for port in (-1, 65536):
        with pytest.raises(ArgumentError, match="no port"):
            listen(port)


def test_without_a_port_a_free_one_is_found() -> None:
    with contextlib.closing(listen(None)) as first, contextlib.closing(listen(None)) as second:
        ports = {first.getsockname()[1], second.getsockname()[1]}
        assert len(ports) == 2
        assert PORT not in ports - {first.getsockname()[1]}
