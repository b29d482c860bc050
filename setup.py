"""Wheels that know their commit; with the C kernels compiled in where ``ROBUSTFL_PREBUILD=1`` asks for them.

Everything else about the package is in pyproject.toml. A plain installation compiles the kernels when they first pay.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

PREBUILD = os.environ.get("ROBUSTFL_PREBUILD", "") == "1"
KERNELS = Path(__file__).parent / "robustfl" / "kernels"


class BuildKernels(build_py):
    """Copy the modules, and compile the kernels beside them for every kind of processor that torch tells apart."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self._say_the_commit()
        if PREBUILD and not self.editable_mode:
            compiled = runpy.run_path(str(KERNELS / "compiling.py"))
            made = compiled["prebuild"](KERNELS / "native.c", Path(self.build_lib) / "robustfl" / "kernels")
            if not made:
                raise SystemExit("ROBUSTFL_PREBUILD=1, but no C compiler made the kernels")

    def _say_the_commit(self) -> None:
        """Write into the package which commit it was built from, if this is a checkout."""
        provenance = runpy.run_path(str(KERNELS.parent / "provenance.py"))
        found = provenance["commit_of"](KERNELS.parents[1])
        if found != provenance["UNKNOWN"]:
            (Path(self.build_lib) / "robustfl" / provenance["BUILT"]).write_text(f"{found}\n", encoding="ascii")


class PlatformWheel(bdist_wheel):
    """A wheel for one platform and any Python: the kernels are called through ctypes."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        return ("py3", "none", platform) if PREBUILD else (python, abi, platform)


class Binary(Distribution):
    """A distribution with compiled code, which belongs where a platform's code lies."""

    def has_ext_modules(self) -> bool:
        return PREBUILD


setup(distclass=Binary, cmdclass={"build_py": BuildKernels, "bdist_wheel": PlatformWheel})
