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

_log = structlog.get_logger("kvasir_operator.lease")


class LeaseLostError(Exception):
    """Another operator may be at work now: this one must not go on."""


class Leadership:
    """One candidate for the Lease.

    Clocks of different machines are not compared: a Lease has expired when it was not renewed for
    its whole duration as seen from here.
    """

    def __init__(self, cluster: Cluster, settings: OperatorSettings) -> None:
        self.identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        self._cluster = cluster
        self._namespace = settings.namespace
        self._name = settings.lease_name
        self._seconds = settings.lease_seconds
        self._seen = ""
        self._seen_at = 0.0

    async def acquire(self) -> None:
        """Wait until the Lease is held, also for an API server that is not there."""
        while True:
            try:
                if await self._try():
                    _log.info("leading", identity=self.identity)
                    return
            except ApiError as error:
                _log.warning("the Lease cannot be taken", error=str(error))
            await asyncio.sleep(self._seconds / 5)

    async def hold(self) -> None:
        """Renew the Lease for ever. Raises LeaseLostError."""
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(self._seconds / 5)
            try:
                if not await self._try():
                    raise LeaseLostError("another operator has taken the Lease")
                renewed = time.monotonic()
            except ApiError as error:
                _log.warning("the Lease cannot be renewed", error=str(error))
            if time.monotonic() - renewed > self._seconds * 2 / 3:
                raise LeaseLostError("the Lease could not be renewed in time")

    async def release(self) -> None:
        """Give the Lease back, so that the next operator begins at once."""
        try:
            lease = await self._cluster.get(LEASES, self._namespace, self._name)
            if lease is not None and lease["spec"].get("holderIdentity") == self.identity:
                lease["spec"] = {**self._spec(lease), "holderIdentity": ""}
                await self._cluster.replace(LEASES, lease, labels.MANAGER)
        except ApiError as error:
            _log.warning("the Lease could not be given back", error=str(error))

    async def _try(self) -> bool:
        """Take or renew the Lease; tell if it is held now. Raises ApiError."""
        lease = await self._cluster.get(LEASES, self._namespace, self._name)
        try:
            if lease is None:
                metadata = {"name": self._name, "namespace": self._namespace}
                made = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
                body = {**made, "metadata": metadata, "spec": self._spec(None)}
                await self._cluster.create(LEASES, body, labels.MANAGER)
                return True
            if not self._is_free(lease):
                return False
            lease["spec"] = self._spec(lease)
            await self._cluster.replace(LEASES, lease, labels.MANAGER)
        except ApiError as error:
            if error.status == 409:
                return False  # somebody was faster
            raise
        return True

    def _is_free(self, lease: Object) -> bool:
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        version = lease["metadata"]["resourceVersion"]
        now = time.monotonic()
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
