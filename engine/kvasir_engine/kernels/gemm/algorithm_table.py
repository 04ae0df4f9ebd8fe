"""GEMM algorithms by shape: those shipped for a kind of GPU, and those timed here.

A file is named for the kind of GPU and the version of the library, since an algorithm's words mean
something to these alone. Lines are (tokens, outputs, inputs, the algorithm's eight words or null
for torch's choice). benchmarks/gpu/autotune_gemm.py writes the ones beside this module.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

MAX_TABLE_BYTES = 16 << 20
"""Maximum bytes of a file of choices; a larger one is not ours."""
GemmChoice = tuple[int, ...] | None
"""An algorithm's words; None for torch's choice."""
GemmKey = tuple[int, int, int]
"""Tokens, outputs, inputs."""


class AlgorithmTable:
    """Algorithm table by (tokens, outputs, inputs): shipped entries plus entries measured here."""

    def __init__(self, file: Path, shipped: Path | None = None, *, trusted: bool = True) -> None:
        """A file that is not there holds nothing; entries of `shipped` that are not `trusted` only
        name algorithms."""
        self._file = file
        self._known = read_algorithms(file)
        self._named = {} if shipped is None else read_algorithms(shipped)
        self._shipped = self._named if trusted else {}

    def knows(self, key: GemmKey) -> bool:
        """Return True where nothing is left to choose."""
        return key in self._shipped or key in self._known

    def get(self, key: GemmKey, choose: Callable[[], GemmChoice]) -> GemmChoice:
        """Return the shipped or known choice, or what `choose` finds."""
        if key in self._shipped:
            return self._shipped[key]
        if key not in self._known:
            self._known[key] = choose()
        return self._known[key]

    def shipped_algorithms(self, most: int) -> list[tuple[int, ...]]:
        """Return at most `most` of the shipped algorithms, the most frequent first: what was best
        for one shape may be for another."""
        counts = Counter(choice for choice in self._named.values() if choice is not None)
        return [choice for choice, _ in counts.most_common(most)]

    def save(self) -> None:
        """Save what was chosen here, as a whole: a reader sees the old file or the new one."""
        if not self._known:
            return
        part = self._file.with_suffix(f".{os.getpid()}")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(format_algorithms(self._known))
            part.replace(self._file)
        except OSError as error:
            log.warning(
                "GEMM algorithms cannot be saved, the next start times them again: %s.", error
            )


def format_algorithms(choices: dict[GemmKey, GemmChoice]) -> str:
    """Return the text that `read_algorithms` reads."""
    lines = [json.dumps([*key, choice]) for key, choice in sorted(choices.items())]
    return "[" + ",\n ".join(lines) + "]\n"


def read_algorithms(file: Path) -> dict[GemmKey, GemmChoice]:
    """Read an algorithm table; return {} with a warning when the file is unreadable."""
    try:
        if file.stat().st_size > MAX_TABLE_BYTES:
            raise ValueError(f"more than {MAX_TABLE_BYTES} bytes")
        found: dict[GemmKey, GemmChoice] = {}
        for tokens, outputs, inputs, words in json.loads(file.read_bytes()):
            if words is not None and len(words) != 8:
                raise ValueError(f"{len(words)} words")
            key = int(tokens), int(outputs), int(inputs)
            found[key] = None if words is None else tuple(int(word) for word in words)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        log.warning("%s is not read, products are timed again: %s.", file, error)
        return {}
    return found
