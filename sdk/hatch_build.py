"""Builds the compiled twins (docs/adr/0006) if a C compiler is available; otherwise the package is pure Python.

python sdk/hatch_build.py [PACKAGE ...]    builds the tree's twins beside their sources, except those of these packages
"""

import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Packages with twins, from the root of the tree.
PACKAGES = (
    "format/duetime_format",
    "services/producer_gw/duetime_gateway",
    "services/store/duetime_store",
    "spark/duetime_spark",
)
# Include path of `cimport` for shared declarations, in addition to the sources' folder.
SHARED = "format"
FLAGS = ("-O3", "-g0", "-Wno-unused-function")
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


class CompiledTwins(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles every `_NAME.pyx` beside its source; a wheel that has them is for one platform.

    With DUETIME_PURE=1 in the environment there are none, and the wheel is for any.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if os.environ.get("DUETIME_PURE") == "1":
            build_data["artifacts"].clear()
            return
        try:
            built = compile_twins(Path(self.root), self.config["compiled"])
        except Exception as error:
            # Every twin has a Python version, so that an install does not fail without a compiler.
            self.app.display_warning(f"compiled twins are left out, Python does their work: {error}")
            return
        build_data["artifacts"] += [f"/{path}" for path in built]
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def compile_twins(root: Path, packages: Sequence[str] = PACKAGES, flags: Sequence[str] = FLAGS) -> list[str]:
    """Paths of the built extension modules, relative to `root`; `flags` are the C compiler's, and the linker's."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    sources = {
        ".".join(source.relative_to((root / package).parent).with_suffix("").parts): source
        for package in packages
        for source in sorted((root / package).rglob("_*.pyx"))
    }
    workers = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as scratch:
        extensions = cythonize(
            [
                Extension(name, [str(source)], extra_compile_args=list(flags), extra_link_args=list(flags))
                for name, source in sources.items()
            ],
            include_path=[str(root / SHARED), *(str((root / package).parent) for package in packages)],
            build_dir=scratch,
            # Functions of twins are plain builtins: a quarter less C, and no caller binds them.
            compiler_directives={"language_level": 3, "binding": False},
            nthreads=workers,
            quiet=True,
        )
        command = build_ext(Distribution({"ext_modules": extensions}))
        command.build_lib = command.build_temp = scratch
        command.parallel = workers
        command.ensure_finalized()
        command.run()
        built = []
        for name, source in sources.items():
            target = source.with_name(source.stem + SUFFIX)
            # Written as a new file: a running process may have the old one mapped.
            target.unlink(missing_ok=True)
            shutil.copy(command.get_ext_fullpath(name), target)
            built.append(str(target.relative_to(root)))
    return built


if __name__ == "__main__":
    compile_twins(Path(__file__).resolve().parents[1], [package for package in PACKAGES if package not in sys.argv[1:]])
