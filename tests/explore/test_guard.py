"""Who may ask: one test for every rule that keeps other pages, hosts and people out."""

from __future__ import annotations

import asyncio
import hmac
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from maskwright.explore import guard
from maskwright.explore.app import make_app
from maskwright.explore.fields import MAX_BYTES
from maskwright.explore.guard import Guard
from tests.explore.conftest import HOST, PORT, TOKEN

if TYPE_CHECKING:
    from tests.explore.conftest import Page

ASK = {"text": "a b"}


def sentence(response: Any, status: int) -> str:
    """The sentence of a refusal, which must have that status and the agreed form."""
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "kind", "at"}
    message: str = error["message"]
    assert message.endswith(".")
    return message


def test_the_page_itself_is_answered(page: Page) -> None:
    response = page.post("tokens", ASK)
    assert response.status_code == 200
    assert response.json() == {"tokens": [["a", "b"]], "lengths": [2]}


@pytest.mark.parametrize(
    "host",
    ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "localhost:1", f"127.0.0.1:{PORT}.", ""],
)
def test_other_hosts_are_refused(page: Page, host: str) -> None:
    """DNS rebinding: a name that now points here is not ours."""
    assert "host" in sentence(page.get("/", Host=host), 403)
    assert "host" in sentence(page.post("tokens", ASK, Host=host), 403)


def test_localhost_is_ours_too(page: Page) -> None:
    own = {"Host": f"localhost:{PORT}", "Origin": f"http://localhost:{PORT}"}
    assert page.post("tokens", ASK, **own).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["null", "", "http://evil.example", f"https://{HOST}", f"http://{HOST}/", "http://127.0.0.1"],
)
def test_other_origins_are_refused(page: Page, origin: str) -> None:
    assert "another page" in sentence(page.post("tokens", ASK, Origin=origin), 403)


def test_a_post_without_origin_is_refused(page: Page) -> None:
    headers = {"X-Maskwright-Token": TOKEN}
    response = page.client.post("/api/tokens", json=ASK, headers=headers)
    assert "another page" in sentence(response, 403)


def test_a_foreign_origin_may_not_even_get(page: Page) -> None:
    sentence(page.get("/api/lessons", Origin="http://evil.example"), 403)


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json; charset=latin-1",
        "application/jsonx",
        "",
    ],
)
def test_what_a_form_could_send_is_refused(page: Page, kind: str) -> None:
    headers = {**page.headers, "Content-Type": kind}
    response = page.client.post("/api/tokens", content=b'{"text": "a"}', headers=headers)
    assert "application/json" in sentence(response, 415)


def test_json_may_name_its_charset(page: Page) -> None:
    headers = {**page.headers, "Content-Type": "application/json; charset=UTF-8"}
    response = page.client.post("/api/tokens", content=b'{"text": "a"}', headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", TOKEN.upper()])
def test_every_question_needs_the_token(page: Page, token: str) -> None:
    for response in (
        page.post("tokens", ASK, **{"X-Maskwright-Token": token}),
        page.get("/api/vocabulary", **{"X-Maskwright-Token": token}),
        page.get("/api/lessons", **{"X-Maskwright-Token": token}),
        page.get("/api/nothing-of-the-kind", **{"X-Maskwright-Token": token}),
    ):
        assert "token" in sentence(response, 403)


def test_the_token_is_new_each_time_and_only_in_the_page() -> None:
    found = set()
    for _ in range(2):
        app = make_app(PORT)
        (middleware,) = app.user_middleware
        found.add(str(middleware.kwargs["token"]))
    assert len(found) == 2
    assert all(re.fullmatch(r"[\w-]{43}", token) for token in found)


def test_the_token_is_compared_in_constant_time(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    same = hmac.compare_digest

    def watched(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return same(one, other)

    monkeypatch.setattr(hmac, "compare_digest", watched)
    page.post("tokens", ASK, **{"X-Maskwright-Token": "wrong"})
    assert compared == [(b"wrong", TOKEN.encode())]


@pytest.mark.parametrize("name", ["Host", "Origin", "X-Maskwright-Token", "Content-Type"])
def test_a_header_that_comes_twice_is_refused(page: Page, name: str) -> None:
    own = {
        **page.headers,
        "Content-Type": "application/json",
        "Host": HOST,
    }
    headers = [*own.items(), (name, own[name])]
    response = page.client.post("/api/tokens", content=b'{"text": "a"}', headers=headers)
    assert response.status_code in (400, 403)


SAFE = {
    "content-security-policy": guard.POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@pytest.mark.parametrize("path", ["/", "/api/lessons", "/api/vocabulary", "/nowhere", "/static/x"])
def test_every_answer_has_the_safe_headers(page: Page, path: str) -> None:
    for response in (page.get(path), page.get(path, Host="evil.example")):
        for name, value in SAFE.items():
            assert response.headers.get_list(name) == [value]
        assert not [name for name in response.headers if name.startswith("access-control")]


def test_the_policy_allows_no_inline_code_and_no_other_place() -> None:
    said = dict(part.strip().split(" ", 1) for part in guard.POLICY.split(";"))
    assert said["default-src"] == "'none'"
    assert said["script-src"] == said["style-src"] == said["connect-src"] == "'self'"
    assert "unsafe" not in guard.POLICY
    assert said["frame-ancestors"] == said["base-uri"] == said["form-action"] == "'none'"


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "PATCH", "HEAD", "TRACE"])
def test_other_methods_are_refused_without_cors(page: Page, method: str) -> None:
    headers = {**page.headers, "Access-Control-Request-Method": "POST"}
    response = page.client.request(method, "/api/tokens", headers=headers)
    assert response.status_code == 405
    assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/static/%2Fetc%2Fpasswd",
        "/static/index.html",  # only as /, with its token
        "/static/panels",
        "/static/x.py",
    ],
)
def test_no_file_but_those_of_the_table(page: Page, path: str) -> None:
    sentence(page.get(path), 404)


def test_the_page_and_its_files_are_given(page: Page) -> None:
    index = page.get("/")
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    assert TOKEN in index.text
    assert "{{" not in index.text
    folder = Path(guard.__file__).parent / "static"
    scripts = [path for path in folder.rglob("*") if path.suffix in (".js", ".css")]
    assert scripts
    for path in scripts:
        address = f"/static/{path.relative_to(folder).as_posix()}"
        assert f'href="{address}"' in index.text  # so that nothing is asked for late
        response = page.get(address)
        assert response.content == path.read_bytes()
        kind = {".js": "text/javascript", ".css": "text/css"}[path.suffix]
        assert response.headers["content-type"] == f"{kind}; charset=utf-8"
        assert TOKEN not in response.text


def test_a_body_that_says_it_is_too_long_is_not_read(page: Page) -> None:
    headers = {**page.headers, "Content-Type": "application/json"}
    response = page.client.post("/api/tokens", content=b" " * (MAX_BYTES + 1), headers=headers)
    assert str(MAX_BYTES) in sentence(response, 413)


def asked(
    parts: list[bytes],
    length: bytes | None = None,
    kind: str = "http",
    pause: float = 0.0,
) -> list[dict[str, Any]]:
    """What the guard sends for a body that arrives in parts; the app behind it reads all."""
    sent: list[dict[str, Any]] = []
    left = list(parts)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(pause if left else 3600)
        return {"type": "http.request", "body": left.pop(0), "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass

    headers = [
        (b"host", HOST.encode()),
        (b"origin", f"http://{HOST}".encode()),
        (b"content-type", b"application/json"),
        (b"x-maskwright-token", TOKEN.encode()),
        *([(b"content-length", length)] if length is not None else []),
    ]
    scope = {"type": kind, "method": "POST", "path": "/api/tokens", "headers": headers}
    asyncio.run(Guard(app, port=PORT, token=TOKEN)(scope, receive, send))
    return sent


def test_a_body_is_counted_while_it_arrives() -> None:
    """Without a length, or with a wrong one, it stops at the limit."""
    part = b" " * 2**16
    for length in (None, b"10"):
        start, body = asked([part] * 17 + [part] * 1000, length)
        assert start["status"] == 413
        assert (b"connection", b"close") in start["headers"]
        assert str(MAX_BYTES).encode() in body["body"]


def test_a_length_that_is_no_number_is_refused() -> None:
    for length in (b"-1", b"1e3", b"9" * 30, b""):
        assert asked([b"{}"], length)[0]["status"] == 400


def test_a_body_that_never_arrives_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.05)
    for parts, pause in (([b"{"], 0.0), ([b" "] * 10_000, 0.01)):  # and one that drips
        start, body = asked(parts, pause=pause)
        assert start["status"] == 400
        assert b"too long to arrive" in body["body"]


def test_a_web_socket_is_closed() -> None:
    assert asked([], kind="websocket") == [{"type": "websocket.close", "code": 1008}]
