"""The server: uvicorn on this machine's own address, until Ctrl+C."""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
import threading
import webbrowser
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from maskwright.errors import ArgumentError
from maskwright.explore.app import make_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST: Final = "127.0.0.1"
PORT: Final = 8765
CONNECTIONS: Final = 64
KEEP_ALIVE: Final = 5  # seconds
GRACE: Final = 1  # seconds for answers that are under way when it is stopped
MOST_HEAD: Final = 16 * 1024  # bytes of a request's headers


def serve(
    port: int | None = None,
    open_browser: bool = True,
    *,
    host: str = HOST,
    say: Callable[[str], Any] = print,
) -> None:
    """Serve the explorer on this machine until SIGINT or SIGTERM, then return.

    Args:
        port: The port; if not given, 8765, or a free one where that is taken.
        open_browser: Whether to open the page.
        host: 127.0.0.1, and nothing else: the explorer is for this machine alone.
        say: What prints the address and how to stop.
    """
    listener = listen(port, host)
    number = listener.getsockname()[1]
    address = f"http://{HOST}:{number}/"
    config = uvicorn.Config(
        make_app(number),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        http="h11",
        ws="none",
        lifespan="on",
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
        h11_max_incomplete_event_size=MOST_HEAD,
    )
    server = _Server(config)
    opened = threading.Timer(0.3, webbrowser.open, [address])  # when it answers
    opened.daemon = True
    with _stopped_by_signals(server), contextlib.closing(listener):
        say(f"The explorer is at {address}")
        say("Ctrl+C stops it.")
        if open_browser:
            opened.start()
        server.run(sockets=[listener])
        opened.cancel()


def listen(port: int | None, host: str = HOST) -> socket.socket:
    """A socket on this machine's own address.

    >>> listen(0, "0.0.0.0")
    Traceback (most recent call last):
    maskwright.errors.ArgumentError: host is '0.0.0.0', and the explorer is for this machine alone. \
Give 127.0.0.1.
    """
    if host != HOST:
        raise ArgumentError(
            f"host is {host!r:.40}, and the explorer is for this machine alone. Give {HOST}."
        )
    if port is not None and not 0 <= port <= 65535:
        raise ArgumentError(f"port={port} is no port. Give a number from 0 to 65535.")
    try:
        return _bound(PORT if port is None else port)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        if port is not None:
            raise ArgumentError(
                f"port {port} is taken, or not for you to take. Give another, or none."
            ) from None
    return _bound(0)


def _bound(port: int) -> socket.socket:
    # Only of sockets that name TCP does asyncio send what is small at once, not 40 ms later.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if hasattr(signal, "SIGKILL"):  # elsewhere this option would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(CONNECTIONS)
    except OSError:
        listener.close()
        raise
    return listener


class _Server(uvicorn.Server):
    """A server that refuses what is being computed when it is stopped, and waits for nothing."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop the workers first: then every request that is under way is answered at once."""
        app: Any = self.config.app
        await app.state.crew.stop()
        await super().shutdown(sockets)


@contextlib.contextmanager
def _stopped_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """SIGINT and SIGTERM stop the server, also before it listens, and end nothing else.

    uvicorn raises them once more when it has stopped, for whoever handled them before.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
