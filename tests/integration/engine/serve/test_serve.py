"""The life of `kvasir serve`: start, load, faults, drain, end."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvasir.cli.local.ports import free_ports
from kvasir_engine.sim.latency_model import PROFILES

pytestmark = pytest.mark.slow

SIM = ("sim", "--device", "sim", "--model-config", "builtin://kvasir-tiny")
SLOW = (*SIM, "--speed-profile", "h200-llama-3.1-8b-bf16")


@pytest.fixture
def unhurried(tmp_path: Path) -> tuple[str, ...]:
    """Flags of an engine whose streams of 2,000 tokens outlast a test on the busiest machine."""
    profile = json.loads((PROFILES / f"{SLOW[-1]}.json").read_bytes())
    path = tmp_path / "unhurried.json"
    path.write_text(json.dumps({**profile, "overhead_ms": 100.0}))
    return (*SIM, "--speed-profile", str(path))


def stream_body(tokens: int, **extra: Any) -> dict[str, Any]:
    return {
        "model": "sim",
        "prompt": "Hello",
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        **extra,
    }


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def open_stream(served: Any, tokens: int) -> Any:
    return served.client.stream("POST", "/v1/completions", json=stream_body(tokens))


def running(served: Any) -> int:
    count: int = served.get("/load").json()["running"]
    return count


def test_the_tiny_model_answers(serve: Callable[..., Any]) -> None:
    served = serve("builtin://kvasir-tiny", "--served-model-name", "tiny", "kvasir-tiny")
    assert [m["id"] for m in served.get("/v1/models").json()["data"]] == ["tiny", "kvasir-tiny"]
    body = {
        "model": "kvasir-tiny",
        "messages": [{"role": "user", "content": "Sort: 7 3 9 1"}],
        "temperature": 0,
    }
    answer = served.post("/v1/chat/completions", body).json()
    assert answer["choices"][0]["message"]["content"] == "1 3 7 9"
    assert served.stop() == 0


def test_sigterm_finishes_what_runs_and_leaves_no_process(
    serve: Callable[..., Any], assert_gone: Any
) -> None:
    served = serve(*SLOW)
    children = served.descendants()
    with open_stream(served, 150) as response:
        assert response.status_code == 200
        served.process.send_signal(signal.SIGTERM)
        served.until(lambda: served.get("/ready").status_code == 503)
        assert served.get("/ready").json()["status"] == "draining"
        assert served.post("/v1/completions", stream_body(1)).status_code == 503
        usage = events(response)[-1]["usage"]
    assert usage["completion_tokens"] == 150
    assert served.process.wait(timeout=30) == 0
    assert_gone(children)


def test_the_drain_deadline_ends_streams_with_an_error(serve: Callable[..., Any]) -> None:
    served = serve(*SLOW, "--drain-timeout", "0.3")
    with open_stream(served, 2000) as response:
        served.process.send_signal(signal.SIGTERM)
        last = [line for line in response.iter_lines() if line.startswith("data: ")][-1]
    assert "error" in json.loads(last.removeprefix("data: "))
    assert served.process.wait(timeout=30) == 0


def test_a_disconnect_aborts_the_request(
    serve: Callable[..., Any], unhurried: tuple[str, ...]
) -> None:
    served = serve(*unhurried)
    with open_stream(served, 2000) as response:
        next(response.iter_bytes())
        served.until(lambda: running(served) == 1)
    served.until(lambda: running(served) == 0)


def test_a_stopped_core_is_seen_by_health_and_idleness_is_not_stuck(
    serve: Callable[..., Any], unhurried: tuple[str, ...]
) -> None:
    served = serve(*unhurried, "--stuck-after", "1")
    time.sleep(1.2)
    assert served.get("/health").status_code == 200
    core = served.core_pid()
    with open_stream(served, 2000) as response:
        next(response.iter_bytes())
        os.kill(core, signal.SIGSTOP)
        try:
            served.until(lambda: served.get("/health").status_code == 503)
        finally:
            os.kill(core, signal.SIGCONT)
    served.until(lambda: served.get("/health").status_code == 200)


def test_a_killed_core_ends_all_of_them_non_zero(
    serve: Callable[..., Any], assert_gone: Any, unhurried: tuple[str, ...]
) -> None:
    served = serve(*unhurried, "--api-processes", "2")
    children = served.descendants()
    with open_stream(served, 2000) as response:
        next(response.iter_bytes())
        os.kill(served.core_pid(), signal.SIGKILL)
        assert served.process.wait(timeout=15) != 0
    assert_gone(children)
    assert "signal 9" in served.log.read_text()


LISTEN, ESTABLISHED = "0A", "01"


def peers(served: Any, pid: int, state: str = ESTABLISHED) -> set[int]:
    """The other ends' ports of a process's sockets on the server's port; 0 of one that listens."""
    port = int(served.url.rpartition(":")[2])
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    owned = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            owned.add(str(each.readlink()))
    return {
        int(row[2].rpartition(":")[2], 16)
        for row in rows
        if row[1].endswith(f":{port:04X}") and row[3] == state and f"socket:[{row[9]}]" in owned
    }


def answers(served: Any) -> bool:
    """Whether a request is answered; one whose process has just been killed is not."""
    try:
        response = served.post(
            "/v1/completions", {"model": "sim", "prompt": "Hello", "max_tokens": 1}
        )
    except httpx.TransportError:
        return False
    assert response.status_code == 200
    return True


def api_pids(served: Any) -> set[int]:
    return set(served.descendants()) - {served.core_pid()}


def test_a_killed_api_process_is_replaced_and_nobody_elses_stream_ends(
    serve: Callable[..., Any], assert_gone: Any, unhurried: tuple[str, ...]
) -> None:
    served = serve(*unhurried, "--api-processes", "2", "--grpc-port", str(free_ports(1)[0]))
    # A connection kept to a process that is killed would fail its next request.
    once = httpx.Limits(max_keepalive_connections=0)
    served.client.close()
    served.client = httpx.Client(base_url=served.url, timeout=60, limits=once)
    core, first = served.core_pid(), api_pids(served)
    with contextlib.ExitStack() as stack:
        streams: dict[int, Iterator[bytes]] = {}
        while not all(peers(served, pid) & set(streams) for pid in first):
            response = stack.enter_context(open_stream(served, 2000))
            connection = response.extensions["network_stream"].get_extra_info("socket")
            streams[connection.getsockname()[1]] = response.iter_bytes()
        victim, survivor = sorted(first)
        going_on = peers(served, survivor) & set(streams)
        os.kill(victim, signal.SIGKILL)
        served.until(lambda: answers(served))
        served.until(lambda: running(served) == len(going_on))
        assert all(next(streams[port]) for port in going_on)
        served.until(lambda: len(api_pids(served)) == 2)
        (successor,) = api_pids(served) - {survivor}
        served.until(lambda: peers(served, successor, LISTEN))
        os.kill(survivor, signal.SIGKILL)
        served.until(lambda: answers(served))
    served.until(lambda: len(api_pids(served)) == 2)
    served.until(lambda: all(peers(served, pid, LISTEN) for pid in api_pids(served)))
    served.until(lambda: running(served) == 0)
    assert served.core_pid() == core
    assert served.get("/load").json()["kv_usage"] == 0
    assert served.stop() == 0


def test_api_processes_that_die_again_and_again_end_the_engine(
    serve: Callable[..., Any], assert_gone: Any
) -> None:
    served = serve(*SIM)
    core = served.core_pid()

    def killed() -> bool:
        for pid in set(served.descendants()) - {core}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return served.process.poll() is not None

    served.until(killed, 60)
    assert served.process.wait() == 1
    assert_gone([core])
    assert "5 times within 60 s" in served.log.read_text()


def test_its_children_die_with_a_killed_supervisor(
    serve: Callable[..., Any], assert_gone: Any
) -> None:
    served = serve(*SIM)
    children = served.descendants()
    assert len(children) == 2
    served.process.kill()
    assert_gone(children)


def test_two_api_processes_tell_the_whole_from_any_of_them(serve: Callable[..., Any]) -> None:
    served = serve(*SIM, "--api-processes", "2")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        body = {"model": "sim", "prompt": "Hello", "max_tokens": 5}
        answers = list(pool.map(lambda _: served.post("/v1/completions", body), range(40)))
    assert all(answer.status_code == 200 for answer in answers)
    for _ in range(8):
        metrics = served.get("/metrics").text
        total = [x for x in metrics.splitlines() if x.startswith("kvasir_generation_tokens_total")]
        assert float(total[0].rpartition(" ")[2]) == 200
        assert "kvasir_num_requests_running" in metrics
        assert "kvasir_last_step_age_seconds" in metrics
        assert 'kvasir_prefix_cache_queries_total{engine="0"' in metrics


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("/nowhere/at/all",), "/nowhere/at/all"),
        (("builtin://kvasir-tiny", "--max-model-len", "5000"), "--max-model-len 5000 is longer"),
        (("builtin://kvasir-tiny", "--block-size", "17"), "--block-size must be one of"),
        (("builtin://kvasir-tiny", "--max-num-batched-tokens", "8"), "--max-num-seqs"),
        (
            ("builtin://kvasir-tiny", "--kv-cache-memory-bytes", "100000"),
            "raise --kv-cache-memory-bytes",
        ),
        (("builtin://kvasir-tiny", "--chat-template", "/no/such.jinja"), "/no/such.jinja"),
        (("builtin://kvasir-tiny", "--api-processes", "0"), "--api-processes"),
        (("builtin://kvasir-tiny", "--api-key-file", "/no/keys"), "/no/keys"),
    ],
)
def test_settings_that_cannot_work_exit_2_with_one_sentence(
    serve: Callable[..., Any], flags: tuple[str, ...], sentence: str
) -> None:
    served = serve(*flags, wait=False)
    assert served.process.wait(timeout=60) == 2
    said = served.log.read_text()
    assert sentence in said
    assert "Traceback" not in said


def test_a_taken_port_is_named(serve: Callable[..., Any]) -> None:
    first = serve(*SIM)
    port = int(first.url.rpartition(":")[2])
    second = serve(*SIM, wait=False, port=port)
    assert second.process.wait(timeout=30) == 2
    assert f"127.0.0.1:{port}" in second.log.read_text()
    assert "--port" in second.log.read_text()


def test_a_large_body_is_read_beside_the_api_process_and_ends_with_it(
    serve: Callable[..., Any],
) -> None:
    served = serve(*SIM)
    core = served.core_pid()
    (api,) = api_pids(served)
    body = b'{"prompt": "Hello", "max_tokens": 1}'.ljust(200_000)
    large = served.client.post("/v1/completions", content=body)
    assert (large.status_code, large.json()["usage"]["completion_tokens"]) == (200, 1)
    children = Path(f"/proc/{api}/task/{api}/children").read_text().split()
    (worker,) = [int(pid) for pid in children]
    os.kill(api, signal.SIGKILL)
    served.until(lambda: not Path(f"/proc/{worker}").exists())
    served.client.close()
    served.client = httpx.Client(base_url=served.url, timeout=60)
    served.until(lambda: answers(served))
    assert served.core_pid() == core
    assert served.stop() == 0
