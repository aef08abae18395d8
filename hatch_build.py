"""Builds the compiled twins (docs/adr/0006) where a C compiler is at hand; elsewhere the package is pure Python."""

import shutil
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Where packages lie, and where `cimport` finds what twins share.
ROOTS = ("core", "format", "services/producer_gw", "services/scheduler", "services/store", "spark")
FLAGS = ("-O3", "-g0", "-Wno-unused-function")
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


class CompiledTwins(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles every `_NAME.pyx` beside its source; a wheel that has them is for one platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        try:
            built = compile_twins(Path(self.root))
        except Exception as error:
            # Every twin has its Python beside it, so that an install does not fail for want of a compiler.
            self.app.display_warning(f"compiled twins are left out, Python does their work: {error}")
            return
        build_data["artifacts"] += [f"/{path}" for path in built]
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def compile_twins(root: Path, flags: Sequence[str] = FLAGS) -> list[str]:
    """Paths of the built extension modules, relative to `root`; `flags` are the C compiler's, and the linker's."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    sources = {
        ".".join(source.relative_to(root / base).with_suffix("").parts): source
        for base in ROOTS
        for source in sorted((root / base).rglob("_*.pyx"))
    }
    with tempfile.TemporaryDirectory() as scratch:
        extensions = cythonize(
            [
                Extension(name, [str(source)], extra_compile_args=list(flags), extra_link_args=list(flags))
                for name, source in sources.items()
            ],
            include_path=[str(root / base) for base in ROOTS],
            build_dir=scratch,
            compiler_directives={"language_level": 3},
            quiet=True,
        )
        command = build_ext(Distribution({"ext_modules": extensions}))
        command.build_lib = command.build_temp = scratch
        command.ensure_finalized()
        command.run()
        built = []
        for name, source in sources.items():
            target = source.with_name(source.stem + SUFFIX)
            # A new file: a running process may have the old one mapped.
            target.unlink(missing_ok=True)
            shutil.copy(command.get_ext_fullpath(name), target)
            built.append(str(target.relative_to(root)))
    return built
