"""Discovery of a router that starts now, and each state that it has known."""

from __future__ import annotations

import asyncio
from typing import Any

from kvasir.kube.config import load_access
from kvasir_router.discovery.kubernetes_source import KubernetesSource
from kvasir_router.discovery.specs import ModelSpec
from kvasir_router.options.cluster_scope import ClusterScope
from kvasir_router.policy.registry import policy_names


class NewRouter:
    """What a router that starts now knows, from its first state on."""

    def __init__(self, plane: Any, namespace: str, class_name: str) -> None:
        self._plane = plane
        self._scope = ClusterScope((namespace,), class_name=class_name)
        self.states: list[set[str]] = []
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        access = await load_access(environ={"KUBECONFIG": str(self._plane.kubeconfig)})
        source = KubernetesSource(self._scope, lambda _: None, policy_names(), access)
        async for models in source.watch():
            found = [it for it in models if isinstance(it, ModelSpec)]
            self.states.append({name for it in found for name in (it.name, *it.aliases)})

    async def knows(self) -> bool:
        return bool(self.states)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
