from __future__ import annotations

import pytest

import maskwright as mw
from maskwright._registry import Registry

SHAPES: Registry[object] = Registry("shape", "math", {"circle": "pi"}, aliases={"disc": "circle"})


def test_names_and_aliases_are_resolved() -> None:
    assert SHAPES.resolve("circle", "area") == SHAPES.resolve("disc", "area") == "circle"
    assert list(SHAPES) == ["circle"]
    assert len(SHAPES) == 1


@pytest.mark.parametrize(
    ("name", "message"), [("circl", "Did you mean"), (3, "circle"), ([], "circle")]
)
def test_unknown_name_is_clear_error(name: object, message: str) -> None:
    with pytest.raises(mw.ArgumentError, match=message) as error:
        SHAPES.find(name, "area")
    assert str(error.value).startswith("area: there is no shape")
