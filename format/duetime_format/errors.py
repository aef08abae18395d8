"""The error of this package, and the form in which all packages name a broken rule."""

from dataclasses import dataclass


class DamagedBytes(Exception):
    """Bytes are not as they were written; `text` is the reason, a lower-case clause."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


@dataclass(frozen=True, slots=True)
class Violation:
    """One field that breaks a rule; `description` has the value and the limit."""

    field: str
    description: str


def within(field: str, value: float, low: float, high: float, *, unit: str = "", note: str = "") -> list[Violation]:
    """The violation of a field whose number is out of its bounds, if it is. `note` follows the bounds."""
    if low <= value <= high:
        return []
    shown = f"{value:g}" if isinstance(value, float) else value
    return [Violation(field, f"{shown}{unit} is not within {low} and {high}{note}")]
