"""A header that has come before on its connection: clients send the same one again and again."""

MAX_BYTES = 4096
"""Longer headers are not kept: there may be ten thousand connections."""

_LENGTH = b"\r\ncontent-length:"
_END = b"\r\n\r\n"


class KnownHead:
    """Recognises a header by its bytes, of which only the number in Content-Length may differ.

    Equal bytes mean an equal request, so what the parser found in the header, and what it checked,
    holds again, and the body is the bytes that follow.
    """

    __slots__ = ("_after", "_before", "_digits")

    def __init__(self, before: bytes, digits: int, after: bytes) -> None:
        self._before = before
        self._digits = digits
        """More would be a longer header than the one that was checked."""
        self._after = after

    @classmethod
    def of(cls, data: bytes) -> "KnownHead | None":
        """Make it of data that begins with a header which a parser has accepted.

        None if it is long, says nothing of a length, or not as most clients do.
        """
        end = data.find(_END, 0, MAX_BYTES) + len(_END)
        at = data[:end].lower().find(_LENGTH) + len(_LENGTH)
        if at < len(_LENGTH):
            return None
        if data[at : at + 1] == b" ":
            at += 1
        digits = data[at : data.find(b"\r", at)]
        if not digits.isdigit():
            return None
        return cls(data[:at], len(digits), data[at + len(digits) : end])

    def find(self, data: bytes) -> tuple[int, int] | None:
        """The length of the body, and where it begins; None if the data begins otherwise."""
        before = self._before
        if not data.startswith(before):
            return None
        at = len(before)
        end = data.find(b"\r", at, at + self._digits + 1)
        if end < 0:
            return None  # before a slice: mypyc has none that begins behind its end
        digits = data[at:end]
        if not digits.isdigit() or not data.startswith(self._after, end):
            return None
        return int(digits), end + len(self._after)
