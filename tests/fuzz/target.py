"""Fuzzed decoders of bytes from outside, each with its conditions for any input.

A target is a function of some bytes. It returns where they were read, or refused as the decoder documents. Every
exception is a finding: an error that is not the decoder's own, a twin that differs from its Python, a round trip with
changes. Its caller watches time and memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")
Check = Callable[[bytes], None]
Seal = Callable[[bytes], bytes]

TARGETS: dict[str, "Target"] = {}


@dataclass(frozen=True)
class Target:
    """One decoder. `words`: parts of its inputs, for mutations; `cost`: of an input, relative to the cheapest's."""

    name: str
    check: Check
    seeds: Sequence[bytes]
    words: Sequence[bytes] = ()
    # Corrects checksums and lengths, so that inputs get past the first checks of the decoder.
    seal: Seal | None = None
    cost: int = 1


def target(
    seeds: Sequence[bytes], words: Sequence[bytes] = (), seal: Seal | None = None, cost: int = 1
) -> Callable[[Check], Check]:
    """Names a function as the check of a target."""

    def register(check: Check) -> Check:
        name = check.__name__
        assert name not in TARGETS, f"two targets are named {name}"
        TARGETS[name] = Target(name, check, seeds, words, seal, cost)
        return check

    return register


def in_python(module: ModuleType, name: str, call: Callable[[], T]) -> T:
    """The result of a call while a module's compiled twin, in its variable `name`, is not there."""
    twin = getattr(module, name)
    setattr(module, name, None)
    try:
        return call()
    finally:
        setattr(module, name, twin)


def outcome(call: Callable[[], T], *refusals: type[Exception]) -> tuple[T | None, Any]:
    """(the result, None), or (None, the kind of the refusal): twins have to agree on it."""
    try:
        return call(), None
    except refusals as error:
        return None, type(error)
