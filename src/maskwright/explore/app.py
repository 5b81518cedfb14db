"""The application and its server: the page, its static files, and an API route per request."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import signal
import socket
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route

from maskwright.errors import ArgumentError
from maskwright.explore.error_responses import JSON, HTTPError, encode_json, to_http_error
from maskwright.explore.page_data import lessons, vocabulary
from maskwright.explore.schema import REQUESTS
from maskwright.explore.security import MAX_CONNECTIONS, LimitedConnection, SecurityMiddleware
from maskwright.explore.workers import WorkerPool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from starlette.requests import Request

HOST: Final = "127.0.0.1"
PORT: Final = 8765
KEEP_ALIVE: Final = 5  # seconds
SHUTDOWN_TIMEOUT: Final = 1  # seconds for responses that are being sent
MAX_HEADERS: Final = 16 * 1024  # bytes
MEDIA_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
MESSAGES: Final = {
    400: "Malformed request.",
    404: "Not found. Open the printed address.",
    405: "Method not allowed. Use GET for the page and POST for the API.",
}


# ── the application ───────────────────────────────────────────────────────────────────────────


def make_app(port: int, *, token: str | None = None) -> Starlette:
    """The application for a server on a port of this machine.

    Args:
        port: The port, which hosts and origins of requests must name.
        token: The token of API requests. Default: a new random one.

    >>> [route.path for route in make_app(8765).routes][:3]
    ['/', '/static/{name:path}', '/api/vocabulary']
    """
    secret = secrets.token_urlsafe(32) if token is None else token
    files = _read_static_files()
    page, page_type = files.pop("index.html")
    scripts = sorted(name for name in files if name.endswith(".js"))
    preload = "".join(f'<link rel="modulepreload" href="/static/{name}">' for name in scripts)
    page = page.replace(b"{{token}}", secret.encode()).replace(b"{{scripts}}", preload.encode())
    data = {"vocabulary": encode_json(vocabulary()), "lessons": encode_json({"lessons": lessons()})}

    async def get_page(request: Request) -> Response:  # noqa: ARG001
        return Response(page, media_type=page_type)

    async def get_file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files:
            raise HTTPException(404)
        return Response(files[name][0], media_type=files[name][1])

    async def get_data(request: Request) -> Response:
        return Response(data[request.url.path.removeprefix("/api/")], media_type=JSON)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.pool = WorkerPool()
        app.state.pool.start()
        try:
            yield
        finally:
            await app.state.pool.stop()

    return Starlette(
        routes=[
            Route("/", get_page, methods=["GET"]),
            Route("/static/{name:path}", get_file, methods=["GET"]),
            *(Route(f"/api/{name}", get_data, methods=["GET"]) for name in data),
            *(Route(f"/api/{name}", _handle, methods=["POST"]) for name in REQUESTS),
        ],
        middleware=[Middleware(SecurityMiddleware, port=port, token=secret)],
        exception_handlers={HTTPException: _handle_http_exception},
        lifespan=lifespan,
    )


async def _handle(request: Request) -> Response:
    """Submits a request to the pool, and stops waiting if the client disconnects."""
    try:
        body = await request.body()
    except ClientDisconnect:
        return Response(status_code=503)
    pool: WorkerPool = request.app.state.pool
    job = asyncio.ensure_future(pool.submit(request.url.path.removeprefix("/api/"), body))
    disconnect = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((job, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not job.done():
            return Response(status_code=503)
        response = job.result()
    except Exception as error:
        response = to_http_error(error).response()
    finally:
        for task in (job, disconnect):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
    return Response(response.body, response.status, media_type=response.media_type)


async def _disconnected(request: Request) -> None:
    """Returns when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _handle_http_exception(request: Request, error: Exception) -> Response:  # noqa: ARG001
    status = error.status_code if isinstance(error, HTTPException) else 400
    response = HTTPError(status, MESSAGES.get(status, MESSAGES[400])).response()
    return Response(response.body, status, media_type=response.media_type)


def _read_static_files() -> dict[str, tuple[bytes, str]]:
    """The content and media type of each file of the page; no other file is ever served."""
    folder = Path(__file__).parent / "static"
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), MEDIA_TYPES[path.suffix[1:]])
        for path in folder.rglob("*")
        if path.suffix[1:] in MEDIA_TYPES
    }


# ── the server ────────────────────────────────────────────────────────────────────────────────


def serve(
    port: int | None = None,
    open_browser: bool = True,
    *,
    host: str = HOST,
    echo: Callable[[str], Any] = print,
) -> None:
    """Serves the explorer on this machine until SIGINT or SIGTERM.

    Args:
        port: The port. Default: 8765, or a free one if that is in use.
        open_browser: Whether to open the page in a browser.
        host: Must be 127.0.0.1.
        echo: A function that prints the address.
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
        http=LimitedConnection,
        ws="none",
        lifespan="on",
        limit_concurrency=2 * MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT,
        h11_max_incomplete_event_size=MAX_HEADERS,
    )
    server = _Server(config)
    opener = threading.Timer(0.3, webbrowser.open, [address])  # when the server responds
    opener.daemon = True
    with _stopped_by_signals(server), contextlib.closing(listener):
        echo(f"The explorer is at {address}")
        echo("Ctrl+C stops it.")
        if open_browser:
            opener.start()
        server.run(sockets=[listener])
        opener.cancel()


def listen(port: int | None, host: str = HOST) -> socket.socket:
    """A listening socket on 127.0.0.1.

    Raises:
        ArgumentError: If the host is another one, or the port is invalid or in use.

    >>> listen(0, "0.0.0.0")
    Traceback (most recent call last):
    maskwright.errors.ArgumentError: host: expected 127.0.0.1, got '0.0.0.0'. The explorer serves \
this machine only.
    """
    if host != HOST:
        raise ArgumentError(
            f"host: expected {HOST}, got {host!r:.40}. The explorer serves this machine only."
        )
    if port is not None and not 0 <= port <= 65535:
        raise ArgumentError(f"port: expected a number from 0 to 65535, got {port}.")
    try:
        return _bind(PORT if port is None else port)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        if port is not None:
            raise ArgumentError(
                f"port {port} is already in use, or permission denied. Choose another one."
            ) from None
    return _bind(0)


def _bind(port: int) -> socket.socket:
    # With the protocol number asyncio sets TCP_NODELAY; otherwise small responses wait for 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if hasattr(signal, "SIGKILL"):  # on Windows this option lets two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(MAX_CONNECTIONS)
    except OSError:
        listener.close()
        raise
    return listener


class _Server(uvicorn.Server):
    """A server that does not wait for running jobs when it is stopped."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops the workers first, which completes every pending request."""
        app: Any = self.config.app
        await app.state.pool.stop()
        await super().shutdown(sockets)


@contextlib.contextmanager
def _stopped_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """SIGINT and SIGTERM stop the server, also before it listens; uvicorn raises them again."""
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
