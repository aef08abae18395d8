"""The one error of this package."""


class Damaged(Exception):
    """Bytes that are not what was written; `text` says what is wrong with them, a lower-case clause."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
