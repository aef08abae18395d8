"""The one error of this package."""


class Damaged(Exception):
    """Bytes are not as they were written; `text` says what is wrong with them, in a lower-case clause."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
