"""A missing package is reported in one sentence with the pip command."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import maskwright as mw
from maskwright._optional_deps import EXTRAS, PACKAGES, require
from maskwright.models.bert import Bert, BertConfig
from maskwright.models.onnx import onnx_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    Take = Callable[[str], None]

ROOT = Path(__file__).parents[1]
SOURCE = Path(mw.__file__).parent


def later(name: str) -> Callable[[], Any]:
    return lambda: mw.__getattr__(name)


def imported(name: str) -> Callable[[], Any]:
    return lambda: importlib.import_module(name)


def call(module: str, name: str, *given: Any) -> Callable[[], Any]:
    return lambda: getattr(importlib.import_module(module), name)(*given)


# The import, the missing package, and the module that must be imported again.
# Frameworks that a mask is lowered to are tried in tests/targets/test_options.py.
DOORS: list[tuple[Callable[[], Any], str, str]] = [
    (later("audit"), "torch", "maskwright.auditing.run"),
    (later("trace"), "torch", "maskwright.tracing"),
    (later("influence"), "torch", "maskwright.auditing.measure"),
    (lambda: mw.attention(None, None, None), "torch", "maskwright.engine.torch_op"),
    (lambda: mw.top_blocks(None, None, size=2, keep=1), "torch", ""),
    (lambda: mw.picture(mw.causal().on(2), form="png"), "resvg_py", ""),
    (lambda: mw.picture(mw.causal().on(2), form="text"), "wcwidth", ""),
    (imported("maskwright.models"), "torch", "maskwright.models"),
    (imported("maskwright.integrations"), "torch", "maskwright.integrations"),
    (
        imported("maskwright.parallel.context_parallel"),
        "torch",
        "maskwright.parallel.context_parallel",
    ),
    (imported("maskwright.parallel.ulysses"), "torch", "maskwright.parallel.ulysses"),
    (imported("maskwright.parallel.train_loop"), "torch", "maskwright.parallel.train_loop"),
    (call("maskwright.integrations.transformers", "register"), "transformers", ""),
    (call("maskwright.models.huggingface", "load_gpt2", Path()), "safetensors", ""),
    (lambda: onnx_bytes(Bert(BertConfig(9, n_layer=1))), "onnxscript", ""),
    (imported("maskwright.apps.data.text"), "tokenizers", "maskwright.apps.data.text"),
    (call("maskwright.apps.image", "load_digits"), "sklearn", ""),
    (call("maskwright.apps.image", "png", np.zeros((1, 1, 8, 8))), "matplotlib", ""),
    (call("maskwright.apps.graph", "karate_club"), "networkx", ""),
    (call("maskwright.apps.data.corpora", "chatterbot_pairs", "english"), "chatterbot_corpus", ""),
    (call("maskwright.apps.translation", "number_pairs", "en", "de"), "num2words", ""),
]


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Take:
    """Makes a package as if it were not installed."""

    def away(name: str) -> None:
        for held in [*sys.modules]:
            if held == name or held.startswith(f"{name}."):
                monkeypatch.setitem(sys.modules, held, None)
        monkeypatch.setitem(sys.modules, name, None)

    return away


@pytest.mark.parametrize(
    ("entry_point", "package", "reimported"),
    DOORS,
    ids=[f"{package} {n}" for n, (_, package, _) in enumerate(DOORS)],
)
def test_package_missing_is_named_with_extra(
    entry_point: Callable[[], Any],
    package: str,
    reimported: str,
    take: Take,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")  # so that what is taken away is all that is not there
    if reimported in sys.modules:
        monkeypatch.delitem(sys.modules, reimported)
        parent, _, name = reimported.rpartition(".")
        monkeypatch.delattr(sys.modules[parent], name, raising=False)
    take(package)
    with pytest.raises(mw.MissingError) as caught:
        entry_point()
    called = re.escape(PACKAGES.get(package, package))
    line = rf"pip install (-U )?'maskwright\[{EXTRAS[package]}\]'"
    assert re.fullmatch(rf"[\w. -]+: {called} is not installed\. Run: {line}", str(caught.value))


def test_unknown_packages_raise_import_error() -> None:
    with pytest.raises(ModuleNotFoundError, match="nowhere"), require("here"):
        importlib.import_module("nowhere")


def imported_packages() -> set[str]:
    line = re.compile(
        r"^ *(?:from ([a-z]\w*)[\w.]* import |import ([a-z]\w*)[\w.]*(?: |$))", re.MULTILINE
    )
    found = set()
    for path in SOURCE.rglob("*.py"):
        found |= {one or other for one, other in line.findall(path.read_text())}
    return found - sys.stdlib_module_names - {"maskwright"}


def test_every_package_that_is_imported_has_extra() -> None:
    found = imported_packages()
    assert found >= {"numpy", "torch", "matplotlib", "jax", "starlette"}
    assert found - {"numpy"} <= set(EXTRAS)


def test_extras_install_their_packages() -> None:
    tomllib = pytest.importorskip("tomllib")
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    def brought(extra: str) -> set[str]:
        names = set()
        for line in told[extra]:
            if inner := re.match(r"maskwright\[(.*)\]", line):
                names |= {name for one in inner[1].split(",") for name in brought(one)}
            else:
                names.add(re.match(r"[\w.-]+", line)[0].removesuffix("-cpu"))  # type: ignore[index]
        return names

    for package, extra in EXTRAS.items():
        assert PACKAGES.get(package, package).lower() in brought(extra), package
