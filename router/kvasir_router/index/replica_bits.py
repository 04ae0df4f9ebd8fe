"""Bits that stand for replicas in masks."""

from kvasir_router.index.cached_replica import CachedReplica


class ReplicaBits:
    """Give each replica a bit. A Python int has as many as are needed.

    A bit of a replica that is gone may still be set in many masks: it is `retired`, which hides it
    from `alive`, and given to another replica only after its index has cleared it everywhere and
    says so (`freed`).
    """

    __slots__ = ("_bits", "_free", "_replicas", "alive", "retired")

    def __init__(self) -> None:
        self._bits: dict[CachedReplica, int] = {}
        self._replicas: list[CachedReplica | None] = []
        self._free: list[int] = []
        self.alive = 0
        """The bits in use."""
        self.retired = 0
        """Bits that are to be cleared."""

    def bit(self, replica: CachedReplica) -> int:
        """The replica's bit; 0 if it has none."""
        return self._bits.get(replica, 0)

    def bit_for(self, replica: CachedReplica) -> int:
        """The replica's bit, which it gets if it has none."""
        bit = self._bits.get(replica, 0)
        if not bit:
            if self._free:
                place = self._free.pop()
                self._replicas[place] = replica
            else:
                place = len(self._replicas)
                self._replicas.append(replica)
            bit = self._bits[replica] = 1 << place
            self.alive |= bit
        return bit

    def retire(self, replica: CachedReplica) -> int:
        """Take the replica's bit away; returns it, 0 if there was none."""
        bit = self._bits.pop(replica, 0)
        if bit:
            self._replicas[bit.bit_length() - 1] = None
            self.alive &= ~bit
            self.retired |= bit
        return bit

    def freed(self, bits: int) -> None:
        """No mask has these retired bits any more."""
        self.retired &= ~bits
        while bits:
            low = bits & -bits
            self._free.append(low.bit_length() - 1)
            bits ^= low

    def replicas(self, mask: int) -> list[CachedReplica]:
        """The replicas of a mask's bits."""
        found = []
        while mask:
            low = mask & -mask
            replica = self._replicas[low.bit_length() - 1]
            if replica is not None:
                found.append(replica)
            mask ^= low
        return found
