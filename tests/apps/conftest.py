"""Small models and data for the tests of the applications."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("tokenizers")

from maskwright.apps import Task, TaskOptions, find_app
from maskwright.apps.data.text import python_topics
from tests._helpers.small_apps import shrink_apps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    MakeTask = Callable[..., Task]


@pytest.fixture(scope="session", autouse=True)
def small() -> Iterator[None]:
    """Narrow models, and a part of the data."""
    with pytest.MonkeyPatch.context() as patch:
        shrink_apps(patch)
        yield


@pytest.fixture(scope="session")
def make_task(tmp_path_factory: pytest.TempPathFactory, small: None) -> MakeTask:
    """Makes a new task of an app, with small data unless told otherwise."""
    prose = tmp_path_factory.mktemp("text") / "prose.txt"
    prose.write_text(python_topics()[:60_000], encoding="utf-8")
    defaults: dict[str, dict[str, str | Path]] = {
        "language": {"version": "v3", "text": prose},
        "dialogue": {"version": "spanish"},
        "masked-lm": {"text": prose},
    }

    def make(name: str, **options: object) -> Task:
        merged = {"batch_size": 4, **defaults.get(name, {}), **options}
        return find_app(name)(TaskOptions(**merged))  # type: ignore[arg-type]

    return make
