"""Prints the cluster's requirements with the extras named on the command line, one per line, without our own parts.

An image's packages are thus a layer of their own, which changes only with pyproject.toml and constraints.txt. `build`
alone prints the requirements for building the wheels, `native` those for building the wheels in Rust of the images.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# The pyproject.toml of each distribution, by name.
OURS = {"duetime": Path("sdk/pyproject.toml"), "duetime-server": Path("pyproject.toml")}
# The wheels in Rust of the images.
NATIVE = (Path("native/front/pyproject.toml"), Path("native/raft/pyproject.toml"))
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[([\w,-]+)\])?")


def described(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def built_by(*paths: Path) -> set[str]:
    """The requirements of builds."""
    return {line for path in paths for line in described(path)["build-system"]["requires"]}


def requirements(name: str, extras: list[str]) -> Iterator[str]:
    """Requirements of one of our distributions, including those of our other ones."""
    project = described(OURS[name])["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    for line in lines:
        found = _REQUIREMENT.match(line)
        if found is not None and found[1] in OURS:
            yield from requirements(found[1], found[2].split(",") if found[2] else [])
        else:
            yield line


if __name__ == "__main__":
    asked = sys.argv[1:]
    builds = {"build": (OURS["duetime-server"],), "native": NATIVE}
    found = built_by(*builds[asked[0]]) if asked and asked[0] in builds else set(requirements("duetime-server", asked))
    sys.stdout.write("".join(f"{line}\n" for line in sorted(found)))
