"""Every name that a user may call is explained, with an example that is run as a test.

Public is what a page of `docs/reference` shows; `tests/docs` sees that it shows all of `__all__`.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest

PAGES = sorted((Path(__file__).parents[1] / "docs" / "reference").glob("*.md"))
WITHOUT = {
    "_maskwright_pytest.mask_audit": "a fixture: docs/audit.md runs a test that takes it",
    "maskwright.apps.Task": "a base class: the example of train() writes one",
    "maskwright.apps.Prompt": "an argument of Task.predict",
    "maskwright.integrations.transformers.UNSUPPORTED_MODELS": "a mapping, described in a comment",
}
# A module's forward() is called by calling the module; checks are for the atoms alone.
CALLED_BY_OTHERS = {"forward", "merge_masks", "check_keys", "check_queries", "check_tokens"}
# Spans are made and put together by the atoms, and read by users.
OF_THE_LIBRARY = {
    "maskwright.Spans": {
        *(
            "from_band",
            "from_pieces",
            "from_line",
            "from_cells",
            "stack",
            "band",
            "flat",
            "reaches",
        ),
        *("write_dense", "complement", "take", "reshape", "freeze"),
    },
    "maskwright.AuditFinding": {"from_failure"},  # made by the audit
}


def names_on(page: Path) -> list[str]:
    return re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE)


def found(name: str) -> Any:
    module, _, own = name.rpartition(".")
    return pkgutil.resolve_name(f"{module}:{own}")


def example_of(thing: Any) -> str:
    lines = (inspect.getdoc(thing) or "").splitlines()
    return "\n".join(line for line in lines if line.lstrip().startswith((">>>", "...")))


def methods_of(thing: Any) -> dict[str, Any]:
    """The methods and properties that a class itself has, as functions."""
    if not inspect.isclass(thing):
        return {}
    own = {name: one for name, one in vars(thing).items() if not name.startswith("_")}
    plain = {
        name: getattr(one, "__func__", getattr(one, "func", getattr(one, "fget", one)))
        for name, one in own.items()
    }
    return {name: one for name, one in plain.items() if inspect.isfunction(one)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_name_has_example(page: Path) -> None:
    bare = [name for name in names_on(page) if not example_of(found(name))]
    assert [name for name in bare if name not in WITHOUT] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_method_is_explained(page: Path) -> None:
    assert [
        f"{name}.{method}"
        for name in names_on(page)
        for method, thing in methods_of(found(name)).items()
        if not inspect.getdoc(thing)
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_method_has_example(page: Path) -> None:
    """Of its own, or in that of its class."""
    assert [
        f"{name}.{method}"
        for name in names_on(page)
        if name not in WITHOUT
        for method, thing in methods_of(found(name)).items()
        if method not in CALLED_BY_OTHERS | OF_THE_LIBRARY.get(name, set())
        if not example_of(thing) and not re.search(rf"\.{method}\b", example_of(found(name)))
    ] == []


def test_exceptions_exist() -> None:
    assert set(WITHOUT) <= {name for page in PAGES for name in names_on(page)}
    for name, methods in OF_THE_LIBRARY.items():
        assert methods <= set(methods_of(found(name)))


def missing_sections(function: Any) -> list[str]:
    """The parameters and sections that a docstring lacks."""
    text, signature = inspect.getdoc(function) or "", inspect.signature(function)
    described = re.findall(r"^ +\*{0,2}(\w+)(?: \([^)]*\))?:", text, re.MULTILINE)
    missing = [name for name in signature.parameters if name not in described]
    if signature.parameters and "Args:" not in text:
        missing.append("Args")
    if signature.return_annotation != "None" and not re.search("Returns:|Yields:", text):
        missing.append("Returns")
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_docstrings_describe_every_parameter_and_the_result(page: Path) -> None:
    functions = {name: found(name) for name in names_on(page) if name not in WITHOUT}
    assert {
        name: missing
        for name, function in functions.items()
        if inspect.isfunction(function) and (missing := missing_sections(function))
    } == {}
