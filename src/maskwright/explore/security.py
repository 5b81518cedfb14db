"""Checks of requests and connections: only the explorer's own page on this machine is served.

Another page in the same browser can send requests here (DNS rebinding, cross-site requests), so the
host and the origin must be the server's own, the content type one that a form cannot send, and each
API request carries a token that only the page knows. Bodies, connections and the time for a request
to arrive and for a response to be read are limited.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from maskwright.explore.error_responses import HTTPError, bad_request
from maskwright.explore.schema import MAX_BODY, body_too_large

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_TIMEOUT: Final = 5.0  # seconds for the headers to arrive, and again for the body
WRITE_TIMEOUT: Final = 5.0  # seconds for the client to read what is buffered of a response
MAX_CONNECTIONS: Final = 64
MAX_CONNECTIONS_PER_ADDRESS: Final = 32
TOKEN_HEADER: Final = b"x-maskwright-token"
CONTENT_TYPE: Final = re.compile(rb"application/json(?:\s*;\s*charset=\"?utf-8\"?)?", re.IGNORECASE)
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class SecurityMiddleware:
    """ASGI middleware that checks headers and body size, and adds security headers."""

    def __init__(self, app: ASGIApp, *, port: int, token: str) -> None:
        self._app = app
        self._hosts = tuple(f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost"))
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request to the app, or responds with an error."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        sender = _Sender(send)
        try:
            self._check(scope)
            await self._app(scope, _LimitedBody(receive, _content_length(scope)).receive, sender)
        except HTTPError as error:
            if sender.started:
                raise
            error_response = error.response()
            headers = {"connection": "close"}  # because the rest of the request is not read
            response = Response(
                error_response.body, error_response.status, headers, error_response.media_type
            )
            await response(scope, receive, sender)

    def _check(self, scope: Scope) -> None:
        host = _header(scope, b"host")
        if host not in self._hosts:
            raise _forbidden("The host is not this machine. Open the printed address.")
        origin = _header(scope, b"origin")
        if origin != b"http://" + host and (
            origin is not None or scope["method"] not in ("GET", "HEAD")
        ):
            raise _forbidden("The request comes from another page. Use the explorer's own page.")
        if scope["path"].startswith("/api/"):
            token = _header(scope, TOKEN_HEADER) or b""
            if not hmac.compare_digest(token, self._token):
                raise _forbidden("The token is missing or outdated. Reload the page.")
        if scope["method"] == "POST":
            content_type = _header(scope, b"content-type") or b""
            if not CONTENT_TYPE.fullmatch(content_type):
                raise HTTPError(415, "Unexpected content type, expected application/json.")


class _Sender:
    """Sends messages with the security headers, and records whether a response has started."""

    def __init__(self, send: Send) -> None:
        self._send, self.started = send, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            names = {name for name, _ in HEADERS}
            headers = [pair for pair in message.get("headers", ()) if pair[0].lower() not in names]
            message = {**message, "headers": [*headers, *HEADERS]}
        await self._send(message)


class _LimitedBody:
    """Receives a body of at most `MAX_BODY` bytes within `REQUEST_TIMEOUT` seconds."""

    def __init__(self, receive: Receive, length: int | None) -> None:
        if length is not None and length > MAX_BODY:
            raise body_too_large()
        self._receive, self._size, self._more = receive, 0, True
        self._deadline: float | None = None

    async def receive(self) -> Message:
        """The next message of the server."""
        if not self._more:
            return await self._receive()
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + REQUEST_TIMEOUT
        try:
            message = await asyncio.wait_for(self._receive(), max(self._deadline - now, 0.0))
        except asyncio.TimeoutError:
            raise bad_request("The request took too long to arrive. Send it again.") from None
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            self._more = message.get("more_body", False)
            if self._size > MAX_BODY:
                raise body_too_large()
        return message


def _header(scope: Scope, name: bytes) -> bytes | None:
    """The value of a header, which may be given only once."""
    values = [value for key, value in scope["headers"] if key.lower() == name]
    if len(values) > 1:
        raise bad_request(
            f"The header {name.decode()} is given {len(values)} times, expected once."
        )
    return values[0] if values else None


def _content_length(scope: Scope) -> int | None:
    value = _header(scope, b"content-length")
    if value is None:
        return None
    if not re.fullmatch(rb"\d{1,18}", value):
        raise bad_request("The content length is not a number of bytes.")
    return int(value)


def _forbidden(message: str) -> HTTPError:
    return HTTPError(403, message, "Forbidden")


# ── connections ───────────────────────────────────────────────────────────────────────────────


class LimitedConnection(H11Protocol):
    """uvicorn's protocol with timeouts for requests and for reading, and a limit of connections.

    A connection without the headers of a request after the timeout is closed, and so is one whose
    client does not read the response. If there are too many connections, in total or from one
    address, the one that has waited for its client for the longest time is closed in favour of a
    new one.
    """

    idle_since: float | None = None  # None between the end of a request and that of its response
    _timer: asyncio.TimerHandle | None = None
    _paused_since: float | None = None  # None while the client reads the response
    _write_timer: asyncio.TimerHandle | None = None

    @property
    def waiting_since(self) -> float | None:
        """Since when the connection waits for its client; None if it does not."""
        since = [time for time in (self.idle_since, self._paused_since) if time is not None]
        return min(since, default=None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accepts a connection, after closing one that waits if there are too many."""
        super().connection_made(transport)
        self._wait_for_request()
        peers: list[Any] = [other for other in self.connections if other is not self]
        same_address = [other for other in peers if _address(other) == _address(self)]
        for group, limit in ((same_address, MAX_CONNECTIONS_PER_ADDRESS), (peers, MAX_CONNECTIONS)):
            if len(group) >= limit:
                waiting = [other for other in group if other.waiting_since is not None]
                victim = min(waiting, key=lambda other: other.waiting_since, default=self)
                self.connections.discard(victim)
                victim.transport.abort()
                return

    def handle_events(self) -> None:
        """Processes received data; the headers of a request end the timeout."""
        super().handle_events()
        if self.cycle is None or self.cycle.response_complete:
            return
        since = self.idle_since if self.cycle.more_body else None
        self._stop_waiting()
        self.idle_since = since  # the body has its own timeout

    def on_response_complete(self) -> None:
        """Waits for the next request on the connection."""
        self._wait_for_request()  # first, because the next one may have been received already
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Starts the timeout when the client does not read as fast as the response is sent."""
        super().pause_writing()
        self._paused_since = self.loop.time()
        self._write_timer = self.loop.call_later(WRITE_TIMEOUT, self.transport.abort)

    def resume_writing(self) -> None:
        """Ends the timeout when the client has read most of what was sent."""
        super().resume_writing()
        self._stop_write_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Releases the timers."""
        self._stop_waiting()
        self._stop_write_timer()
        super().connection_lost(exc)

    def _wait_for_request(self) -> None:
        self._stop_waiting()
        self.idle_since = self.loop.time()
        self._timer = self.loop.call_later(REQUEST_TIMEOUT, self.transport.abort)

    def _stop_waiting(self) -> None:
        self.idle_since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_write_timer(self) -> None:
        self._paused_since = None
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def _address(connection: Any) -> str | None:
    return connection.client[0] if connection.client else None
