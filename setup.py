"""The one part of the build that pyproject.toml can't say yet: the optional kernel in C."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCES = Path("src/maskwright/engine/native/src")
WHY = "maskwright installs without its C kernel, and computes attention by PyTorch alone: "


class BuildKernel(build_ext):
    """Builds the kernel where there is a compiler, and says so where there is none."""

    def run(self) -> None:
        """Build, unless none is wanted."""
        if os.environ.get("MASKWRIGHT_BUILD") == "none":
            print(f"{WHY}MASKWRIGHT_BUILD=none", file=sys.stderr)
            self.extensions = []
            return
        super().run()

    def build_extension(self, ext: Extension) -> None:
        """Build, or say why not."""
        if self.compiler.compiler_type == "msvc":
            print(f"{WHY}it needs GCC or Clang", file=sys.stderr)
            return
        try:
            super().build_extension(ext)
        except Exception as error:  # no compiler, or none that will do
            if os.environ.get("MASKWRIGHT_BUILD") == "required":
                raise
            print(f"{WHY}{error}", file=sys.stderr)

    def get_outputs(self) -> list[str]:
        """What was really built."""
        return [name for name in super().get_outputs() if Path(name).exists()]


class Wheel(bdist_wheel):
    """One wheel serves every Python from 3.10 on."""

    def finalize_options(self) -> None:
        """Name the oldest Python."""
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
            extra_link_args=["-lm", "-pthread", *flags],
            py_limited_api=True,
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernel, "bdist_wheel": Wheel},
)
