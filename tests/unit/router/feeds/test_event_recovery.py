"""Nothing that is not in the engine's cache is believed to be there, whatever gets lost."""

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvasir.wire.kv_events import BlockRemoved, BlockStored
from kvasir_router.feeds.event_recovery import COOLDOWN_SECONDS, Batch, Recovery

BUFFER = 5


@dataclass
class Believer:
    """The recovery's output: a set of blocks, as an index has them."""

    blocks: set[int] = field(default_factory=set)
    asked: list[int] = field(default_factory=list)
    applied: list[int] = field(default_factory=list)
    last_ts: float | None = None
    stopped: int = 0

    def apply(self, batch: Batch) -> None:
        self.applied.append(batch.number)
        self.last_ts = batch.ts
        for event in batch.events:
            if isinstance(event, BlockStored):
                self.blocks.update(each for each in event.block_hashes if isinstance(each, int))
            elif isinstance(event, BlockRemoved):
                self.blocks.difference_update(event.block_hashes)

    def clear(self) -> None:
        self.blocks.clear()
        self.last_ts = None

    def start_replay(self, number: int) -> None:
        self.asked.append(number)

    def stop_replay(self) -> None:
        self.stopped += 1


def stored(number: int, *blocks: int, ts: float | None = None) -> Batch:
    events = [BlockStored(list(blocks), None, [], 16)]
    return Batch(number, float(number) if ts is None else ts, [*events])


def make(can_replay: bool = True) -> tuple[Recovery, Believer]:
    output = Believer()
    return Recovery(output, can_replay=can_replay), output


def test_a_reader_from_the_start_asks_for_nothing() -> None:
    recovery, output = make()
    for number in range(3):
        recovery.live(stored(number, number), 0)
    assert (output.blocks, output.asked) == ({0, 1, 2}, [])


def test_a_late_reader_asks_for_all_there_is() -> None:
    recovery, output = make()
    recovery.live(stored(7, 7), 0)
    assert (output.asked, recovery.replaying, output.blocks) == ([0], True, set())
    for number in (5, 6, 7):
        recovery.replayed(stored(number, number), 0)
    recovery.replay_ended(0)
    recovery.live(stored(8, 8), 0)
    assert (output.blocks, output.applied) == ({5, 6, 7, 8}, [5, 6, 7, 8])


def test_a_gap_is_filled_from_the_last_batch() -> None:
    recovery, output = make()
    recovery.live(stored(0, 0), 0)
    recovery.live(stored(3, 3), 0)
    assert output.asked == [0]
    for number in range(3):
        recovery.replayed(stored(number, number), 0)
    recovery.replay_ended(0)
    assert output.applied == [0, 1, 2, 3]


def test_a_gap_that_the_engine_no_longer_knows_forgets_what_was_before() -> None:
    recovery, output = make()
    recovery.live(stored(0, 0), 0)
    recovery.live(stored(9, 9), 0)
    for number in (7, 8, 9):
        recovery.replayed(stored(number, number), 0)
    recovery.replay_ended(0)
    assert output.blocks == {7, 8, 9}


def test_a_batch_that_the_engine_dropped_itself_forgets_what_was_before() -> None:
    recovery, output = make()
    recovery.live(stored(0, 0), 0)
    recovery.live(stored(2, 2), 0)
    recovery.replayed(stored(0, 0), 0)
    recovery.replayed(stored(2, 2), 0)
    recovery.replay_ended(0)
    assert output.blocks == {2}


def test_a_lower_number_is_another_engine() -> None:
    recovery, output = make()
    recovery.live(stored(0, 1), 0)
    recovery.live(stored(0, 2, ts=50), 0)
    assert (output.blocks, output.asked) == ({2}, [])
    recovery.live(stored(1, 3, ts=51), 0)
    assert output.blocks == {2, 3}


def test_another_engine_that_has_counted_further_is_found_out_by_the_replay() -> None:
    recovery, output = make()
    for number in range(3):
        recovery.live(stored(number, number), 0)
    recovery.live(stored(9, 109, ts=59), 0)
    assert output.asked == [2]
    recovery.replayed(stored(2, 102, ts=52), 0)
    assert (output.asked, output.stopped, output.blocks) == ([2, 0], 1, set())
    for number in range(10):
        recovery.replayed(stored(number, 100 + number, ts=50 + number), 0)
    recovery.replay_ended(0)
    assert output.blocks == set(range(100, 110))


def test_after_a_reconnection_the_engine_must_be_the_same() -> None:
    recovery, output = make()
    recovery.live(stored(0, 0), 0)
    recovery.connected(0)
    assert output.asked == [0]
    recovery.replayed(stored(0, 0), 0)
    recovery.replay_ended(0)
    assert output.blocks == {0}
    recovery.connected(0)
    recovery.replay_ended(0)  # it knows of no batch 0: it has begun anew
    assert (output.blocks, output.asked[-1], recovery.replaying) == (set(), 0, True)


def test_without_replay_what_may_be_wrong_is_forgotten() -> None:
    recovery, output = make(can_replay=False)
    recovery.live(stored(4, 4), 0)
    recovery.live(stored(5, 5), 0)
    assert output.blocks == {4, 5}
    recovery.live(stored(7, 7), 0)
    assert output.blocks == {7}
    recovery.connected(0)
    assert output.blocks == set()
    assert output.asked == []


def test_a_failed_replay_is_not_tried_again_for_a_while() -> None:
    recovery, output = make()
    recovery.live(stored(0, 0), 0)
    recovery.live(stored(2, 2), 0)
    recovery.replay_failed(10)
    assert output.blocks == {2}
    recovery.live(stored(4, 4), 10)
    assert (output.blocks, output.asked) == ({4}, [0])
    recovery.live(stored(6, 6), 10 + COOLDOWN_SECONDS)
    assert output.asked == [0, 4]


def test_a_new_process_may_be_asked_at_once() -> None:
    recovery, output = make()
    recovery.live(stored(2, 2), 0)
    recovery.replay_failed(0)
    recovery.emptied()
    assert output.blocks == set()
    recovery.connected(1)
    assert output.asked == [0, 0]
    recovery.emptied()
    assert (recovery.replaying, output.stopped) == (False, 1)


def test_a_clock_that_was_set_back_costs_one_replay() -> None:
    recovery, output = make()
    recovery.live(stored(0, 0, ts=100), 0)
    recovery.live(stored(1, 1, ts=101), 0)
    recovery.live(stored(2, 2, ts=100.5), 0)
    assert output.asked == [1]
    recovery.replayed(stored(1, 1, ts=101), 0)
    recovery.replayed(stored(2, 2, ts=100.5), 0)
    recovery.replay_ended(0)
    recovery.live(stored(3, 3, ts=100.6), 0)
    assert (output.blocks, output.asked) == ({0, 1, 2, 3}, [1])


class LossyEngines(RuleBasedStateMachine):
    """Engines one after the other at one address, a reader, and everything in between losing
    messages. Blocks are never numbered twice, so a block of an earlier engine shows."""

    def __init__(self) -> None:
        super().__init__()
        self.recovery, self.output = make()
        self.clock = 0.0
        self.block = 0
        self.cache: set[int] = set()
        self.number = 0
        self.engine = 0
        self.seen_engine = 0
        self.buffer: list[Batch] = []
        self.socket: list[tuple[int, Batch]] = []
        self.answer: list[Batch] | None = None
        self.cache_after: dict[float, set[int]] = {}

    @rule(kept=st.booleans(), evicts=st.booleans())
    def publish(self, kept: bool, evicts: bool) -> None:
        self.clock += 1
        self.block += 1
        events = []
        if evicts and self.cache:
            oldest = min(self.cache)
            self.cache.discard(oldest)
            events.append(BlockRemoved([oldest]))
        self.cache.add(self.block)
        batch = Batch(self.number, self.clock, [*events, BlockStored([self.block], None, [], 16)])
        self.number += 1
        self.buffer = [*self.buffer, batch][-BUFFER:]
        self.cache_after[self.clock] = set(self.cache)
        if kept:
            self.socket.append((self.engine, batch))

    @rule(dropped=st.booleans(), noticed=st.booleans())
    def restart(self, dropped: bool, noticed: bool) -> None:
        self.engine += 1
        self.cache, self.buffer, self.number = set(), [], 0
        if dropped:
            self.socket.clear()
        if noticed:
            self.recovery.emptied()

    @rule()
    def connect(self) -> None:
        self.seen_engine = self.engine
        self.socket = [each for each in self.socket if each[0] == self.engine]
        self.recovery.connected(self.clock)

    @precondition(lambda self: self.socket and not self.recovery.replaying)
    @rule()
    def deliver(self) -> None:
        engine, batch = self.socket[0]
        if engine > self.seen_engine:
            self.connect()
        else:
            del self.socket[0]
            self.recovery.live(batch, self.clock)

    @precondition(lambda self: self.recovery.replaying)
    @rule(parts=st.integers(0, BUFFER), ends=st.booleans())
    def replay(self, parts: int, ends: bool) -> None:
        questions = len(self.output.asked)
        start = self.output.asked[-1]
        answer = [batch for batch in self.buffer if batch.number >= start]
        for batch in answer if ends else answer[:parts]:
            self.recovery.replayed(batch, self.clock)
            if len(self.output.asked) > questions:
                return
        if ends:
            self.recovery.replay_ended(self.clock)
        else:
            self.recovery.replay_failed(self.clock)

    @rule()
    def time_goes_by(self) -> None:
        self.clock += COOLDOWN_SECONDS

    @invariant()
    def nothing_is_believed_that_is_not_so(self) -> None:
        if self.output.last_ts is None:
            assert not self.output.blocks
        else:
            assert self.output.blocks <= self.cache_after[self.output.last_ts]

    @invariant()
    def all_is_known_once_all_was_heard(self) -> None:
        """As far as the engine remembers."""
        if self.output.last_ts == (self.buffer[-1].ts if self.buffer else None):
            assert self.block in self.output.blocks or not self.buffer


TestLossyEngines = LossyEngines.TestCase
