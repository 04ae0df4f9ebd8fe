"""Our own writes, until the watches have brought them back."""

from __future__ import annotations

from collections.abc import Hashable

from kvasir.kube.objects import Object

_SECONDS = 10.0


class Overlay:
    """Answers of the API server to writes, in place of what the indexes held before them.

    Without it, planning again before the watch has caught up would write the same once more, and
    conditions would take their times of transition from a status that is no longer there.
    """

    def __init__(self) -> None:
        self._written: dict[Hashable, tuple[float, str, Object]] = {}

    def wrote(self, key: Hashable, before: Object | None, answer: Object, now: float) -> None:
        """Record that a write made `answer` of what was `before` in the index."""
        # What is gone is never looked at again
        kept = {k: it for k, it in self._written.items() if now - it[0] < _SECONDS}
        self._written = {**kept, key: (now, _version(before), answer)}

    def forget(self, key: Hashable) -> None:
        """Drop the write to an object that was deleted, perhaps before the index ever had it."""
        self._written.pop(key, None)

    def __len__(self) -> int:
        return len(self._written)

    def see(self, key: Hashable, indexed: Object | None, now: float) -> Object | None:
        """Return the newest known object: the indexed one as soon as the index has moved on."""
        written = self._written.get(key)
        if written is None:
            return indexed
        at, before, answer = written
        if now - at < _SECONDS and _version(indexed) == before:
            return answer
        del self._written[key]
        return indexed


def _version(it: Object | None) -> str:
    return str(it["metadata"].get("resourceVersion", "")) if it is not None else ""
