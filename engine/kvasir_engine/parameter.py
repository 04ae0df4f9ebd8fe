"""Entries of a table of parameters beside each one's type and default."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Parameter:
    """Entry of a parameter in the table, beside its type and default."""

    meaning: str
    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    """True when `low` itself is out of range."""
    max_items: int | None = None
    beams: bool = True
    """False when only the default works together with use_beam_search."""
    only_beams: bool = False
    """True when only the default works without use_beam_search."""
    offline: bool = False
    """True when only LLM takes it."""
    internal: bool = False
    """True when no caller sets it."""

    def takes(self, value: float) -> bool:
        """Tell whether `value` is in range; NaN is not."""
        above = value > self.low if self.low_open else value >= self.low
        return above and value <= self.high

    @property
    def range(self) -> str:
        """The numbers that it takes, as a sentence names them; empty when it takes any."""
        if self.high == 2**63 - 1:
            return "fit in 64 bits"
        if self.high < math.inf:
            return f"be a number in {'(' if self.low_open else '['}{self.low:g}, {self.high:g}]"
        return f"be at least {self.low:g}" if self.low > -math.inf else ""

    @property
    def schema(self) -> dict[str, Any]:
        """Return the fields of the parameter's JSON schema beside its type."""
        said = {
            "description": self.meaning,
            "exclusiveMinimum" if self.low_open else "minimum": self.low,
            "maximum": self.high,
            "maxItems": self.max_items,
            "maxProperties": self.max_items,
        }
        return {
            key: value for key, value in said.items() if value not in (None, -math.inf, math.inf)
        }


def parameter(default: Any, meaning: str, **more: Any) -> Any:
    """Return the field of a parameter; a callable `default` makes each object's own."""
    kind = "default_factory" if callable(default) else "default"
    return field(**{kind: default}, metadata={"parameter": Parameter(meaning, **more)})
