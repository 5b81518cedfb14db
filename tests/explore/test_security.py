"""Access to the server: one test for every rule that keeps other pages and hosts out."""

from __future__ import annotations

import hmac
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from starlette.websockets import WebSocketDisconnect

from maskwright.explore import security
from maskwright.explore.app import make_app
from tests.explore.conftest import HOST, PORT, TOKEN

if TYPE_CHECKING:
    from tests.explore.conftest import Page

ASK = {"text": "a b"}


def check_error(response: Any, status: int) -> None:
    """A response with an error has this status and the agreed form."""
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "kind", "at"}
    assert error["message"]


def test_a_request_of_the_page_is_accepted(page: Page) -> None:
    localhost = {"Host": f"localhost:{PORT}", "Origin": f"http://localhost:{PORT}"}
    for response in (
        page.post("tokens", ASK),
        page.post("tokens", ASK, **localhost),
        page.post_bytes("tokens", b'{"text": "a b"}', "application/json; charset=UTF-8"),
    ):
        assert response.status_code == 200
        assert response.json() == {"tokens": [["a", "b"]], "lengths": [2]}


@pytest.mark.parametrize(
    "host",
    ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "localhost:1", f"127.0.0.1:{PORT}.", ""],
)
def test_other_hosts_are_refused(page: Page, host: str) -> None:
    check_error(page.get("/", Host=host), 403)
    check_error(page.post("tokens", ASK, Host=host), 403)


@pytest.mark.parametrize(
    "origin",
    ["null", "", "http://evil.example", f"https://{HOST}", f"http://{HOST}/", "http://127.0.0.1"],
)
def test_other_origins_are_refused(page: Page, origin: str) -> None:
    check_error(page.post("tokens", ASK, Origin=origin), 403)
    check_error(page.get("/api/lessons", Origin=origin), 403)


def test_a_post_without_origin_is_refused(page: Page) -> None:
    headers = {"X-Maskwright-Token": TOKEN}
    check_error(page.client.post("/api/tokens", json=ASK, headers=headers), 403)


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json; charset=latin-1",
        "application/jsonx",
        "",
    ],
)
def test_content_types_of_forms_are_refused(page: Page, content_type: str) -> None:
    check_error(page.post_bytes("tokens", b'{"text": "a"}', content_type), 415)


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x", TOKEN.upper()])
def test_api_requests_need_the_token(page: Page, token: str) -> None:
    header = {"X-Maskwright-Token": token}
    check_error(page.post("tokens", ASK, **header), 403)
    for path in ("vocabulary", "lessons", "nothing-of-the-kind"):
        check_error(page.get(f"/api/{path}", **header), 403)


def test_each_app_has_a_new_token() -> None:
    found = {str(make_app(PORT).user_middleware[0].kwargs["token"]) for _ in range(2)}
    assert len(found) == 2
    assert all(re.fullmatch(r"[\w-]{43}", token) for token in found)


def test_the_token_is_compared_in_constant_time(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    compare = hmac.compare_digest

    def recorded(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", recorded)
    page.post("tokens", ASK, **{"X-Maskwright-Token": "wrong"})
    assert compared == [(b"wrong", TOKEN.encode())]


@pytest.mark.parametrize("name", ["Host", "Origin", "X-Maskwright-Token", "Content-Type"])
def test_a_repeated_header_is_refused(page: Page, name: str) -> None:
    own = {**page.headers, "Content-Type": "application/json", "Host": HOST}
    headers = [*own.items(), (name, own[name])]
    response = page.client.post("/api/tokens", content=b'{"text": "a"}', headers=headers)
    assert response.status_code in (400, 403)


@pytest.mark.parametrize("path", ["/", "/api/lessons", "/api/vocabulary", "/nowhere", "/static/x"])
def test_every_response_has_the_security_headers(page: Page, path: str) -> None:
    for response in (page.get(path), page.get(path, Host="evil.example")):
        for name, value in security.HEADERS:
            assert response.headers.get_list(name.decode()) == [value.decode()]
        assert not [name for name in response.headers if name.startswith("access-control")]


def test_the_content_policy_allows_the_server_only() -> None:
    headers = dict(security.HEADERS)
    assert headers[b"x-content-type-options"] == b"nosniff"
    assert headers[b"cross-origin-opener-policy"] == b"same-origin"
    assert headers[b"cross-origin-resource-policy"] == b"same-origin"
    policy = dict(part.strip().split(" ", 1) for part in security.POLICY.split(";"))
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in security.POLICY
    for name in ("default-src", "frame-ancestors", "base-uri", "form-action"):
        assert policy[name] == "'none'"


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
        "/static/index.html",  # served as / only, with its token
        "/static/panels",
        "/static/x.py",
    ],
)
def test_other_files_are_not_served(page: Page, path: str) -> None:
    check_error(page.get(path), 404)


def test_the_page_and_its_files_are_served(page: Page) -> None:
    index = page.get("/")
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    assert TOKEN in index.text
    assert "{{" not in index.text
    folder = Path(security.__file__).parent / "static"
    scripts = [path for path in folder.rglob("*") if path.suffix in (".js", ".css")]
    assert scripts
    for path in scripts:
        address = f"/static/{path.relative_to(folder).as_posix()}"
        assert f'href="{address}"' in index.text  # preloaded
        response = page.get(address)
        assert response.content == path.read_bytes()
        kind = {".js": "text/javascript", ".css": "text/css"}[path.suffix]
        assert response.headers["content-type"] == f"{kind}; charset=utf-8"
        assert TOKEN not in response.text


def test_a_web_socket_is_closed(page: Page) -> None:
    with pytest.raises(WebSocketDisconnect), page.client.websocket_connect("/"):
        pass
