"""Order of the faults: seeded, random, and no two deaths of engines in a row."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

Effect = Literal["death", "engines", "routers", "operator", "nodes", "cluster", "keys"]


_ALONE = ("nodes", "cluster")
"""Effects of which one at a time is under way."""
_ON_ENGINES = ("death", "engines", "nodes")


@dataclass(frozen=True)
class Kind:
    """A kind of fault."""

    name: str
    effect: Effect
    """`death`: an engine ends, or seems to, with the requests in it. What is in flight at two
    deaths is refused by design, so these are never next to each other."""
    until: float = 1.0
    """Part of the run in which it happens."""


class Schedule:
    """Draw the next fault: one that has come up seldom is likelier."""

    def __init__(self, kinds: Sequence[Kind], seed: int) -> None:
        self._kinds = kinds
        self._random = random.Random(seed)
        self._drawn: Counter[str] = Counter()
        self._last: Kind | None = None

    def draw(self, part: float, busy: Collection[str], *, engines_ready: bool) -> Kind:
        """Return the fault for now, `part` (0 to 1) of the run being over.

        `busy` are names of faults that are still under way. Without `engines_ready` (two engines
        serve) nothing is done to engines or nodes. Raises LookupError when nothing is left.
        """
        possible = [each for each in self._kinds if self._fits(each, part, busy, engines_ready)]
        if not possible:
            raise LookupError("no fault is possible now")
        weights = [1 / (1 + self._drawn[each.name]) ** 2 for each in possible]
        [chosen] = self._random.choices(possible, weights)
        self._drawn[chosen.name] += 1
        self._last = chosen
        return chosen

    def _fits(self, kind: Kind, part: float, busy: Collection[str], engines_ready: bool) -> bool:
        if kind.name in busy or part > kind.until:
            return False
        if kind.effect in _ALONE and any(
            each.effect == kind.effect for each in self._kinds if each.name in busy
        ):
            return False
        if kind.effect in _ON_ENGINES and not engines_ready:
            return False
        return not (
            kind.effect == "death" and self._last is not None and self._last.effect == "death"
        )
