"""The size a step may have: as the settings say, less after a step ran out of memory."""

from __future__ import annotations

from dataclasses import dataclass, field

RELAX_AFTER = 256
"""Steps in a row that retire before a lowered limit is doubled."""


@dataclass(slots=True)
class StepLimit:
    """Tokens and rows of a step at most. Never lower than one of each."""

    tokens: int
    rows: int
    _full: tuple[int, int] = field(init=False)
    _retired: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._full = (self.tokens, self.rows)

    @property
    def lowered(self) -> bool:
        """True while steps are smaller than the settings allow."""
        return (self.tokens, self.rows) != self._full

    def lower(self, tokens: int, rows: int) -> None:
        """A step of `tokens` over `rows` ran out of memory: allow half of both."""
        self._retired = 0
        self.tokens = max(1, min(self.tokens, tokens) // 2)
        self.rows = max(1, min(self.rows, (rows + 1) // 2))

    def retired(self) -> None:
        """A step had memory enough: after many of them, allow larger ones again."""
        if not self.lowered:
            return
        self._retired += 1
        if self._retired >= RELAX_AFTER:
            self._retired = 0
            self.tokens = min(2 * self.tokens, self._full[0])
            self.rows = min(2 * self.rows, self._full[1])
