"""Jobs of the explorer's workers that wait for the test, and so last as long as it needs them to."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from maskwright.explore import handlers
from maskwright.explore.error_responses import JSON, Response

if TYPE_CHECKING:
    from typing_extensions import Self

HOST = "127.0.0.1"
PREFIX = b"wait for port "
MAX_WAIT = 300.0  # seconds; reached only if a job never starts


class WaitingJobs:
    """Connections from running jobs, each of which waits until its connection is closed."""

    def __init__(self) -> None:
        self._listener = socket.create_server((HOST, 0))
        self._listener.settimeout(MAX_WAIT)
        self._connections: list[socket.socket] = []
        self.body = PREFIX + str(self._listener.getsockname()[1]).encode()

    def wait_until_started(self) -> None:
        """Waits until a worker runs one more of the jobs."""
        self._connections.append(self._listener.accept()[0])

    def release(self) -> None:
        """Ends the jobs that have started."""
        while self._connections:
            self._connections.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._listener.close()


def dispatch(name: str, body: bytes) -> Response:
    """Handles a request in a worker; with the body of a `WaitingJobs`, waits for the test."""
    if not body.startswith(PREFIX):
        return handlers.dispatch(name, body)
    address = HOST, int(body.removeprefix(PREFIX))
    with contextlib.suppress(OSError), socket.create_connection(address) as connection:
        connection.recv(1)
    return Response(200, JSON, b"{}")
