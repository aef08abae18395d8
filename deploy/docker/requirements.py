"""Prints what the cluster needs with the extras named on the command line, a requirement a line, without our own parts.

So that an image's packages are a layer of their own, which only the pyproject.toml and constraints.txt change. `build`
alone stands for what building the wheels needs.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# By the name of a distribution: where it is described.
OURS = {"duetime": Path("sdk/pyproject.toml"), "duetime-server": Path("pyproject.toml")}
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[([\w,-]+)\])?")


def described(name: str) -> dict[str, Any]:
    return tomllib.loads(OURS[name].read_text())


def requirements(name: str, extras: list[str]) -> Iterator[str]:
    """Of one of our distributions, those of our others included."""
    project = described(name)["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    for line in lines:
        found = _REQUIREMENT.match(line)
        if found is not None and found[1] in OURS:
            yield from requirements(found[1], found[2].split(",") if found[2] else [])
        else:
            yield line


if __name__ == "__main__":
    asked = sys.argv[1:]
    built = described("duetime-server")["build-system"]["requires"]
    found = set(built if asked == ["build"] else requirements("duetime-server", asked))
    sys.stdout.write("".join(f"{line}\n" for line in sorted(found)))
