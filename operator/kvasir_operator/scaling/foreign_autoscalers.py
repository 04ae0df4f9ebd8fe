"""HorizontalPodAutoscalers of others that have an LLMDeployment as their target; KEDA's, too, since
it makes one of each ScaledObject."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from kvasir.kube import ApiError
from kvasir.kube.client import Cluster
from kvasir.kube.objects import name_of
from kvasir_operator.controller.work_queue import Key
from kvasir_operator.kinds import AUTOSCALERS
from kvasir_operator.settings import OperatorSettings

_REMEMBER_SECONDS = 10.0


class ForeignAutoscalers:
    """Reader of autoscalers, every ten seconds; none where the operator may not see them."""

    def __init__(
        self,
        cluster: Cluster,
        settings: OperatorSettings,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._may_list = AUTOSCALERS.plural in settings.optional_kinds
        self._now = now
        self._until: dict[str, float] = {}
        self._found: dict[str, dict[Key, str]] = {}

    async def of(self, namespaces: Collection[str]) -> dict[Key, str]:
        """Return the autoscaler of each LLMDeployment in `namespaces` that has one, by name."""
        if not self._may_list:
            return {}
        for namespace in namespaces:
            if self._now() >= self._until.get(namespace, 0.0):
                await self._read(namespace)
        return {
            key: told for namespace in namespaces for key, told in self._found[namespace].items()
        }

    async def _read(self, namespace: str) -> None:
        self._until[namespace] = self._now() + _REMEMBER_SECONDS
        known = self._found.setdefault(namespace, {})
        try:
            listed = await self._cluster.list(AUTOSCALERS, namespace)
        except ApiError as error:
            if error.status == 403:
                known.clear()
            return  # what was known holds while the API server does not answer
        found = {}
        for each in listed:
            target = (each.get("spec") or {}).get("scaleTargetRef") or {}
            if target.get("kind") == "LLMDeployment":
                key = Key(namespace, str(target.get("name")))
                found[key] = f"HorizontalPodAutoscaler {name_of(each)}"
        self._found[namespace] = found
