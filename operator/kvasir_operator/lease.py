"""Leadership by a Lease: only its holder works, and ends itself when it loses it."""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from datetime import UTC, datetime

import structlog

from kvasir.kube import ApiError
from kvasir.kube.client import Cluster
from kvasir.kube.objects import Object
from kvasir.resource import labels
from kvasir_operator.kinds import LEASES
from kvasir_operator.settings import OperatorSettings

_RENEWAL = 1 / 5
"""Share of the Lease's duration between two renewals."""
_ATTEMPT = 1 / 3
"""Share of it that one renewal, a read and a write, may take in all."""
_TRUST = 2 / 3
"""Share of it that a renewal is trusted for, from the moment at which it was begun. Others wait for
all of it, from the moment at which they see the renewal: the rest is for writes under way."""

_log = structlog.get_logger("kvasir_operator.lease")


class LeaseLostError(Exception):
    """Another operator may be at work now: this one must not go on."""


class Leadership:
    """One candidate for the Lease.

    Clocks of different machines are not compared: a Lease has expired when it was not renewed for
    its whole duration as seen from here. `cluster` is for the Lease alone: its writes carry the
    version that was read, so an API server refuses one that comes too late.
    """

    def __init__(self, cluster: Cluster, settings: OperatorSettings) -> None:
        self.identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        self._cluster = cluster
        self._namespace = settings.namespace
        self._name = settings.lease_name
        self._seconds = settings.lease_seconds
        self._seen = ""
        self._seen_at = 0.0
        self._trusted_until = float("-inf")

    def may_write(self) -> bool:
        """Tell if nobody else can hold the Lease at this moment; the clock goes on while the
        process, or the machine, is stopped."""
        return clock() < self._trusted_until

    async def acquire(self) -> None:
        """Wait until the Lease is held, also for an API server that is not there."""
        while True:
            try:
                if await self._renew():
                    _log.info("leading", identity=self.identity)
                    return
            except (ApiError, TimeoutError) as error:
                _log.warning("the Lease cannot be taken", error=str(error) or repr(error))
            await asyncio.sleep(self._seconds * _RENEWAL)

    async def hold(self) -> None:
        """Renew the Lease for ever. Raises LeaseLostError."""
        while True:
            pause = min(self._seconds * _RENEWAL, self._trusted_until - clock())
            await asyncio.sleep(max(0.0, pause))
            if not self.may_write():
                raise LeaseLostError("the Lease could not be renewed in time")
            try:
                if not await self._renew():
                    raise LeaseLostError("another operator has taken the Lease")
            except (ApiError, TimeoutError) as error:
                _log.warning("the Lease cannot be renewed", error=str(error) or repr(error))

    async def release(self) -> None:
        """Give the Lease back, so that the next operator begins at once."""
        try:
            async with asyncio.timeout(self._seconds * _ATTEMPT):
                lease = await self._cluster.get(LEASES, self._namespace, self._name)
                if lease is not None and lease["spec"].get("holderIdentity") == self.identity:
                    lease["spec"] = {**self._spec(lease), "holderIdentity": ""}
                    await self._cluster.replace(LEASES, lease, labels.MANAGER)
        except (ApiError, TimeoutError) as error:
            _log.warning("the Lease could not be given back", error=str(error) or repr(error))

    async def _renew(self) -> bool:
        """Take or renew the Lease; tell if it is held now. Raises ApiError and TimeoutError."""
        begun = clock()
        async with asyncio.timeout(self._seconds * _ATTEMPT):
            held = await self._try()
        if held:
            # From the beginning: the API server may have written it at any moment since
            self._trusted_until = begun + self._seconds * _TRUST
        return held

    async def _try(self) -> bool:
        lease = await self._cluster.get(LEASES, self._namespace, self._name)
        if lease is None:
            metadata = {"name": self._name, "namespace": self._namespace}
            made = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            body = {**made, "metadata": metadata, "spec": self._spec(None)}
            await self._cluster.create(LEASES, body, labels.MANAGER)
            return True
        if not self._is_free(lease):
            return False
        lease["spec"] = self._spec(lease)
        # Refused with 409 if it changed meanwhile: who has it then is seen at the next attempt
        await self._cluster.replace(LEASES, lease, labels.MANAGER)
        return True

    def _is_free(self, lease: Object) -> bool:
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        version, now = lease["metadata"]["resourceVersion"], clock()
        if version != self._seen:
            self._seen, self._seen_at = version, now
        if holder in ("", self.identity):
            return True
        duration = float(spec.get("leaseDurationSeconds") or self._seconds)
        return now - self._seen_at > duration

    def _spec(self, before: Object | None) -> Object:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = (before or {}).get("spec") or {}
        mine = old.get("holderIdentity") == self.identity
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._seconds)),
            "acquireTime": old.get("acquireTime", now) if mine else now,
            "renewTime": now,
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + (bool(old) and not mine),
        }


def clock() -> float:
    """Return seconds of a clock that nobody sets, and that does not stop in a machine's sleep."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
