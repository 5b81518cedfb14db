"""The app: a page, its files from a fixed table, and the questions that it may ask."""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route

from maskwright.explore.faults import Fault, fault_of
from maskwright.explore.fields import read_json
from maskwright.explore.guard import Guard
from maskwright.explore.lessons import lessons
from maskwright.explore.requests import READERS, read_request
from maskwright.explore.vocabulary import vocabulary
from maskwright.explore.workers import Crew

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from starlette.requests import Request

TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
JSON: Final = "application/json"
UNKNOWN: Final = {
    400: "The request is not understood. Send it as the page does.",
    404: "There is nothing at this address. Open the one that was printed.",
    405: "This address takes another method. Use GET for a page, POST for a question.",
}
SLOW: Final = {"code": 45.0, "cost": 20.0}  # seconds; frameworks are imported the first time


def make_app(port: int, *, token: str | None = None, crew: Crew | None = None) -> Starlette:
    """The app for a server on that port of this machine; the token is new each time.

    >>> [route.path for route in make_app(8765).routes][:3]
    ['/', '/static/{name:path}', '/api/vocabulary']
    """
    secret = secrets.token_urlsafe(32) if token is None else token
    files = dict(_read_files(Path(__file__).parent / "static"))
    page = files.pop("index.html", (b"<!doctype html><title>maskwright</title>", TYPES["html"]))
    text = page[0].replace(b"{{token}}", secret.encode()).replace(b"{{scripts}}", _links(files))
    index = Response(text, media_type=page[1])
    told = {name: _json(data) for name, data in _told().items()}
    asked = _Questions(crew)

    async def get_index(request: Request) -> Response:  # noqa: ARG001
        return index

    async def get_file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files:
            raise HTTPException(404)
        return Response(files[name][0], media_type=files[name][1])

    async def get_told(request: Request) -> Response:
        return Response(told[request.url.path.removeprefix("/api/")], media_type=JSON)

    routes = [
        Route("/", get_index, methods=["GET"]),
        Route("/static/{name:path}", get_file, methods=["GET"]),
        *(Route(f"/api/{name}", get_told, methods=["GET"]) for name in told),
        *(Route(f"/api/{name}", asked.answer, methods=["POST"]) for name in READERS),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, port=port, token=secret)],
        exception_handlers={HTTPException: _on_http_error},
        lifespan=asked.lifespan,
    )


class _Questions:
    """The workers, while the app runs, and what is asked of them."""

    def __init__(self, crew: Crew | None) -> None:
        self._given = crew

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        crew = Crew() if self._given is None else self._given
        app.state.crew = crew
        crew.start()
        try:
            yield
        finally:
            await crew.stop()

    async def answer(self, request: Request) -> Response:
        """Read the question, let a worker answer it, and give up when nobody waits any more."""
        name = request.url.path.removeprefix("/api/")
        try:
            body = await request.body()  # the guard answers for one that is too long
        except ClientDisconnect:
            return Response(status_code=503)  # to nobody
        try:
            data = read_json(body)
            read_request(name, data)  # what is wrong or too large is refused at once
            crew: Crew = request.app.state.crew
            asking = asyncio.ensure_future(crew.ask(name, data, SLOW.get(name)))
            leaving = asyncio.ensure_future(_left(request))
            try:
                await asyncio.wait((asking, leaving), return_when=asyncio.FIRST_COMPLETED)
                if not asking.done():
                    return Response(status_code=503)  # to nobody
                reply = asking.result()
            finally:
                for task in (asking, leaving):
                    task.cancel()
                    with suppress(asyncio.CancelledError, Exception):
                        await task
        except Exception as error:
            return _refusal(fault_of(error))
        return Response(reply.body, reply.status, media_type=reply.kind)


async def _left(request: Request) -> None:
    """Return when the client is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _told() -> dict[str, Any]:
    return {"vocabulary": vocabulary(), "lessons": {"lessons": lessons()}}


def _read_files(folder: Path, prefix: str = "") -> Iterator[tuple[str, tuple[bytes, str]]]:
    """Every file of the page, by its name: the only ones that are ever given."""
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _read_files(entry, f"{prefix}{entry.name}/")
        elif (kind := TYPES.get(entry.name.rpartition(".")[2])) is not None:
            yield prefix + entry.name, (entry.read_bytes(), kind)


def _links(files: Iterable[str]) -> bytes:
    """All scripts, named in the page, so that they come side by side and not one after another."""
    names = sorted(name for name in files if name.endswith(".js"))
    return "".join(f'<link rel="modulepreload" href="/static/{name}">' for name in names).encode()


async def _on_http_error(request: Request, error: Exception) -> Response:  # noqa: ARG001
    status = error.status_code if isinstance(error, HTTPException) else 400
    return _refusal(Fault(status, UNKNOWN.get(status, UNKNOWN[400]), "Refused"))


def _refusal(fault: Fault) -> Response:
    return Response(_json(fault.as_dict()), fault.status, media_type=JSON)


def _json(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False).encode()
