"""What is read from /metrics pages of engines that do not push their load."""

import asyncio
from typing import Any

import pytest

from harness.streams import serving
from kvasir.resource.engines.traits import MetricNames
from kvasir_router.discovery.engine_apis import traits_of
from kvasir_router.discovery.specs import EngineKind
from kvasir_router.feeds.metrics_scraper import (
    MAX_BYTES,
    LoadMetrics,
    MetricsPage,
    Scraper,
    parse_page,
    read_capacity,
)
from kvasir_router.fleet_secrets import FleetSecrets

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_running_total{engine="0"} 900.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="x"} 50.0
vllm:kv_cache_usage_perc{engine="0",model_name="a}b"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 5e-1
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000",num_cpu_blocks="7"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="500"} 1.0
vllm:request_prompt_tokens_sum{engine="0"} 4000.0
vllm:request_prompt_tokens_count{engine="0"} 8.0
"""
SGLANG = b"""sglang:num_running_reqs{model_name="m"} 5
sglang:num_queue_reqs{model_name="m"} 1
sglang:token_usage{model_name="m"} 0.75
sglang:max_total_num_tokens{model_name="m"} 123456
"""


VLLM_METRICS = LoadMetrics("/metrics", traits_of(EngineKind.VLLM).metrics)


def page(text: bytes, kind: EngineKind = EngineKind.VLLM) -> MetricsPage | None:
    return parse_page(text, traits_of(kind).metrics)


def test_vllm() -> None:
    assert page(VLLM) == MetricsPage(7, 2, 0.5, 16 * 1500, 500.0)


def test_an_older_vllm_and_no_prompts_yet() -> None:
    text = b"vllm:num_requests_running 1\nvllm:gpu_cache_usage_perc 0.125 1700000000"
    assert page(text) == MetricsPage(1, 0, 0.125, 0, 1024.0)


def test_sglang() -> None:
    assert page(SGLANG, EngineKind.SGLANG) == MetricsPage(5, 1, 0.75, 123456, 1024.0)


def test_an_engine_with_names_of_its_own() -> None:
    text = b"own:running 2\nown:kv 0.5\nother 9\n"
    names = MetricNames(running=("own:running",), kv_usage=("own:kv",))
    assert parse_page(text, names) == MetricsPage(2, 0, 0.5, 0, 1024.0)
    assert parse_page(b"other 9\n", names) is None


def test_kvasir_with_several_kv_groups() -> None:
    text = (
        b"kvasir_num_requests_running 0\n"
        b'kvasir_cache_config_info{block_size="32",num_gpu_blocks="100/20"} 1\n'
    )
    assert page(text, EngineKind.KVASIR) == MetricsPage(0, 0, 0.0, 3200, 1024.0)


def test_an_engine_that_has_done_nothing_yet() -> None:
    text = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="10"} 1'
    assert page(text) == MetricsPage(0, 0, 0.0, 160, 1024.0)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<html>",
        b"vllm:num_requests_running",
        b"vllm:num_requests_running NaN",
        b"vllm:num_requests_running -1",
        b"vllm:num_requests_running +Inf",
        b"vllm:num_requests_running{} \n",
        b"vllm:num_requests_running x",
        b"# vllm:num_requests_running 3",
    ],
)
def test_a_page_that_does_not_tell(text: bytes) -> None:
    assert page(text) is None


def test_absurd_labels_are_no_capacity() -> None:
    text = (
        b"vllm:num_requests_running 1\n"
        b'vllm:cache_config_info{block_size="None",num_gpu_blocks="None"} 1\n'
        b'vllm:cache_config_info{num_gpu_blocks="%s"} 1\n' % (b"9" * 9999)
    )
    assert page(text) == MetricsPage(1, 0, 0.0, 0, 1024.0)


class MetricsServer:
    """Answer every request with a page, as an engine does."""

    def __init__(self) -> None:
        self.text = VLLM
        self.status = b"200 OK"
        self.requests: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            length = len(self.text)
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (self.status, length))
            writer.write(self.text)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the scraper had enough
        finally:
            writer.transport.abort()


@pytest.fixture
async def metrics_server() -> Any:
    server = MetricsServer()
    async with serving(server.serve) as server.port:  # type: ignore[attr-defined]
        yield server


@pytest.fixture
async def scrape(make_replica, metrics_server) -> Any:
    replica = make_replica(metrics_server.port)
    scraper = Scraper(replica, VLLM_METRICS, 0.05, FleetSecrets("s"))
    task = asyncio.create_task(scraper.run())
    yield replica
    task.cancel()
    await asyncio.wait({task})


async def test_it_is_scraped_again_and_again(scrape, metrics_server, eventually) -> None:
    await eventually(lambda: scrape.load.report is not None)
    report = scrape.load.report
    assert (report.running, report.waiting, report.inflight_tokens) == (7, 2, 1000)
    assert scrape.load.kv_capacity == 24_000
    assert not scrape.load.stale
    metrics_server.text = VLLM.replace(b"} 3.0", b"} 13.0")
    await eventually(lambda: scrape.load.report.running == 17)
    assert metrics_server.requests[0].startswith(b"GET /metrics HTTP/1.1\r\n")
    assert b"\r\nx-kvasir-fleet-secret: s\r\n" in metrics_server.requests[0]


async def test_a_page_too_large_for_a_turn_is_read_all_the_same(
    scrape, metrics_server, eventually
) -> None:
    metrics_server.text = b'other{x="y"} 1\n' * 50_000 + VLLM
    await eventually(lambda: scrape.load.report is not None)
    assert scrape.load.report.running == 7


async def test_a_page_beyond_the_limit_is_none(scrape, metrics_server, eventually) -> None:
    metrics_server.text = VLLM + b"x" * MAX_BYTES
    await eventually(lambda: scrape.feeds["scrape_failed"] >= 1)


async def test_an_engine_without_metrics_is_not_called_stale(
    scrape, metrics_server, eventually
) -> None:
    metrics_server.status = b"404 Not Found"
    await eventually(lambda: scrape.feeds["scrape_without_load"] >= 1)
    assert not scrape.load.stale
    metrics_server.status = b"200 OK"
    await eventually(lambda: scrape.load.report is not None)
    assert scrape.load.report_every == 0.05


async def test_only_the_capacity(make_replica, metrics_server) -> None:
    replica = make_replica(metrics_server.port)
    await read_capacity(replica, VLLM_METRICS, b"")
    assert (replica.load.kv_capacity, replica.load.report) == (24_000, None)


async def test_the_capacity_is_asked_for_until_there_is_an_answer(
    make_replica, metrics_server, eventually, monkeypatch
) -> None:
    """It is asked for when a load stream begins; the next one may be days away."""
    monkeypatch.setattr("kvasir_router.feeds.metrics_scraper._RETRY_SECONDS", 0.01)
    replica = make_replica(metrics_server.port)
    metrics_server.status = b"broken"
    reading = asyncio.create_task(read_capacity(replica, VLLM_METRICS, b""))
    await eventually(lambda: replica.feeds["scrape_failed"] >= 3)
    metrics_server.status = b"200 OK"
    await reading
    assert replica.load.kv_capacity == 24_000
