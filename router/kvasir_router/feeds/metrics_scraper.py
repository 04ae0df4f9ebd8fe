"""The load of engines that do not push it, from their /metrics."""

import asyncio
import random
import re
import time
from dataclasses import dataclass

from kvasir_router.discovery.specs import EngineKind
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
class Names:
    """Names of an engine's series; each is an alternative."""

    running: tuple[bytes, ...]
    waiting: tuple[bytes, ...]
    kv_usage: tuple[bytes, ...]
    prompt_tokens: bytes
    """A histogram of prompts' lengths."""
    capacity: bytes = b""
    """Tokens of the KV cache, where there is such a gauge."""
    cache_info: bytes = b""
    """Series with labels `block_size` and `num_gpu_blocks` otherwise."""


def _vllm_names(prefix: bytes) -> Names:
    return Names(
        (prefix + b"num_requests_running",),
        (prefix + b"num_requests_waiting",),
        # vLLM's name until 0.10
        (prefix + b"kv_cache_usage_perc", prefix + b"gpu_cache_usage_perc"),
        prefix + b"request_prompt_tokens",
        cache_info=prefix + b"cache_config_info",
    )


NAMES = {
    EngineKind.KVASIR: _vllm_names(b"kvasir_"),
    EngineKind.KVASIR_OPEN: _vllm_names(b"kvasir_"),
    EngineKind.VLLM: _vllm_names(b"vllm:"),
    EngineKind.SGLANG: Names(
        (b"sglang:num_running_reqs",),
        (b"sglang:num_queue_reqs",),
        (b"sglang:token_usage",),
        b"sglang:prompt_tokens_histogram",
        capacity=b"sglang:max_total_num_tokens",
    ),
}
"""Kinds of engines whose /metrics tell their load."""


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


def parse_page(text: bytes, names: Names) -> MetricsPage | None:
    """Find the few series there are names for; None when there are none. An engine that has not
    run anything yet may tell its KV cache's size alone."""
    text = b"\n" + text
    running = _values(text, names.running)
    capacity = _capacity(text, names)
    if not running and not capacity:
        return None
    count = sum(_values(text, (names.prompt_tokens + b"_count",)))
    total = sum(_values(text, (names.prompt_tokens + b"_sum",)))
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
        self, replica: Replica, names: Names, interval: float, secrets: FleetSecrets | None
    ) -> None:
        self._replica = replica
        self._names = names
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
            page = await _read(replica, self._names, lines)
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


async def read_capacity(replica: Replica, names: Names, lines: bytes) -> None:
    """Learn the KV cache's size, once; an engine that does not tell is used all the same."""
    while True:
        try:
            page = await _read(replica, names, lines)
            break
        except (OSError, TimeoutError):
            replica.feeds["scrape_failed"] += 1
            await asyncio.sleep(_RETRY_SECONDS)
    if page is not None:
        replica.load.kv_capacity = page.kv_capacity


async def _read(replica: Replica, names: Names, lines: bytes) -> MetricsPage | None:
    """Raises OSError or TimeoutError; None when the page does not tell the load."""
    async with asyncio.timeout(_TIMEOUT):
        status, text = await fetch(replica.pool, "/metrics", lines, MAX_BYTES)
    if status != 200:
        return None
    if len(text) < _THREAD_BYTES:
        return parse_page(text, names)
    return await asyncio.to_thread(parse_page, text, names)


_LABEL = re.compile(rb'(\w+)="([^"\\]*)"')
_DIGITS = re.compile(rb"\d{1,15}")


def _values(text: bytes, names: tuple[bytes, ...]) -> list[float]:
    """Every value of the first of these series that there is."""
    for name in names:
        found = [_value(line) for line in _lines_of(text, name)]
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


def _capacity(text: bytes, names: Names) -> int:
    if names.capacity:
        return int(sum(_values(text, (names.capacity,))))
    tokens = 0
    for line in _lines_of(text, names.cache_info):
        labels = dict(_LABEL.findall(line))
        # One number a KV group, as 1000/200; the largest group's counts
        blocks = [int(number) for number in _DIGITS.findall(labels.get(b"num_gpu_blocks", b""))]
        size = _DIGITS.findall(labels.get(b"block_size", b""))
        tokens += max(blocks, default=0) * int(size[0] if size else 0)
    return tokens
