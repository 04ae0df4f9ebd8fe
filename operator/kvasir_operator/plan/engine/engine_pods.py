"""Engine pods of one LLMDeployment, by their revision."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir.kube.objects import Object, holds


@dataclass(frozen=True, slots=True)
class EnginePods:
    """The engine pods that stay, by their revision."""

    current: tuple[Object, ...]
    """Pods of the wanted revision."""
    old: tuple[Object, ...]
    """Pods of other revisions."""

    @property
    def up(self) -> list[Object]:
        """Current pods whose engine is ready."""
        return [pod for pod in self.current if holds(pod, "ContainersReady")]

    @property
    def serving(self) -> list[Object]:
        """Pods of any revision that get requests."""
        return [pod for pod in (*self.current, *self.old) if holds(pod, "Ready")]
