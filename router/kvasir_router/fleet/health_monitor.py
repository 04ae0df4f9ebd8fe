"""Ask every replica whether it is ready, and believe requests that fail before the next probe."""

import asyncio
import socket
import ssl
from functools import partial

import msgspec
import structlog

from kvasir_router.discovery.engine_apis import ready_path, traits_of
from kvasir_router.discovery.specs import EngineKind, Upstream
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.model_identity import ModelIdentity
from kvasir_router.fleet.replica import Health, LoadStreamState, Replica
from kvasir_router.fleet_secrets import FleetSecrets
from kvasir_router.options.router_settings import Probing
from kvasir_router.progress import WorkProgress
from kvasir_router.tasks import SupervisedTasks
from kvasir_router.wire.upstream_pool import fetch

_log = structlog.get_logger("kvasir_router.health")

# Of the interval, between two probes of a replica that is known by probes alone. With half the
# timeout and some time to spare, one that hangs is found within a second.
UNHEARD = 0.4

# A burst of failed requests asks for a probe each; they share one.
_MIN_PAUSE = 0.05


_MAX_REASON = 200
_UPSTREAM_TIMEOUT = 5.0
_UPSTREAM_PAUSE = 10.0
"""Seconds of a probe of an upstream URL, which may be far away, and between two."""


class _Card(msgspec.Struct):
    id: str | None = None
    max_model_len: int | None = None
    root: str | None = None
    revision: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None

    @property
    def identity(self) -> ModelIdentity:
        # Engines from before there was a choice store keys and values in the model's type.
        kv_cache_dtype = self.kv_cache_dtype or self.dtype
        return ModelIdentity(
            self.root, self.revision, self.dtype, self.quantization, kv_cache_dtype
        )


class _Cards(msgspec.Struct):
    data: list[_Card] = []


class HealthMonitor:
    """One task for each replica. Probes of a Kvasir engine carry the fleet secret.

    A replica whose load stream speaks is asked seldom; of any other one nothing else tells that it
    hangs, so it is asked more often and given half the time. Time in which the router itself stood
    still is no replica's.
    """

    def __init__(self, probing: Probing, secrets: FleetSecrets, tasks: SupervisedTasks) -> None:
        self._probing = probing
        self._secrets = secrets
        self._supervised = tasks
        self._tasks: dict[Replica, asyncio.Task[None]] = {}
        self._limits: dict[Replica, WorkProgress] = {}
        self._told: dict[Replica, tuple[str, ...]] = {}
        """Names that each replica served when the log last said so."""

    def watch(self, model: Model, replica: Replica) -> None:
        probing, watch = self._probing, partial(self._watch, model, replica)
        every = max(probing.interval, probing.startup_interval, probing.timeout)
        if replica.spec.upstream is not None:
            every = max(every, _UPSTREAM_PAUSE)
        self._tasks[replica] = self._supervised.keep("probes", watch, every=every)

    def forget_replica(self, model: Model, replica: Replica) -> None:
        self._tasks.pop(replica).cancel()
        self._told.pop(replica, None)

    def suspect(self, replica: Replica) -> None:
        """Its load stream fell silent: it gets no new request, and little time for a probe."""
        replica.heard(LoadStreamState.SILENT)
        limit = self._limits.get(replica)
        if limit is not None:
            limit.shorten(self._probing.suspect_timeout)

    async def stop(self) -> None:
        await self._supervised.stop()

    async def _watch(self, model: Model, replica: Replica) -> None:
        while True:
            replica.probe_now.clear()
            before = replica.health
            seen = await self._probe(replica)
            is_own = replica.spec.upstream is None
            if is_own and seen is Health.READY and before is not Health.READY:
                await self._read_card(replica)
                if self._is_misnamed(model, replica):
                    seen = Health.NOT_READY
            replica.observed(seen)
            hangs = replica.health is Health.SUSPECT and before is not Health.SUSPECT
            if replica.health is not before:
                _log.info(
                    "replica health",
                    model=model.name,
                    replica=replica.id,
                    was=before.value,
                    now=replica.health.value,
                )
            if hangs:
                replica.request_probe()  # once more: then requests in flight hear of it
            await self._pause(replica)

    def _is_misnamed(self, model: Model, replica: Replica) -> bool:
        """Return True if each request would be refused, because the engine lists names, but not
        the model's. The log says so when that, or a missing alias, is new."""
        told = self._told.get(replica)
        names = self._told[replica] = replica.served_names
        missing = model.names - set(names) if names else ()
        refuses = traits_of(replica.spec.engine).refuses_other_names
        if missing and names != told and replica.spec.engine is not EngineKind.OPENAI:
            _log.error(
                "a replica does not serve the names that its model has here: start it with "
                "--served-model-name, or name the model as it does",
                model=model.name,
                replica=replica.id,
                missing=sorted(missing),
                served=names,
            )
        is_wrong = model.name in missing and refuses
        replica.problem = (
            f"it does not serve the name {model.name}"[:_MAX_REASON] if is_wrong else ""
        )
        return is_wrong

    async def _pause(self, replica: Replica) -> None:
        probing = self._probing
        seconds = probing.startup_interval
        if replica.spec.upstream is not None:
            seconds = _UPSTREAM_PAUSE
        elif replica.ever_ready:
            seconds = probing.interval if _speaks(replica) else UNHEARD * probing.interval
        await asyncio.sleep(_MIN_PAUSE)
        try:
            async with asyncio.timeout(seconds - _MIN_PAUSE):
                await replica.probe_now.wait()
        except TimeoutError:
            pass

    async def _probe_upstream(self, replica: Replica, upstream: Upstream) -> Health:
        """Ask a server that is not of the fleet: by its health path or else, where nothing speaks
        for it, only whether it can be reached. What it answers to requests tells the rest."""
        replica.problem = upstream.problem
        if upstream.problem:
            return Health.STARTING
        if not upstream.health_path and replica.health is Health.READY:
            return Health.READY
        try:
            async with self._supervised.limit(_UPSTREAM_TIMEOUT):
                status = await _asked(replica, upstream)
        except (OSError, TimeoutError) as error:
            replica.problem = _reason(error)
            refused = isinstance(error, ConnectionRefusedError)
            return Health.DOWN if refused else Health.SUSPECT
        if status == 200:
            return Health.READY
        replica.problem = f"{upstream.health_path} answers with status {status}"
        return Health.NOT_READY

    async def _probe(self, replica: Replica) -> Health:
        if replica.spec.upstream is not None:
            return await self._probe_upstream(replica, replica.spec.upstream)
        probing = self._probing
        seconds = probing.timeout if _speaks(replica) else probing.timeout / 2
        if replica.load_stream_state is LoadStreamState.SILENT:
            seconds = probing.suspect_timeout
        try:
            async with self._supervised.limit(seconds) as self._limits[replica]:
                path, lines = ready_path(replica.spec), self._lines_for(replica)
                status, _ = await fetch(replica.pool, path, lines)
        except ConnectionRefusedError:
            return Health.DOWN
        except (OSError, TimeoutError):
            return Health.SUSPECT
        finally:
            del self._limits[replica]
        return Health.READY if status == 200 else Health.NOT_READY

    def _lines_for(self, replica: Replica) -> bytes:
        return self._secrets.lines if replica.spec.engine is EngineKind.KVASIR else b""

    async def _read_card(self, replica: Replica) -> None:
        """Learn what it computes and its context length, of replicas that tell."""
        try:
            async with self._supervised.limit(self._probing.timeout):
                status, body = await fetch(replica.pool, "/v1/models", self._lines_for(replica))
            cards = msgspec.json.decode(body, type=_Cards).data if status == 200 else []
        except (OSError, TimeoutError, msgspec.MsgspecError):
            return
        replica.served_names = tuple(card.id for card in cards if card.id is not None)
        lengths = [card.max_model_len for card in cards if card.max_model_len]
        replica.max_model_len = min(lengths, default=None)
        replica.serves = cards[0].identity if cards else None


async def _asked(replica: Replica, upstream: Upstream) -> int:
    """Return the status of the health path; 200 without one, once there is a connection. Raises
    OSError."""
    if upstream.health_path:
        lines, host = upstream.key_line, replica.spec.host_header
        return (await fetch(replica.pool, upstream.health_path, lines, host=host))[0]
    (await replica.pool.connect()).abort()
    return 200


def _reason(error: OSError | TimeoutError) -> str:
    """Return a short clause on why a server could not be reached."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"[:_MAX_REASON]
    if isinstance(error, TimeoutError):
        return f"it did not answer within {_UPSTREAM_TIMEOUT:g} s"
    if isinstance(error, socket.gaierror):
        return f"its host name has no address: {error.strerror}"[:_MAX_REASON]
    return f"no connection: {error.strerror or error}"[:_MAX_REASON]


def _speaks(replica: Replica) -> bool:
    return replica.load_stream_state not in (LoadStreamState.NONE, LoadStreamState.SILENT)
