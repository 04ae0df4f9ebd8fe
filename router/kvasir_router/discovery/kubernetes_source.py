"""Models and replicas from a Kubernetes cluster: LLMDeployments, their names and engine pods.

Only read: get, list and watch of pods, llmdeployments and modelnames, and get of the Secrets that
hold the keys of servers of others. When the API server is gone,
what was known last goes on being served.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import msgspec
import structlog

from kvasir.kube.api import AccessError, Kind
from kvasir.kube.client import Cluster
from kvasir.kube.config import ClusterAccess, load_access
from kvasir.kube.watch import Collection, Identified, Reflector, Timing
from kvasir.resource import labels
from kvasir.resource.ownership import model_name
from kvasir.resource.ownership.name_claims import Holder, NameClaim, holders
from kvasir_router.discovery.kubernetes_objects import (
    LLMDeployment,
    read_claim_object,
    read_deployment,
)
from kvasir_router.discovery.kubernetes_pods import (
    Guest,
    Placed,
    read_engine,
    read_guest,
    read_kserve,
)
from kvasir_router.discovery.kubernetes_snapshot import ClusterObjects, snapshot
from kvasir_router.discovery.kubernetes_upstreams import (
    SecretKeys,
    Selection,
    keys_wanted,
    selection_of,
)
from kvasir_router.discovery.specs import DiscoveryError, Snapshot
from kvasir_router.discovery.unclaimed_names import unclaimed_names
from kvasir_router.options.cluster_scope import ClusterScope
from kvasir_router.tasks import SupervisedTasks

_log = structlog.get_logger("kvasir_router.discovery")

_DEPLOYMENTS = Kind(f"{labels.GROUP}/{labels.VERSION}", labels.PLURAL)
_NAMES = Kind(f"{labels.GROUP}/{labels.VERSION}", model_name.PLURAL, namespaced=False)
_PODS = Kind("v1", "pods")
_ENGINES = f"{labels.DEPLOYMENT},{labels.COMPONENT}={labels.ENGINE}"

# Events come in bursts, since a rollout is many of them: they are taken together.
_TOGETHER_SECONDS = 0.02

_Read = TypeVar("_Read", bound=Identified)


class KubernetesSource:
    """The LLMDeployments, names and pods in `scope`.

    `reported` is called after each request to the API server, with whether all that is watched is
    up to date as far as is known.
    """

    def __init__(
        self,
        scope: ClusterScope,
        reported: Callable[[bool], None],
        policies: Container[str],
        access: ClusterAccess | None = None,
        timing: Timing | None = None,
        tasks: SupervisedTasks | None = None,
    ) -> None:
        """Without `access`, `load` finds the cluster; defects count among those of `tasks`."""
        self._tasks = SupervisedTasks() if tasks is None else tasks
        self._scope = scope
        self._reported = reported
        self._policies = policies
        self._access = access
        self._timing = timing or Timing()
        self._cluster: Cluster | None = None
        self._changed = asyncio.Event()
        self._failing: set[Collection] = set()
        self._unclaimed: dict[str, Holder] = {}
        self._keys = SecretKeys(self._changed.set)
        self._guests: dict[Selection, tuple[Reflector[Guest], asyncio.Task[None]]] = {}
        self._guest_tasks = self._tasks

    async def load(self) -> None:
        """DiscoverySource.load: `watch` gives the first state, once the API server answers."""
        await self._connect()

    async def watch(self) -> AsyncIterator[Snapshot]:
        """DiscoverySource.watch; first when everything has been listed once."""
        cluster = await self._connect()
        reflect, everywhere = self._reflect, self._scope.namespaces or (None,)
        own = f"{labels.CLASS}={self._scope.class_name}"
        claims = reflect(cluster, read_claim_object, _NAMES, (None,), own)
        deployments = reflect(cluster, read_deployment, _DEPLOYMENTS, everywhere)
        engines = reflect(cluster, read_engine, _PODS, everywhere, _ENGINES)
        named = self._scope.kserve_namespaces
        kserve = reflect(cluster, read_kserve, _PODS, named, labels.KSERVE_SERVICE)
        first: list[Reflector[Any]] = [*deployments, *engines, *kserve]
        later = list(claims)
        tasks = self._guest_tasks = self._tasks.child()
        for each in first:
            tasks.keep("list and watch", each.run)
        tasks.keep("upstream keys", partial(self._keys.follow, cluster))
        last: Snapshot | None = None
        try:
            while True:
                await self._changed.wait()
                await asyncio.sleep(_TOGETHER_SECONDS)
                self._changed.clear()
                if not all(each.listed for each in first):
                    continue
                # Claims are listed after what they are for: an LLMDeployment that an operator has
                # taken by then has its claims in the list
                while later:
                    tasks.keep("list and watch", later.pop().run)
                if not all(each.listed for each in claims):
                    continue
                found = self._found(claims, deployments, engines, kserve)
                now = snapshot(found, self._scope, self._policies)
                if last is None:
                    _log.info("the cluster's models are known", models=len(now))
                if now != last:
                    last = now
                    yield now
        finally:
            await tasks.stop()
            self._guests.clear()
            await cluster.close()
            self._cluster = None

    def _found(
        self,
        claims: Sequence[Reflector[NameClaim]],
        deployments: Sequence[Reflector[LLMDeployment]],
        engines: Sequence[Reflector[Placed]],
        kserve: Sequence[Reflector[Placed]],
    ) -> ClusterObjects:
        claimed, known = _objects(claims), _objects(deployments)
        class_name = self._scope.class_name
        taken = holders(claimed, class_name)
        self._unclaimed = unclaimed_names(known, taken, class_name, self._unclaimed)
        self._keys.want(keys_wanted(known))
        guests = self._guests_of(known)
        return ClusterObjects(
            claimed,
            known,
            _objects(engines),
            _objects(kserve),
            self._unclaimed,
            dict(self._keys.found),
            {selection: list(each.objects.values()) for selection, each in guests.items()},
        )

    def _guests_of(self, deployments: Sequence[LLMDeployment]) -> dict[Selection, Reflector[Guest]]:
        """Watch the pods of others that the deployments select, and no others any more; return
        those that have been listed."""
        wanted = {it for each in deployments if (it := selection_of(each)) is not None}
        for gone in self._guests.keys() - wanted:
            self._guests.pop(gone)[1].cancel()
            self._failing.discard(Collection(_PODS.path(gone.namespace), gone.selector))
        cluster = self._cluster
        for new in wanted - self._guests.keys():
            if cluster is not None:
                place = (new.namespace,)
                [made] = self._reflect(cluster, read_guest, _PODS, place, new.selector)
                self._guests[new] = made, self._guest_tasks.keep("list and watch", made.run)
        return {it: made for it, (made, _) in self._guests.items() if made.listed}

    async def _connect(self) -> Cluster:
        """Raises DiscoveryError where nothing says what cluster there is."""
        try:
            if self._cluster is None:
                access = self._access or await load_access()
                self._cluster = Cluster(access, agent="kvasir-router")
        except AccessError as error:
            raise DiscoveryError(str(error)) from None
        return self._cluster

    def _reflect(
        self,
        cluster: Cluster,
        read: Callable[[msgspec.Raw], _Read],
        kind: Kind,
        namespaces: Sequence[str | None],
        selector: str = "",
    ) -> list[Reflector[_Read]]:
        """Return a reflector for each namespace; None = all of them."""
        paths = [kind.path(each) for each in namespaces]
        return [
            Reflector(
                cluster,
                each,
                read,
                self._timing,
                changed=self._changed.set,
                reported=partial(self._report, each),
            )
            for each in (Collection(path, selector) for path in paths)
        ]

    def _report(self, collection: Collection, good: bool) -> None:
        if good:
            self._failing.discard(collection)
        else:
            self._failing.add(collection)
        self._reported(not self._failing)


def _objects(reflectors: Sequence[Reflector[_Read]]) -> list[_Read]:
    return list(chain.from_iterable(each.objects.values() for each in reflectors))
