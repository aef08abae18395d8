"""The error of this package, and the form in which all packages name a broken rule."""

from dataclasses import dataclass


class Damaged(Exception):
    """Bytes are not as they were written; `text` is the reason, a lower-case clause."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


@dataclass(frozen=True, slots=True)
class Violation:
    """One field that breaks a rule; `description` has the value and the limit."""

    field: str
    description: str
