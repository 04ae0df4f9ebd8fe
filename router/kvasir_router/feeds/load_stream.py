"""A Kvasir engine's load stream: what it is doing, and that it lives."""

import asyncio
import random
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import structlog

from kvasir_router.feeds.prompt_stream import follow_prompt_reports
from kvasir_router.fleet.replica import LoadStreamState, Replica
from kvasir_router.fleet.replica_load import LoadReport
from kvasir_router.fleet_secrets import FleetSecrets
from kvasir_router.index.block_sink import BlockSink
from kvasir_router.progress import until_done
from kvasir_router.tasks import SupervisedTasks
from kvasir_router.wire.tls import ReplicaTrust

if TYPE_CHECKING:
    from kvasir_router.feeds import rpc

_log = structlog.get_logger("kvasir_router.feeds")

REPORT_SECONDS = 0.2
"""Maximum seconds between two messages of an engine."""

ATTEMPT_SECONDS = 2.0
"""Without a message, before the connection is given up for a new one. A stopped engine that goes
on within this time uses the old one; time in which this process stood still does not count."""

_RENEW_SECONDS = 2.0
"""Within which all streams begin anew after a change of the secret that is sent: an engine ends
those that came with a secret that it accepts no more."""

_FIRST_BACKOFF = 0.1
_MAX_BACKOFF = 0.5


class LoadFeed:
    """WatchLoad of one replica, connected again and again, over TLS if it is said whom to `trust`;
    each connection also carries its prompt reports, if there is a `sink` for them.

    `spoke` is called for every message, `connected` for the first one of each connection.
    """

    def __init__(
        self,
        replica: Replica,
        grpc_port: int,
        secrets: FleetSecrets,
        trust: ReplicaTrust | None,
        *,
        spoke: Callable[[Replica, float], None],
        connected: Callable[[Replica], None],
        sink: BlockSink | None,
        tasks: SupervisedTasks,
    ) -> None:
        self._replica = replica
        self._port = grpc_port
        self._secrets = secrets
        self._trust = trust
        self._spoke = spoke
        self._connected = connected
        self._sink = sink
        self._tasks = tasks
        self._backoff = _FIRST_BACKOFF
        self._reported: str | None = None
        """The last trouble in the log."""

    async def run(self) -> None:
        """Listen, forever."""
        # In a thread: the import takes half a second, and requests are served meanwhile
        loop = asyncio.get_running_loop()
        importing = loop.run_in_executor(None, import_module, "kvasir_router.feeds.rpc")
        client = await until_done(importing, ATTEMPT_SECONDS)
        while True:
            try:
                trouble = await self._attempt(client)
            except TimeoutError:
                trouble = f"no message for {ATTEMPT_SECONDS} s"
            if trouble is None:
                self._replica.feeds["load_stream_renewed"] += 1
                continue
            self._broke(trouble)
            await asyncio.sleep(self._backoff * random.uniform(0.5, 1.0))
            self._backoff = min(2 * self._backoff, _MAX_BACKOFF)

    async def _attempt(self, client: Any) -> str | None:
        """Listen on one connection until it ends; returns why, None for a new one with another
        secret. Raises TimeoutError."""
        loop = asyncio.get_running_loop()
        host = self._replica.pool.host
        began, prompts = False, None
        sent, renew_at = self._secrets.now.sent, 0.0
        async with client.open_channel(host, self._port, sent, self._trust) as channel:
            try:
                async with self._tasks.limit(ATTEMPT_SECONDS) as progress:
                    async for load in channel.watch_load():
                        progress.went_on()
                        if not began:
                            began = True
                            prompts = self._hear_prompts(channel)
                            self._began()
                        self._take_load(load)
                        if sent != self._secrets.now.sent:
                            renew_at = renew_at or loop.time() + random.uniform(0, _RENEW_SECONDS)
                            if loop.time() >= renew_at:
                                return None
            except client.StreamError as error:
                return str(client.why(error))
            finally:
                if prompts is not None:
                    prompts.cancel()
        return "the engine ended it"

    def _hear_prompts(self, channel: "rpc.EngineChannel") -> asyncio.Task[None] | None:
        if self._sink is None:
            return None
        hear = partial(follow_prompt_reports, channel, self._sink, self._replica)
        return self._tasks.keep("prompts", hear)

    def _began(self) -> None:
        self._backoff = _FIRST_BACKOFF
        self._reported = None
        self._connected(self._replica)

    def _take_load(self, load: Any) -> None:
        now = time.monotonic()
        replica = self._replica
        replica.load.report_every = REPORT_SECONDS
        replica.load.reported(
            LoadReport(load.running, load.waiting, load.inflight_tokens, load.kv_usage, now)
        )
        self._spoke(replica, now)
        if load.leaving:
            replica.heard(LoadStreamState.LEAVING)
            return
        ready = load.ready and not load.draining
        replica.heard(LoadStreamState.READY if ready else LoadStreamState.NOT_READY)

    def _broke(self, trouble: str) -> None:
        replica = self._replica
        spoke = replica.load_stream_state is not LoadStreamState.NONE
        if spoke:
            replica.feeds["load_stream_ended"] += 1
            replica.request_probe()
        if trouble != self._reported:
            self._reported = trouble
            log = _log.warning if spoke else _log.info  # an engine that starts is no trouble
            log("no load stream", replica=replica.id, reason=trouble)
