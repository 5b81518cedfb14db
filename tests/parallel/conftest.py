"""The pool of processes that all tests over ranks share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests._helpers.process_pool import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Four processes."""
    made = Pool(4)
    yield made
    made.close()
