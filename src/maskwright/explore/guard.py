"""Who may ask: the guard before the app, which refuses all that is not this page on this machine.

Another page in the same browser could send requests here (DNS rebinding, forged forms). So the
name of the host and the origin must be the server's own, the content type must be one that a form
can't send, and every question carries a token that only the page was told.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
from typing import TYPE_CHECKING, Final

from maskwright.explore.faults import Fault, too_large, wrong
from maskwright.explore.fields import MAX_BYTES

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_HEADER: Final = b"x-maskwright-token"
BODY_SECONDS: Final = 10.0  # for a body to arrive
CONTENT: Final = re.compile(rb"application/json(?:\s*;\s*charset=\"?utf-8\"?)?", re.IGNORECASE)
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


class Guard:
    """ASGI middleware: checks a request's head and the size of its body, and adds safe headers."""

    def __init__(self, app: ASGIApp, *, port: int, token: str) -> None:
        self._app = app
        self._hosts = tuple(f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost"))
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # the page opens no socket
            await send({"type": "websocket.close", "code": 1008})
            return
        sending = _Sending(send)
        try:
            self._check(scope)
            body = _Body(receive, _length(scope)).receive
            await self._app(scope, body, sending)
        except Fault as fault:
            if sending.started:
                raise
            await refuse(fault, sending)

    def _check(self, scope: Scope) -> None:
        host = _one(scope, b"host")
        if host not in self._hosts:
            raise _forbidden("The host is not this machine. Open the address that was printed.")
        origin = _one(scope, b"origin")
        own = b"http://" + host
        if origin != own and (origin is not None or scope["method"] not in ("GET", "HEAD")):
            raise _forbidden("The request comes from another page. Open the explorer's own.")
        if scope["path"].startswith("/api/"):
            token = _one(scope, TOKEN_HEADER) or b""
            if not hmac.compare_digest(token, self._token):
                raise _forbidden("The token is missing or old. Load the page again.")
        if scope["method"] == "POST":
            content = _one(scope, b"content-type") or b""
            if not CONTENT.fullmatch(content):
                raise Fault(415, "The content type is not application/json. Send JSON.")


class _Sending:
    """Sends with the safe headers, and knows whether an answer has begun."""

    def __init__(self, send: Send) -> None:
        self._send, self.started = send, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            ours = {name for name, _ in HEADERS}
            kept = [pair for pair in message.get("headers", ()) if pair[0].lower() not in ours]
            message = {**message, "headers": [*kept, *HEADERS]}
        await self._send(message)


class _Body:
    """Counts a body while it arrives, and stops where it is too long or too slow."""

    def __init__(self, receive: Receive, length: int | None) -> None:
        if length is not None and length > MAX_BYTES:
            raise _too_long()
        self._receive, self._size, self._more = receive, 0, True
        self._until: float | None = None

    async def receive(self) -> Message:
        """The next part; after the last, whatever the server has to say."""
        if not self._more:
            return await self._receive()
        now = asyncio.get_running_loop().time()
        self._until = now + BODY_SECONDS if self._until is None else self._until
        try:
            message = await asyncio.wait_for(self._receive(), max(self._until - now, 0.0))
        except asyncio.TimeoutError:
            raise wrong("The request took too long to arrive. Send it again.") from None
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            self._more = message.get("more_body", False)
            if self._size > MAX_BYTES:
                raise _too_long()
        return message


async def refuse(fault: Fault, send: Send) -> None:
    """Send a refusal, and close the connection: what is left of the request is not read."""
    body = json.dumps(fault.as_dict()).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": fault.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _one(scope: Scope, name: bytes) -> bytes | None:
    """The one header of that name; twice the same is a trick."""
    found = [value for key, value in scope["headers"] if key.lower() == name]
    if len(found) > 1:
        raise wrong(f"The header {name.decode()} is there {len(found)} times. Send it once.")
    return found[0] if found else None


def _length(scope: Scope) -> int | None:
    value = _one(scope, b"content-length")
    if value is None:
        return None
    if not re.fullmatch(rb"\d{1,18}", value):
        raise wrong("The content length is no number. Send the number of bytes.")
    return int(value)


def _forbidden(message: str) -> Fault:
    return Fault(403, message, "Forbidden")


def _too_long() -> Fault:
    return too_large(f"The request has more than {MAX_BYTES} bytes. Send less.")
