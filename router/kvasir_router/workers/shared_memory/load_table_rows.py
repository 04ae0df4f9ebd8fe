"""Which row of the load table is which replica's."""

from collections.abc import Callable

from kvasir_router.workers.shared_memory.load_table import MAX_REPLICAS

ReplicaName = tuple[str, str, str, int]
"""Model, id, host, port."""


class TooManyReplicasError(Exception):
    """There are more replicas than rows."""


class LoadTableRows:
    """A replica keeps its slot as long as it is there; a slot that was used is given away again
    only when no process counts anything in it: requests may outlive their replica."""

    def __init__(self, is_unused: Callable[[int], bool], rows: int = MAX_REPLICAS) -> None:
        self._is_unused = is_unused
        self._rows = rows
        self.slots: dict[ReplicaName, int] = {}
        """By replica; the next index process goes on with them."""

    def allocate(self, name: ReplicaName) -> int:
        """The replica's. Raises TooManyReplicasError."""
        slot = self.slots.get(name)
        if slot is None:
            taken = set(self.slots.values())
            for slot in range(self._rows):
                if slot not in taken and self._is_unused(slot):
                    break
            else:
                raise TooManyReplicasError(
                    f"a router with workers supports at most {self._rows} replicas"
                )
            self.slots[name] = slot
        return slot

    def free(self, name: ReplicaName) -> None:
        """The replica is gone."""
        self.slots.pop(name, None)
