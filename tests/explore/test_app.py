"""A real server on a free port: signals, connections, streams and ports."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2 as httpx
import pytest

from maskwright.errors import ArgumentError
from maskwright.explore.app import PORT, listen
from maskwright.explore.schema import MAX_BODY
from maskwright.explore.security import MAX_CONNECTIONS, MAX_CONNECTIONS_PER_ADDRESS
from tests._helpers.sampling import subset_of_cases
from tests._helpers.waiting_jobs import MAX_WAIT, WaitingJobs

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = """
import sys
from functools import partial
from maskwright.explore import app, security
from tests._helpers.waiting_jobs import MAX_WAIT, dispatch
if __name__ == "__main__":
    security.REQUEST_TIMEOUT = security.WRITE_TIMEOUT = float(sys.argv[2])
    app.WorkerPool = partial(app.WorkerPool, timeout=MAX_WAIT, handler=dispatch)
    look = "--open" in sys.argv
    app.serve(int(sys.argv[1]), open_browser=look, echo=lambda line: print(line, flush=True))
    print("returned", flush=True)
"""
PATH = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])


@dataclass
class Running:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    port: int
    opened: Path  # is there once a browser was opened

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @cached_property
    def headers(self) -> dict[str, str]:
        page = httpx.get(self.origin, timeout=MAX_WAIT).text
        found = re.search(r'name="maskwright-token" content="([^"]+)"', page)
        assert found is not None
        return {"X-Maskwright-Token": found[1], "Origin": self.origin}

    def post(self, name: str, body: Any) -> httpx.Response:
        url = f"{self.origin}/api/{name}"
        return httpx.post(url, json=body, headers=self.headers, timeout=MAX_WAIT)

    def connect(self, **options: Any) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=MAX_WAIT, **options)

    def workers(self) -> list[int]:
        """The process ids of the workers; empty if the system is not Linux."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        children = " ".join(file.read_text() for file in tasks.glob("*/children")).split()
        return [
            int(pid)
            for pid in children
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]


@contextlib.contextmanager
def running(folder: Path, *options: str, request_timeout: float = 10.0) -> Iterator[Running]:
    """A server, and a browser that saves the page."""
    script, browser, opened = (folder / name for name in ("run.py", "browser.py", "opened"))
    script.write_text(SCRIPT)
    browser.write_text(
        "import sys, urllib.request, pathlib\n"
        "page = urllib.request.urlopen(sys.argv[1]).read()\n"
        f"pathlib.Path({str(opened)!r}).write_bytes(page)\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(script), "0", str(request_timeout), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "BROWSER": f"{sys.executable} {browser} %s", "PYTHONPATH": PATH},
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


def test_the_address_is_printed(server: Running) -> None:
    assert server.process.stdout is not None
    assert server.process.stdout.readline().strip() == "Ctrl+C stops it."
    reply = server.post("mask", {"subject": {"expression": "causal()"}})
    assert reply.json()["count"] == 36
    assert "server" not in reply.headers


SIGNALS = list(product([signal.SIGINT, signal.SIGTERM], [True, False]))


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize(("number", "busy"), subset_of_cases(SIGNALS, 3))
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: int, busy: bool) -> None:
    with running(tmp_path) as server:
        assert server.post("tokens", {"text": "a"}).status_code == 200
        workers = server.workers()
        if sys.platform == "linux":
            assert len(workers) == 2
        with contextlib.ExitStack() as held:
            if busy:
                jobs = held.enter_context(WaitingJobs())
                held.enter_context(requested(server, jobs.body))
                jobs.wait_until_started()
            os.killpg(server.process.pid, number)  # as a terminal does: to all of them
            out, err = server.process.communicate(timeout=MAX_WAIT)
        assert server.process.returncode == 0
        assert out.endswith("returned\n")
        assert err == ""
        assert all(gone(pid) for pid in workers)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_a_signal_before_it_listens_ends_it_too(tmp_path: Path) -> None:
    with running(tmp_path) as server:  # it has said where it will be, and starts
        server.process.send_signal(signal.SIGINT)
        out, err = server.process.communicate(timeout=MAX_WAIT)
        assert server.process.returncode == 0, err
        assert out.endswith("returned\n")


@pytest.mark.skipif(sys.platform == "win32", reason="the browser is chosen otherwise there")
def test_the_browser_is_opened(tmp_path: Path) -> None:
    with running(tmp_path, "--open") as server:
        while not (server.opened.exists() and server.opened.stat().st_size):
            time.sleep(0.05)
        server.process.send_signal(signal.SIGTERM)
        server.process.communicate(timeout=MAX_WAIT)


@contextlib.contextmanager
def requested(server: Running, body: bytes) -> Iterator[socket.socket]:
    """A connection on which a job was requested."""
    with server.connect() as connection:
        connection.sendall(head(server, f"Content-Length: {len(body)}", "mask") + body)
        yield connection


def head(server: Running, more: str, name: str = "tokens") -> bytes:
    own = "".join(f"{key}: {value}\r\n" for key, value in server.headers.items())
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
    with server.connect() as connection:
        connection.sendall(head(server, f"Content-Length: {10**9}"))
        assert b" 413 " in read_all(connection).split(b"\r\n")[0]


def test_a_stream_without_a_length_is_cut_off(server: Running) -> None:
    part = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    sent = 0
    with server.connect() as connection:
        connection.sendall(head(server, "Transfer-Encoding: chunked"))
        try:
            while sent < 64 * MAX_BODY and not select.select([connection], [], [], 0)[0]:
                connection.sendall(part)
                sent += len(part)
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert b" 413 " in read_all(connection).split(b"\r\n")[0]
    assert sent < 64 * MAX_BODY
    assert server.post("tokens", {"text": "a"}).status_code == 200


def test_workers_survive_clients_that_disconnect(server: Running) -> None:
    server.post("tokens", {"text": "a"})
    before = set(server.workers())
    with WaitingJobs() as jobs:
        for _ in range(4):
            with requested(server, jobs.body):
                jobs.wait_until_started()
            jobs.release()  # after the client has disconnected
    assert server.post("tokens", {"text": "a"}).status_code == 200
    assert server.post("cost", {"subject": {"expression": "causal()"}}).status_code == 200
    assert set(server.workers()) == before


def test_idle_connections_do_not_block_others(server: Running) -> None:
    with contextlib.ExitStack() as opened:
        silent = [
            opened.enter_context(server.connect())
            for _ in range(MAX_CONNECTIONS + MAX_CONNECTIONS_PER_ADDRESS)
        ]
        for connection in silent[::2]:
            with contextlib.suppress(OSError):  # of those that are closed already
                connection.sendall(b"GET / HTTP/1.1\r\n")
        for _ in range(5):
            assert server.post("tokens", {"text": "a"}).status_code == 200
        open_now = [c for c in silent if not select.select([c], [], [], 0)[0]]
        assert len(open_now) < MAX_CONNECTIONS_PER_ADDRESS


def test_requests_without_a_body_do_not_block_others(server: Running) -> None:
    with contextlib.ExitStack() as opened:
        for _ in range(MAX_CONNECTIONS + MAX_CONNECTIONS_PER_ADDRESS):
            connection = opened.enter_context(server.connect())
            with contextlib.suppress(OSError):  # it is closed already
                connection.sendall(head(server, "Content-Length: 999"))
        for _ in range(5):
            assert server.post("tokens", {"text": "a"}).status_code == 200


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have only 127.0.0.1")
def test_connections_are_limited_in_total(server: Running) -> None:
    with contextlib.ExitStack() as opened:
        silent = [
            opened.enter_context(server.connect(source_address=(f"127.0.1.{n % 8 + 1}", 0)))
            for n in range(2 * MAX_CONNECTIONS)
        ]
        assert server.post("tokens", {"text": "a"}).status_code == 200
        open_now = [c for c in silent if not select.select([c], [], [], 0)[0]]
        assert len(open_now) < MAX_CONNECTIONS


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with short timeouts for requests and for reading."""
    with running(tmp_path_factory.mktemp("impatient"), request_timeout=0.5) as found:
        while "headers" not in vars(found):
            with contextlib.suppress(httpx.TransportError):  # the request came too late
                found.headers  # noqa: B018
        yield found


@contextlib.contextmanager
def paused(server: Running) -> Iterator[None]:
    """What clients do within has been done when the server accepts their connections."""
    server.process.send_signal(signal.SIGSTOP)
    yield
    server.process.send_signal(signal.SIGCONT)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: 127",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 999\r\n\r\n",
        None,
    ],
)
def test_a_connection_without_a_complete_request_is_closed(
    impatient: Running, start: bytes | None
) -> None:
    """Also if it receives a byte now and then. None: the head of an API request."""
    if start is None:
        start = head(impatient, "Content-Length: 999")
    received = b""
    with contextlib.ExitStack() as stack:
        with paused(impatient):
            connection = stack.enter_context(impatient.connect())
            connection.sendall(start.replace(b"%d", str(impatient.port).encode()))
        stack.enter_context(contextlib.suppress(OSError))
        for _ in range(1000):
            if select.select([connection], [], [], 0.2)[0]:
                received += (part := connection.recv(65536))
                if not part:
                    break
            connection.sendall(b" " if start else b"")
        else:
            pytest.fail("the connection is still open")
    if start.startswith(b"POST"):
        assert b" 400 " in received.split(b"\r\n")[0]


@pytest.mark.skipif(not hasattr(select, "poll"), reason="there is no poll")
def test_a_connection_that_does_not_read_is_closed(impatient: Running) -> None:
    request = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{impatient.port}\r\n\r\n".encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.settimeout(0.2)
        connection.connect(("127.0.0.1", impatient.port))
        watched = select.poll()
        watched.register(connection, select.POLLHUP)
        unsent = 4096 * request
        deadline = time.monotonic() + MAX_WAIT
        while time.monotonic() < deadline:
            if watched.poll(50):
                return
            with contextlib.suppress(OSError):  # the server reads no more, or has closed it
                unsent = unsent[connection.send(unsent) :]
    pytest.fail("the connection is still open")


@pytest.mark.parametrize("length", ["-1", "1e3", "9" * 30, ""])
def test_an_invalid_content_length_is_refused(server: Running, length: str) -> None:
    with server.connect() as connection:
        connection.sendall(head(server, f"Content-Length: {length}"))
        assert b" 400 " in read_all(connection).split(b"\r\n")[0]


def test_the_socket_is_bound_to_this_machine() -> None:
    with contextlib.closing(listen(0)) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        assert listener.proto == socket.IPPROTO_TCP  # else asyncio delays small responses


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "localhost", "192.168.0.1", "127.0.0.2"])
def test_other_hosts_are_refused(host: str) -> None:
    with pytest.raises(ArgumentError, match="127"):
        listen(0, host)


def test_a_port_in_use_is_refused() -> None:
    with contextlib.closing(listen(0)) as first:
        taken = first.getsockname()[1]
        with pytest.raises(ArgumentError, match=str(taken)):
            listen(taken)
    for port in (-1, 65536):
        with pytest.raises(ArgumentError, match=str(port)):
            listen(port)


def test_without_a_port_a_free_one_is_found() -> None:
    with contextlib.closing(listen(None)) as first, contextlib.closing(listen(None)) as second:
        ports = {first.getsockname()[1], second.getsockname()[1]}
        assert len(ports) == 2
        assert PORT not in ports - {first.getsockname()[1]}
