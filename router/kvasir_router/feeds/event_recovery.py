"""Recovery from missed KV events: the part that knows no socket and no clock.

An engine numbers its batches from 0, and keeps the last ones for replay. A reader that joins late
asks for all of them; one that sees a gap asks from the last batch it has, whose time must be the
same in the replay: else it is another engine's batch of that number, and everything is begun anew.
What cannot be had is answered by forgetting: a block wrongly believed gone costs a hit, one wrongly
believed there costs a whole prompt at the wrong replica.
"""

from typing import NamedTuple, Protocol

from kvasir.wire.kv_events import KVEvent

COOLDOWN_SECONDS = 30.0
"""Seconds after a failed replay in which gaps are answered by forgetting alone."""


class Batch(NamedTuple):
    """Message of an engine: its events, number and time."""

    number: int
    ts: float
    """The engine's clock, Unix seconds: together with `number` it is the batch's identity."""
    events: list[KVEvent]


class RecoveryActions(Protocol):
    """Actions that the recovery calls for."""

    def apply(self, batch: Batch) -> None:
        """Apply the next batch, none missing before it since the last `clear`."""

    def clear(self) -> None:
        """Forget everything."""

    def start_replay(self, number: int) -> None:
        """Ask for the batches from `number` on, and pass them to `replayed`; no live batch is to
        come before `replay_ended` or `replay_failed`."""

    def stop_replay(self) -> None:
        """End the replay: nobody wants the rest of it."""


class Recovery:
    """Recovery of one engine's batches, put in order. Times are seconds of any monotonic clock."""

    def __init__(self, output: RecoveryActions, *, can_replay: bool) -> None:
        self._output = output
        self._can_replay = can_replay
        self._last: Batch | None = None
        """The last one applied, without its events."""
        self._held: Batch | None = None
        """The live batch that showed that something was missed."""
        self._checking = False
        """The replay that runs has yet to show that the engine is the same one."""
        self._doubtful = False
        """The connection broke during the replay."""
        self._not_before = float("-inf")
        self.replaying = False

    def connected(self, now: float) -> None:
        """The publisher is there, for the first time or again; live batches are from this
        connection from now on."""
        if self.replaying:
            self._doubtful = True
        elif not self._ask(now) and self._last is not None:
            self._forget()  # for all one knows it is another engine

    def emptied(self) -> None:
        """The engine's process is known to be gone."""
        if self.replaying:
            self.replaying = False
            self._output.stop_replay()
        self._held = None
        self._doubtful = False
        self._not_before = float("-inf")
        self._forget()

    def live(self, batch: Batch, now: float) -> None:
        """A batch as it was published; not while a replay runs."""
        last = self._last
        if last is None or batch.number > last.number:
            expected = 0 if last is None else last.number + 1
            if batch.number == expected and (last is None or batch.ts >= last.ts):
                self._apply(batch)
            else:
                self._held = batch
                if not self._ask(now):
                    self._skip_to_held()
        elif batch.ts > last.ts:  # another engine has begun to count
            self._forget()
            self.live(batch, now)
        # else it is known from a replay

    def replayed(self, batch: Batch, now: float) -> None:
        """A batch of the replay that runs."""
        last = self._last
        if self._checking and last is not None:
            if batch.number < last.number:
                return
            self._checking = False
            if batch.number == last.number and batch.ts == last.ts:
                return
            self._forget()
            if batch.number == last.number:  # another engine's: it has earlier ones too
                self._output.stop_replay()
                self.replaying = False
                self._ask(now)
                return
        elif last is not None and batch.number <= last.number:
            return
        elif last is not None and batch.number != last.number + 1:
            self._forget()
        self._apply(batch)

    def replay_ended(self, now: float) -> None:
        """Finish a replay."""
        self.replaying = False
        if self._checking:  # it has not come so far: another engine
            self._forget()
            self._ask(now)
            return
        if self._doubtful:
            self._doubtful = False
            if self._ask(now):
                return
        self._skip_to_held()

    def replay_failed(self, now: float) -> None:
        """Note that there was no whole answer."""
        self.replaying = False
        self._doubtful = False
        self._not_before = now + COOLDOWN_SECONDS
        self._forget()
        self._skip_to_held()

    def _ask(self, now: float) -> bool:
        """Start a replay, if that is possible now."""
        if not self._can_replay or now < self._not_before:
            return False
        self.replaying = True
        self._checking = self._last is not None
        self._output.start_replay(0 if self._last is None else self._last.number)
        return True

    def _skip_to_held(self) -> None:
        """Go on with the live batch, whatever was missed before it."""
        held, self._held = self._held, None
        last = self._last
        if held is None or (last and held.number <= last.number and held.ts <= last.ts):
            return
        if last is not None and held.number != last.number + 1:
            self._forget()
        self._apply(held)

    def _apply(self, batch: Batch) -> None:
        self._last = batch._replace(events=[])
        self._output.apply(batch)

    def _forget(self) -> None:
        self._last = None
        self._checking = False
        self._output.clear()
