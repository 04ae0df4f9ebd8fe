"""Owners of one GPU's memory: its share is divided once, before the KV cache is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from kvasir_engine.startup.shortages import gib

GRAPH_OVERHEAD = 512 << 20
"""Bytes set aside for CUDA graphs beside the memory of the largest step: outputs that each graph
keeps, and the driver's copies of their launches. Graphs that would take more are not captured."""


@dataclass(slots=True)
class GpuMemory:
    """A GPU's memory in bytes, and its owners in the order in which they took theirs.

    Owners are told apart by what the driver has free before and after them, so memory that
    libraries take without torch's allocator counts too.
    """

    device: torch.device
    utilization: float
    total: int = field(init=False)
    owners: dict[str, int] = field(init=False, default_factory=dict)
    step: int = 0
    """Peak of the largest step beyond what stays allocated."""
    graphs: int = 0
    """Set aside for CUDA graphs."""
    _free: int = field(init=False)

    def __post_init__(self) -> None:
        """Count what is used now as other processes' and the CUDA context's."""
        self._free, self.total = torch.cuda.mem_get_info(self.device)
        self.owners["other processes, CUDA context"] = self.total - self._free

    @property
    def allowed(self) -> int:
        """The share that --gpu-memory-utilization gives, other processes' memory included."""
        return int(self.total * self.utilization)

    @property
    def beyond(self) -> int:
        """Bytes that are not the engine's to take."""
        return self.total - self.allowed

    def took(self, owner: str) -> None:
        """Count what was taken since the last call as `owner`'s."""
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info(self.device)[0]
        self.owners[owner] = self._free - free
        self._free = free

    def expect(self, step: int, *, graphs: bool) -> None:
        """Set `step` bytes aside for the largest step, and memory for CUDA graphs if there are any.

        All graphs share one pool, which holds the activations of the largest of them: at most
        those of the largest step.
        """
        self.step = step
        self.graphs = step + GRAPH_OVERHEAD if graphs else 0

    def left_for_kv(self) -> int:
        """Bytes that remain for the KV cache; negative when the others take more than the share."""
        return self.allowed - sum(self.taken().values())

    def free(self) -> int:
        """Bytes that the driver had left when it was last asked."""
        return self._free

    def free_for_kv(self) -> int:
        """Bytes that the driver had left beside the largest step and CUDA graphs, whatever the
        share."""
        return self._free - self.step - self.graphs

    def taken(self) -> dict[str, int]:
        """Bytes by what comes before the KV cache."""
        parts = {"weights and buffers": sum(self.owners.values()), "the largest step": self.step}
        return parts | ({"CUDA graphs": self.graphs} if self.graphs else {})

    def table(self) -> str:
        """One line an owner, for the log."""
        rest = self.allowed - sum(self.owners.values()) - self.step
        rows = [*self.owners.items(), ("kept free for the largest step", self.step)]
        if rest > 0:
            rows.append(("not used", rest))
        return "\n".join([self._title(), *_lines(rows)])

    def _title(self) -> str:
        return (
            f"GPU memory, {gib(self.allowed)} of {gib(self.total)} "
            f"(--gpu-memory-utilization {self.utilization}):"
        )


def _lines(rows: list[tuple[str, int]]) -> Iterator[str]:
    width = max(len(name) for name, _ in rows)
    return (f"  {name:<{width}}  {size / 2**30:7.2f} GiB" for name, size in rows)
