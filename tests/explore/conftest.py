"""An application with real workers, and a client that has its token."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from starlette.testclient import TestClient

from maskwright.explore.app import make_app

if find_spec("playwright") is not None:  # else the tests of the page skip by themselves
    from tests._helpers.browser import address, chromium, visit  # noqa: F401

if TYPE_CHECKING:
    from collections.abc import Iterator

PORT = 8765
TOKEN = "a-token-for-tests"
HOST = f"127.0.0.1:{PORT}"


@dataclass
class Page:
    """Sends requests as the page in the browser does."""

    client: TestClient

    def post(self, name: str, body: Any, **headers: str) -> Any:
        return self.client.post(f"/api/{name}", json=body, headers={**self.headers, **headers})

    def post_bytes(self, name: str, body: bytes, content_type: str = "application/json") -> Any:
        headers = {**self.headers, "Content-Type": content_type}
        return self.client.post(f"/api/{name}", content=body, headers=headers)

    def get(self, path: str, **headers: str) -> Any:
        return self.client.get(path, headers={**self.headers, **headers})

    @property
    def headers(self) -> dict[str, str]:
        return {"X-Maskwright-Token": TOKEN, "Origin": f"http://{HOST}"}

    @property
    def pool(self) -> Any:
        app: Any = self.client.app
        return app.state.pool


@pytest.fixture(scope="session")
def page() -> Iterator[Page]:
    with TestClient(make_app(PORT, token=TOKEN), base_url=f"http://{HOST}") as client:
        yield Page(client)
