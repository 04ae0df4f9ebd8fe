"""Amounts of memory as people write them: 80GiB, 24Gi, 1.5G, 1073741824."""

from __future__ import annotations

import re

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12} | {
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_QUANTITY = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([kmgt]i?)?b?", re.IGNORECASE | re.ASCII)


def parse_bytes(text: str | int) -> int:
    """Bytes in `text`: a number with an optional unit, as Kubernetes (Gi, G) or people (GiB, GB)
    write it. Raises ValueError."""
    match = _QUANTITY.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"{text!r} is not an amount of memory; write for example 80GiB or 24G")
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])


def format_bytes(count: int) -> str:
    """`count` bytes in the largest binary unit that leaves at least one: "15.0 GiB"."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
