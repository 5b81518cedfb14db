"""The part of the build that pyproject.toml cannot express: the optional C kernel.

MASKWRIGHT_BUILD=required fails if the kernel is not built, MASKWRIGHT_BUILD=none does not build it,
and MASKWRIGHT_CFLAGS adds compiler flags.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCES = Path("csrc")
BUILD = os.environ.get("MASKWRIGHT_BUILD", "")
if BUILD not in ("", "none", "required"):
    sys.exit(f"MASKWRIGHT_BUILD={BUILD!r}, expected 'required', 'none' or ''.")
REQUIRED = BUILD == "required"
ADVICE = (
    "Install GCC 12 or Clang 12, or newer, and run the same pip command again with "
    "--force-reinstall --no-deps --no-cache-dir."
)
# GCC has __builtin_shufflevector since version 12; Clang has had it for longer.
TEST_PROGRAM = """
typedef float vector __attribute__((vector_size(32)));
vector reversed(vector x) { return __builtin_shufflevector(x, x, 7, 6, 5, 4, 3, 2, 1, 0); }
"""


def compiler_problem(compiler: Any) -> str | None:
    """The reason why this compiler cannot build the kernel, or None.

    It compiles a short program that needs what the kernel needs, which gives a clearer reason than
    the errors of the kernel's sources.
    """
    if compiler.compiler_type == "msvc":
        return "Microsoft Visual C++ is not supported"
    command = compiler.compiler_so[0]
    if shutil.which(command) is None:
        return f"the C compiler {command!r} was not found"
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "test.c"), Path(folder, "test.o")
        for text, problem in (
            ("int zero(void) { return 0; }\n", "does not compile a C program"),
            (TEST_PROGRAM, "is too old: it does not know __builtin_shufflevector"),
        ):
            source.write_text(text)
            made.unlink(missing_ok=True)
            call = [*compiler.compiler_so, "-c", str(source), "-o", str(made)]
            failed = subprocess.run(call, capture_output=True, check=False).returncode
            if failed or not made.exists():  # an exit code of 0 alone proves nothing
                return f"the C compiler {version_of(command)} {problem}"
    return None


def remove_rpath(compiler: Any) -> None:
    """Do not link with the library folders of this machine's Python, which others do not have."""
    compiler.linker_so = [
        flag for flag in compiler.linker_so if not flag.startswith(("-Wl,-rpath", "-Wl,-R"))
    ]


def version_of(command: str) -> str:
    """A compiler's name with its version, as far as it tells."""
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    return f"{command!r} ({lines[0].strip()})" if lines else repr(command)


def report_missing_kernel(reason: str, folder: Path) -> None:
    """Tell the user that the kernel was not built.

    pip hides what a successful build prints, on stdout and on stderr, unless it is called with -v.
    The message therefore goes to the controlling terminal as well, which pip does not redirect. In
    CI there is none: there the first call of `attention` warns, and `maskwright doctor` shows the
    reason, which it reads from a file in the package.
    """
    message = (
        f"maskwright: the C kernel was not built: {reason}. Attention works without it, but is "
        f"several times slower. {ADVICE}"
    )
    print(f"WARNING: {message}", file=sys.stderr)
    if not sys.stderr.isatty():
        try:
            with Path("/dev/tty").open("w") as terminal:
                terminal.write(f"\nWARNING: {message}\n")
        except OSError:  # no controlling terminal
            pass
    write_reason(reason, folder)


def write_reason(reason: str, folder: Path) -> None:
    """Store the reason in the package, for `maskwright doctor`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "build_failure.txt").write_text(f"{reason}\n")


class BuildKernel(build_ext):
    """Builds the kernel if the compiler can, and reports the reason if it cannot."""

    def run(self) -> None:
        """Build, unless MASKWRIGHT_BUILD=none."""
        # Determined here, since editable installs build in a temporary folder and copy the result.
        self.native_dir = Path(self.get_ext_fullpath(self.extensions[0].name)).parent
        (self.native_dir / "build_failure.txt").unlink(missing_ok=True)
        if BUILD == "none":
            write_reason("MASKWRIGHT_BUILD was set to none", self.native_dir)
            self.extensions = []
            return
        super().run()

    def build_extension(self, ext: Extension) -> None:
        """Build, or report why not; with MASKWRIGHT_BUILD=required, fail."""
        reason = compiler_problem(self.compiler)
        if reason is None:
            remove_rpath(self.compiler)
            try:
                super().build_extension(ext)
                if Path(self.get_ext_fullpath(ext.name)).exists():
                    return
                reason = "the linker created no library"
            except Exception as error:
                if REQUIRED:
                    raise
                reason = str(error)
        if REQUIRED:
            raise RuntimeError(f"The C kernel cannot be built: {reason}. {ADVICE}")
        report_missing_kernel(reason, self.native_dir)

    def get_outputs(self) -> list[str]:
        """The files that exist: the kernel may be missing, unless it is required."""
        return [name for name in super().get_outputs() if REQUIRED or Path(name).exists()]


class Wheel(bdist_wheel):
    """One wheel for Python 3.10 and newer."""

    def finalize_options(self) -> None:
        """Set the oldest Python."""
        self.py_limited_api = "cp310"
        super().finalize_options()


flags = os.environ.get("MASKWRIGHT_CFLAGS", "").split()
setup(
    ext_modules=[
        Extension(
            "maskwright.engine.native._kernel",
            sources=[str(path) for path in sorted(SOURCES.glob("*.c"))],
            depends=[str(path) for path in sorted(SOURCES.glob("*.h"))],
            extra_compile_args=[
                "-O3",
                "-std=gnu11",
                "-fno-math-errno",
                "-fno-trapping-math",
                "-g0",
                *flags,
            ],
            extra_link_args=[
                "-lm",
                "-pthread",
                *(["-ldl"] if sys.platform == "linux" else []),
                *flags,
            ],
            py_limited_api=True,
            optional=not REQUIRED,
        )
    ],
    cmdclass={"build_ext": BuildKernel, "bdist_wheel": Wheel},
)
