"""Replicas that a gateway may send a request to: those of its pool, and of its own subset."""

from collections.abc import Collection, Iterable
from functools import lru_cache
from ipaddress import ip_address

from kvasir_router.fleet.model import Model
from kvasir_router.fleet.replica import Health, Replica


class Pool:
    """Pods of an InferencePool, as far as the router knows them: engines of LLMDeployments of its
    namespace with its target port."""

    def __init__(self, namespace: str | None = None, port: int | None = None) -> None:
        """None = any."""
        self._namespace = namespace
        self._port = port

    def has(self, replica: Replica) -> bool:
        """Return whether a gateway can reach the replica through the pool."""
        spec = replica.spec
        if spec.upstream is not None or not _is_address(spec.host):
            return False
        if self._port is not None and spec.port != self._port:
            return False
        return self._namespace is None or spec.namespace == self._namespace


class Reach:
    """Replicas of one model that one request may go to. They may change while it waits."""

    def __init__(self, model: Model, pool: Pool, subset: Collection[str] | None) -> None:
        """`subset`: endpoints that the gateway offers, as IP:PORT; None = all of the pool."""
        self._model = model
        self._pool = pool
        self._subset = subset

    def beyond(self) -> list[Replica]:
        """Return the model's replicas that it may not go to."""
        return [each for each in self._model.replicas.values() if not self._has(each)]

    def serves(self, adapter: str = "") -> bool:
        """Return whether one that it may go to serves the LoRA adapter, "" for the model itself,
        though it may be full now."""
        return any(
            each.health is Health.READY
            and not each.draining
            and each.holds(adapter)
            and self._has(each)
            for each in self._model.replicas.values()
        )

    def _has(self, replica: Replica) -> bool:
        if self._subset is not None and endpoint_of_replica(replica) not in self._subset:
            return False
        return self._pool.has(replica)


def endpoint_of_replica(replica: Replica) -> str:
    """Return IP:PORT, an IPv6 address in brackets, as gateways write it."""
    return replica.pool.authority


def endpoints_in(text: Iterable[str]) -> frozenset[str]:
    """Return the endpoints of values that may each be several, separated by commas."""
    return frozenset(part.strip() for value in text for part in value.split(",") if part.strip())


@lru_cache(maxsize=4096)
def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
