"""Replica and model of a router with workers, which load them together."""

from collections.abc import Callable, Sequence

from kvasir_router.discovery.specs import ModelSpec, ReplicaSpec
from kvasir_router.fleet.choice import Choice
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.policy import Policy
from kvasir_router.fleet.replica import Replica
from kvasir_router.fleet.replica_load import ReplicaLoad
from kvasir_router.index.block_sink import BlockSink
from kvasir_router.wire.query import Query
from kvasir_router.wire.upstream_pool import ConnectionPool
from kvasir_router.workers.shared_memory.load_table import CREDIT, IN_FLIGHT


class SharedLoad(ReplicaLoad):
    """Load with the credit of all processes; this one's part is also in its column."""

    __slots__ = ("_at", "_cells", "_others", "_own")

    def __init__(self, cells: memoryview, at: int) -> None:
        super().__init__()
        self._cells = cells
        self._at = at
        self._own = 0
        self._others = 0

    def give(self, tokens: int) -> None:
        """ReplicaLoad.give."""
        super().give(tokens)
        self._own += tokens
        self._cells[self._at] = self._own

    def take_back(self, tokens: int) -> None:
        """ReplicaLoad.take_back."""
        super().take_back(tokens)
        self._own -= tokens
        self._cells[self._at] = self._own

    def others_have(self, credit: int) -> None:
        """Count the credit that the other processes have given and not taken back. More than
        before is younger than the last report, by less than it takes to look."""
        more, self._others = credit - self._others, credit
        if more > 0:
            super().give(more)
        else:
            super().take_back(-more)


class SharedReplica(Replica):
    """Replica whose `in_flight` and credit count the requests of all processes."""

    def __init__(
        self,
        spec: ReplicaSpec,
        pool: ConnectionPool,
        max_in_flight: int,
        changed: Callable[[], None],
        engine_queue: int,
        *,
        slot: int,
        cells: memoryview,
    ) -> None:
        """`cells`: this process's column of the load table."""
        super().__init__(spec, pool, max_in_flight, changed, engine_queue)
        self.slot = slot
        self.load = self._shared_load = SharedLoad(cells, 2 * slot + CREDIT)
        self.load.heard = self._load_heard
        self.asked_for_probe: Callable[[SharedReplica], None] = lambda replica: None
        """Called when a probe is requested here."""
        self._cells = cells
        self._at = 2 * slot + IN_FLIGHT
        self._others = 0

    @property
    def own_in_flight(self) -> int:
        """Requests of this process that are in flight."""
        return self.in_flight - self._others

    def request_probe(self) -> None:
        """Replica.request_probe."""
        super().request_probe()
        self.asked_for_probe(self)

    def acquire(self) -> None:
        """Replica.acquire."""
        super().acquire()
        self._cells[self._at] = self.own_in_flight

    def release(self) -> None:
        """Replica.release."""
        super().release()
        self._cells[self._at] = self.own_in_flight

    def others_have(self, in_flight: int, credit: int) -> None:
        """Count the requests that the other processes have in flight now."""
        was_full = self.full
        self.in_flight += in_flight - self._others
        self._others = in_flight
        self._shared_load.others_have(credit)
        if self.full is not was_full:
            self.filled()


class SharedModel(Model):
    """Model of a router with workers, which looks at what the other processes do before it
    chooses."""

    def __init__(
        self, spec: ModelSpec, policy: Policy, created: int, look: Callable[[], None]
    ) -> None:
        super().__init__(spec, policy, created)
        self._look = look
        self.entry: BlockSink | None = None
        """Receiver that tells the other processes, too, of what the policy's sink is told."""

    @property
    def sink(self) -> BlockSink | None:
        """Model.sink."""
        return self.entry

    def choose(self, query: Query, tried: Sequence[Replica] = ()) -> Choice | None:
        """Model.choose."""
        self._look()
        return super().choose(query, tried)
