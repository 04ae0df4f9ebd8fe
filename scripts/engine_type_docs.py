"""Write the table of docs/engine_types.md from the table of engine types: `make engine-docs`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from kvasir.resource.engines.engine_types import ENGINE_TYPES, REMEDIES
from kvasir.resource.engines.traits import EngineTraits

PAGE = Path(__file__).parents[1] / "docs" / "engine_types.md"
_MARKS = r"(?<=<!-- made by scripts/engine_type_docs\.py -->\n).*?(?=<!-- end -->)"
_DRAINS = {
    "flag": "at SIGTERM, for `drainSeconds`",
    "sigterm": "at SIGTERM",
    "wait": "before SIGTERM, for `drainSeconds`",
}
_ROWS: dict[str, Callable[[EngineTraits], str]] = {
    "starts with": lambda it: _code(" ".join(it.program)) or "its `command`, or the image's",
    "model": lambda it: (
        (_code(it.model) or "first argument") if it.program else "`$(KVASIR_MODEL)`"
    ),
    "readiness": lambda it: _code(it.ready_path) + ("" if it.program else ", or its own"),
    "liveness": lambda it: _code(it.live_path) or "the port, or its own path",
    "drains": lambda it: _DRAINS[it.drain],
    "always given": lambda it: _code(" ".join(it.always)) or "-",
    "KV events": lambda it: _code(next((w for w in it.events if w.startswith("--")), "")) or "-",
    "running": lambda it: _code(*it.metrics.running) or "its own",
    "waiting": lambda it: _code(*it.metrics.waiting) or "its own",
    "KV usage": lambda it: _code(*it.metrics.kv_usage) or "its own",
    "prompt lengths": lambda it: _code(it.metrics.prompt_tokens) or "its own",
    "time to first token": lambda it: _code(it.metrics.ttft) or "-",
    "KV capacity": lambda it: _code(it.metrics.capacity or it.metrics.cache_info) or "-",
    "engine contract": lambda it: "yes" if it.contract else "no",
}


def table() -> str:
    """Return what is known of each type, then the flags of each setting."""
    kinds = list(ENGINE_TYPES)
    rows = [["", *(f"`{kind}`" for kind in kinds)], ["---"] * (len(kinds) + 1)]
    rows += [[name, *(cell(ENGINE_TYPES[kind]) for kind in kinds)] for name, cell in _ROWS.items()]
    flagged = [kind for kind in kinds if ENGINE_TYPES[kind].flags]
    flags = [["field", *(f"`{kind}`" for kind in flagged)], ["---"] * (len(flagged) + 1)]
    for setting, remedy in REMEDIES.items():
        field = (
            remedy.removeprefix("use ") if remedy.startswith("use ") else f"{setting}, by Kvasir"
        )
        flags.append([field, *(_flags(ENGINE_TYPES[kind], setting) for kind in flagged)])
    return f"{_markdown(rows)}\n{_markdown(flags)}"


def page() -> str:
    """Return the page with the table as it has to be. Raises ValueError without a place for it."""
    text, count = re.subn(_MARKS, lambda _: table(), PAGE.read_text(), flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{PAGE} has no place for the table")
    return text


def _flags(traits: EngineTraits, setting: str) -> str:
    flag = traits.flags.get(setting, "")
    return _code(*((flag,) if isinstance(flag, str) else flag)) or "none"


def _code(*words: str) -> str:
    return ", ".join(f"`{word}`" for word in words if word)


def _markdown(rows: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    PAGE.write_text(page())
