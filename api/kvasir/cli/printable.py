"""Text that is safe to print: what a process or a model writes must not drive the terminal."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """`text` without control sequences; tabs and line feeds stay."""
    return _CONTROL.sub("", text)
