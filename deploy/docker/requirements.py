"""Prints what the extras named on the command line need, a requirement a line, extras of extras included.

So that an image's packages are a layer of their own, which only pyproject.toml and constraints.txt change. `build`
stands for what building the wheel needs.
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: dict, extra: str) -> list[str]:
    project = pyproject["project"]
    if extra == "build":
        return pyproject["build-system"]["requires"]
    found = list(project["dependencies"])
    for line in project["optional-dependencies"][extra]:
        inner = line.removeprefix(f"{project['name']}[").removesuffix("]")
        found += [line] if inner == line else requirements(pyproject, inner)
    return found


if __name__ == "__main__":
    told = tomllib.loads(Path("pyproject.toml").read_text())
    found = {line for extra in sys.argv[1:] for line in requirements(told, extra)}
    sys.stdout.write("".join(f"{line}\n" for line in sorted(found)))
