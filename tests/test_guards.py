"""Exports, and what imports what."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import maskwright
import maskwright.errors
import maskwright.recipes
from maskwright.targets.lower import TARGETS
from tests._helpers.run_python import run_python

SOURCE = Path(maskwright.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
FRAMEWORKS = {
    *("torch", "jax", "tensorflow", "keras", "transformers", "xformers", "flax"),
    *("paddle", "onnx", "onnxruntime", "flashinfer"),
}
TARGET_MODULES = {path.partition(":")[0] for path in TARGETS.entries.values()}

LAZY_TORCH = (  # modules of the engine that import torch inside functions only
    *("api", "cost", "select", "dropout", "call", "reference", "softmax", "support"),
    "validate",
    *("backends/native", "native/*"),
)


def imports_of(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it, as dotted names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            if node.module == "maskwright":
                found |= {f"maskwright.{alias.name}" for alias in node.names}
            else:
                found.add(node.module)
    return found


def test_import_contracts_are_kept() -> None:
    # The contracts are in pyproject.toml.
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        capture_output=True,
        text=True,
        cwd=SOURCE.parent.parent,
        check=False,
    )
    assert done.returncode == 0, done.stdout


# What a mask's or bound mask's `__dict__` is for, nothing else: elsewhere use `cached`.
WRITES_DICT = re.compile(
    r"\.__dict__(\[[^\]]+\]\s*(=[^=]|\+=)|\.(setdefault|update|pop|clear)\b|\s*=[^=])"
)
OWN_DICT = {
    *("core/expression.py", "core/expr.py", "core/operators.py", "core/bound.py"),
    "engine/call.py",  # a copy of a call, which is no mask
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_derived_values_are_kept_in_cache(path: Path) -> None:
    if str(path.relative_to(SOURCE)) not in OWN_DICT:
        assert WRITES_DICT.findall(path.read_text()) == []


WRITES_FILE = re.compile(
    r"\.write_(?:text|bytes)\(|\bopen\([^()\n]*[\"'][wax]b?\+?[\"']|\bnbformat\.write\(|\bpath=[^,()]*\.png"
)
WRITES_ITSELF = {  # why write_atomic is not used
    "src/maskwright/_atomic_write.py": "it is here",
    "src/maskwright/apps/data/corpora.py": "settings of apt in a temporary folder",
    "benchmarks/triton_compile.py": "a binary in a temporary folder",
    "benchmarks/bias.py": "a file of the Linux kernel",
}


def test_files_are_written_atomically() -> None:
    repository = SOURCE.parent.parent
    folders = ("src", "benchmarks", "docs", "notebooks")
    paths = [path for folder in folders for path in (repository / folder).rglob("*.py")]
    writing = [path for path in paths if WRITES_FILE.search(path.read_text())]
    assert {path.relative_to(repository).as_posix() for path in writing} == set(WRITES_ITSELF)


def imports_at_module_level(path: Path) -> set[str]:
    """The top-level packages that importing a file imports: not in functions, not for typing."""
    found: set[str] = set()
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            pending += node.orelse
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            pending += ast.iter_child_nodes(node)
    return found


@pytest.mark.parametrize("path", sorted((SOURCE / "targets").glob("*.py")), ids=lambda p: p.stem)
def test_target_imports_its_own_framework_in_functions_and_no_other_target(path: Path) -> None:
    imported = imports_of(path)
    own = path.stem.strip("_").split("_")[0]
    assert {name.split(".")[0] for name in imported} & FRAMEWORKS <= {own}
    assert not imports_at_module_level(path) & FRAMEWORKS
    if path.stem in TARGET_MODULES:
        assert not imported & {f"maskwright.targets.{name}" for name in TARGET_MODULES}


@pytest.mark.parametrize("module", LAZY_TORCH)
def test_engine_modules_load_without_torch(module: str) -> None:
    paths = sorted((SOURCE / "engine").glob(f"{module}.py"))
    assert paths, f"engine/{module}.py does not exist"
    for path in paths:
        assert "torch" not in imports_at_module_level(path), f"{path.name} imports torch"


def loaded_by(code: str) -> set[str]:
    """The packages that are loaded after running code in a new process."""
    done = run_python(f"{code}; import sys; print(*sys.modules)")
    return {name.split(".")[0] for name in done.stdout.split()}


def test_importing_maskwright_loads_no_framework() -> None:
    loaded = loaded_by("import maskwright")
    assert "numpy" in loaded
    assert not loaded & (FRAMEWORKS | {"typer", "rich", "hypothesis", "matplotlib", "wcwidth"})


def test_pytest_plugin_loads_nothing_until_it_is_used() -> None:
    loaded = loaded_by("import pytest, _maskwright_pytest")
    assert "pytest" in loaded
    assert not loaded & (FRAMEWORKS | {"numpy", "maskwright"})


@pytest.mark.parametrize("module", [maskwright, maskwright.recipes, maskwright.errors])
def test_exports_are_sorted_and_complete(module: Any) -> None:
    assert list(module.__all__) == sorted(module.__all__)
    modules = {path.stem for path in SOURCE.iterdir()}
    visible = {
        name
        for name in dir(module)
        if not name.startswith(("_", "@"))
        and not (inspect.ismodule(getattr(module, name)) and name in modules)
    }
    visible -= {"TYPE_CHECKING", "annotations", "importlib"}
    visible -= {"models", "registry", "sparse", "speculative", "vision"}
    assert visible == {
        name for name in module.__all__ if name not in ("__version__", "bias", "recipes")
    }


def subclasses(kind: type) -> list[type]:
    return [k for child in kind.__subclasses__() for k in (child, *subclasses(child))]


def test_every_atom_has_rule_in_oracle() -> None:
    from maskwright.core.expr import Atom
    from maskwright.core.oracle import rule

    leaves = [
        kind
        for kind in subclasses(Atom)
        if not inspect.isabstract(kind) and kind.__module__.startswith("maskwright.core.")
    ]
    assert len(leaves) == 16
    for kind in leaves:
        assert rule.dispatch(kind) is not rule.dispatch(object), f"{kind.__name__} has no rule"
