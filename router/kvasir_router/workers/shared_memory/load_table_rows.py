"""Which row of the load table is which replica's."""

from collections.abc import Callable

from kvasir_router.workers.replication.messages import ReplicaRow
from kvasir_router.workers.shared_memory.load_table import MAX_REPLICAS

ReplicaName = tuple[str, str, str, int]
"""Model, id, host, port."""


class TooManyReplicasError(Exception):
    """There are more replicas than rows."""


class LoadTableRows:
    """A replica keeps its slot as long as it is there; a slot that was used is given away again
    only when no process counts anything in it: requests may outlive their replica."""

    def __init__(self, is_unused: Callable[[int], bool], slots: int = MAX_REPLICAS) -> None:
        self._is_unused = is_unused
        self._slots = slots
        self._by_name: dict[ReplicaName, int] = {}

    def allocate(self, name: ReplicaName) -> int:
        """The replica's. Raises TooManyReplicasError."""
        slot = self._by_name.get(name)
        if slot is None:
            taken = set(self._by_name.values())
            for slot in range(self._slots):
                if slot not in taken and self._is_unused(slot):
                    break
            else:
                raise TooManyReplicasError(
                    f"a router with workers supports at most {self._slots} replicas"
                )
            self._by_name[name] = slot
        return slot

    def free(self, name: ReplicaName) -> None:
        """The replica is gone."""
        self._by_name.pop(name, None)

    @property
    def places(self) -> list[ReplicaRow]:
        """All of them, for another process."""
        return [ReplicaRow(*name, slot) for name, slot in self._by_name.items()]

    def restore(self, places: list[ReplicaRow]) -> None:
        """Take over the rows that another process had given."""
        self._by_name = {(p.model, p.id, p.host, p.port): p.slot for p in places}
