"""Models and replicas from a Kubernetes cluster: LLMDeployments and engine pods.

Only read: get, list and watch of pods and llmdeployments.kvasir.dev. When the API server is gone,
what was known last goes on being served.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import msgspec
import structlog

from kvasir.kube import ClusterAccess
from kvasir.resource import labels
from kvasir_router.discovery.kubernetes_api import KubernetesApi
from kvasir_router.discovery.kubernetes_objects import read_deployment
from kvasir_router.discovery.kubernetes_pods import read_engine, read_kserve
from kvasir_router.discovery.kubernetes_snapshot import snapshot
from kvasir_router.discovery.kubernetes_watch import Collection, Identified, Reflector, Timing
from kvasir_router.discovery.specs import Snapshot
from kvasir_router.tasks import SupervisedTasks

_log = structlog.get_logger("kvasir_router.discovery")

_CORE = "/api/v1"
_KVASIR = f"/apis/{labels.GROUP}/{labels.VERSION}"
_ENGINES = f"{labels.DEPLOYMENT},{labels.COMPONENT}={labels.ENGINE}"

# Events come in bursts, since a rollout is many of them: they are taken together.
_TOGETHER_SECONDS = 0.02

_Kind = TypeVar("_Kind", bound=Identified)


class KubernetesSource:
    """The LLMDeployments and pods of `namespaces`; of all when it is empty.

    `reported` is called after each request to the API server, with whether all that is watched is
    up to date as far as is known.
    """

    def __init__(
        self,
        namespaces: Sequence[str],
        reported: Callable[[bool], None],
        access: ClusterAccess,
        timing: Timing | None = None,
    ) -> None:
        self._namespaces = namespaces
        self._reported = reported
        self._timing = timing or Timing()
        self._api = KubernetesApi(access)
        self._changed = asyncio.Event()
        self._failing: set[Collection] = set()
        self._deployments = self._reflect(read_deployment, _KVASIR, labels.PLURAL)
        self._engines = self._reflect(read_engine, _CORE, "pods", _ENGINES)
        self._kserve = self._reflect(read_kserve, _CORE, "pods", labels.KSERVE_SERVICE)

    async def load(self) -> None:
        """DiscoverySource.load: the first state comes from `watch`, once the API server answers."""

    async def watch(self) -> AsyncIterator[Snapshot]:
        """DiscoverySource.watch; first when everything has been listed once."""
        reflectors: list[Reflector[Any]] = [*self._deployments, *self._engines, *self._kserve]
        tasks = SupervisedTasks()
        for each in reflectors:
            tasks.keep("list and watch", each.run)
        last: Snapshot | None = None
        try:
            while True:
                await self._changed.wait()
                await asyncio.sleep(_TOGETHER_SECONDS)
                self._changed.clear()
                if not all(each.listed for each in reflectors):
                    continue
                now = self._snapshot()
                if last is None:
                    _log.info("the cluster's models are known", models=len(now))
                if now != last:
                    last = now
                    yield now
        finally:
            await tasks.stop()
            await self._api.close()

    def _snapshot(self) -> Snapshot:
        return snapshot(
            _objects(self._deployments), _objects(self._engines), _objects(self._kserve)
        )

    def _reflect(
        self, read: Callable[[msgspec.Raw], _Kind], api: str, plural: str, selector: str = ""
    ) -> list[Reflector[_Kind]]:
        """One for each namespace, or one for all."""
        paths = [f"{api}/namespaces/{each}/{plural}" for each in self._namespaces]
        collections = [Collection(path, selector) for path in paths or [f"{api}/{plural}"]]
        return [
            Reflector(
                self._api,
                each,
                read,
                self._timing,
                changed=self._changed.set,
                reported=partial(self._report, each),
            )
            for each in collections
        ]

    def _report(self, collection: Collection, good: bool) -> None:
        if good:
            self._failing.discard(collection)
        else:
            self._failing.add(collection)
        self._reported(not self._failing)


def _objects(reflectors: Sequence[Reflector[_Kind]]) -> list[_Kind]:
    return list(chain.from_iterable(each.objects.values() for each in reflectors))
