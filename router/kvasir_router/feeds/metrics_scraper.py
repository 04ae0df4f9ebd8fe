"""The load of engines that do not push it, from their /metrics."""

import asyncio
import random
import re
import time
from dataclasses import dataclass

from kvasir.resource.engines.traits import MetricNames
from kvasir_router.discovery.engine_apis import load_metrics
from kvasir_router.discovery.specs import ReplicaSpec
from kvasir_router.fleet.replica import Replica
from kvasir_router.fleet.replica_load import LoadReport
from kvasir_router.fleet_secrets import FleetSecrets
from kvasir_router.wire.upstream_pool import fetch

MAX_BYTES = 4 * 2**20
_THREAD_BYTES = 256 * 2**10
"""A larger page is searched in a thread."""
_TIMEOUT = 2.0
_RETRY_SECONDS = 1.0
_PROMPT_TOKENS = 1024.0
"""Prompt tokens of a waiting request, of an engine that does not say how long its prompts were."""


@dataclass(frozen=True, slots=True)
class LoadMetrics:
    """Place and names of the series that tell an engine's load."""

    path: str
    names: MetricNames


def metrics_of(spec: ReplicaSpec) -> LoadMetrics | None:
    """Return those of an engine; None = its load is not told."""
    found = load_metrics(spec)
    return None if found is None else LoadMetrics(*found)


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """Values needed of a /metrics page. Several engines in one server are summed, but for the
    usage, which is the fullest one's."""

    running: int
    waiting: int
    kv_usage: float
    kv_capacity: int
    """Tokens; 0 = the page does not say."""
    prompt_tokens: float
    """Mean length of a prompt."""


def parse_page(text: bytes, names: MetricNames) -> MetricsPage | None:
    """Find the few series there are names for; None when there are none. An engine that has not
    run anything yet may tell its KV cache's size alone."""
    text = b"\n" + text
    running = _values(text, names.running)
    capacity = _capacity(text, names)
    if not running and not capacity:
        return None
    lengths = names.prompt_tokens
    count = sum(_values(text, (lengths + "_count",))) if lengths else 0.0
    total = sum(_values(text, (lengths + "_sum",))) if lengths else 0.0
    return MetricsPage(
        running=int(sum(running)),
        waiting=int(sum(_values(text, names.waiting))),
        kv_usage=max(_values(text, names.kv_usage), default=0.0),
        kv_capacity=capacity,
        prompt_tokens=total / count if count else _PROMPT_TOKENS,
    )


class Scraper:
    """Ask one replica's /metrics every `interval` seconds, give or take a tenth; `secrets`: sent
    with it."""

    def __init__(
        self, replica: Replica, metrics: LoadMetrics, interval: float, secrets: FleetSecrets | None
    ) -> None:
        self._replica = replica
        self._metrics = metrics
        self._interval = interval
        self._secrets = secrets
        self.every = max(1.1 * interval, _TIMEOUT)
        """Maximum seconds between two steps."""

    async def run(self) -> None:
        """Scrape, forever."""
        await asyncio.sleep(self._interval * random.random() * 0.2)
        while True:
            await self._look()
            await asyncio.sleep(self._interval * random.uniform(0.9, 1.1))

    async def _look(self) -> None:
        replica = self._replica
        try:
            lines = b"" if self._secrets is None else self._secrets.lines
            page = await _read(replica, self._metrics, lines)
        except (OSError, TimeoutError):
            replica.feeds["scrape_failed"] += 1
            return
        if page is None:
            # It answers, and does not tell: that is no silence
            replica.feeds["scrape_without_load"] += 1
            replica.load.report_every = 0.0
            return
        waiting_tokens = int(page.waiting * page.prompt_tokens)
        now = time.monotonic()
        replica.load.report_every = self._interval
        replica.load.kv_capacity = page.kv_capacity
        replica.load.reported(
            LoadReport(page.running, page.waiting, waiting_tokens, page.kv_usage, now)
        )


async def read_capacity(replica: Replica, metrics: LoadMetrics, lines: bytes) -> None:
    """Learn the KV cache's size, once; an engine that does not tell is used all the same."""
    while True:
        try:
            page = await _read(replica, metrics, lines)
            break
        except (OSError, TimeoutError):
            replica.feeds["scrape_failed"] += 1
            await asyncio.sleep(_RETRY_SECONDS)
    if page is not None:
        replica.load.kv_capacity = page.kv_capacity


async def _read(replica: Replica, metrics: LoadMetrics, lines: bytes) -> MetricsPage | None:
    """Raises OSError or TimeoutError; None when the page does not tell the load."""
    async with asyncio.timeout(_TIMEOUT):
        status, text = await fetch(replica.pool, metrics.path, lines, MAX_BYTES)
    if status != 200:
        return None
    if len(text) < _THREAD_BYTES:
        return parse_page(text, metrics.names)
    return await asyncio.to_thread(parse_page, text, metrics.names)


_LABEL = re.compile(rb'(\w+)="([^"\\]*)"')
_DIGITS = re.compile(rb"\d{1,15}")


def _values(text: bytes, names: tuple[str, ...]) -> list[float]:
    """Every value of the first of these series that there is."""
    for name in names:
        found = [_value(line) for line in _lines_of(text, name.encode())]
        values = [value for value in found if value is not None]
        if values:
            return values
    return []


def _lines_of(text: bytes, name: bytes) -> list[bytes]:
    """The samples of one series: a search for its name, since pages are long and names few."""
    lines = []
    start = text.find(b"\n" + name)
    while start >= 0:
        end = text.find(b"\n", start + 1)
        line = text[start + 1 : end if end >= 0 else len(text)]
        if line[len(name) : len(name) + 1] in (b"{", b" "):
            lines.append(line)
        start = text.find(b"\n" + name, start + 1)
    return lines


def _value(line: bytes) -> float | None:
    """The number behind the name and its labels; None for what is no finite number >= 0."""
    try:
        value = float(line[line.rfind(b"}") + 1 :].split()[0 if b"}" in line else 1])
    except (ValueError, IndexError):
        return None
    return value if 0.0 <= value < 1e15 else None


def _capacity(text: bytes, names: MetricNames) -> int:
    if names.capacity:
        return int(sum(_values(text, (names.capacity,))))
    if not names.cache_info:
        return 0
    tokens = 0
    for line in _lines_of(text, names.cache_info.encode()):
        labels = dict(_LABEL.findall(line))
        # One number a KV group, as 1000/200; the largest group's counts
        blocks = [int(number) for number in _DIGITS.findall(labels.get(b"num_gpu_blocks", b""))]
        size = _DIGITS.findall(labels.get(b"block_size", b""))
        tokens += max(blocks, default=0) * int(size[0] if size else 0)
    return tokens
