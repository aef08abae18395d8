"""Made releases of the time zones, in place of the package `tzdata` of this process."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from struct import Struct
from types import ModuleType

from duetime_core import cron, planning

_HEADER = Struct(">4sc15x6l")
_ZONE_TYPE = Struct(">lbB")


def rules_of(text: str) -> bytes:
    """A zone file whose clock always follows a TZ string of POSIX, such as `CET-1CEST,M3.5.0,M10.5.0/3`."""
    name, offset_s = b"LMT\0", 0
    # One type, which nothing uses: the footer has the rules.
    block = _HEADER.pack(b"TZif", b"2", 0, 0, 0, 0, 1, len(name)) + _ZONE_TYPE.pack(offset_s, 0, 0) + name
    return block + block + b"\n" + text.encode() + b"\n"


def zone_file(name: str) -> bytes:
    """The file of a zone in the present release."""
    return files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()


@contextmanager
def release(folder: Path, version: str, zones: Mapping[str, bytes]) -> Iterator[None]:
    """Replaces the package by a release with these zones alone. Processes read a release once: stores of another
    release have to be stopped."""
    package = folder / version / "tzdata"
    for name, content in zones.items():
        path = package / "zoneinfo" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (package / "zones").write_text("".join(f"{name}\n" for name in zones))
    (package / "__init__.py").write_text(f"IANA_VERSION = {version!r}\n")
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "tzdata"}
    known, cron.tzdata = cron.tzdata, _load(package)
    _forget()
    try:
        yield
    finally:
        sys.modules.pop("tzdata", None)
        sys.modules.update(before)
        cron.tzdata = known
        _forget()


def _load(package: Path) -> ModuleType:
    sys.path.insert(0, str(package.parent))
    try:
        return __import__("tzdata")
    finally:
        sys.path.remove(str(package.parent))


def _forget() -> None:
    for cache in (cron.cron_times, cron._zone, cron._zone_names, planning._cron_after):
        cache.cache_clear()
