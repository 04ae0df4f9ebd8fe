"""`transformers serve`, an engine that knows nothing of Kvasir: `make engines`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from kvasir.cli.local.ports import free_ports

CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Reverse: abc"}],
    "max_tokens": 16,
    "temperature": 0,
}


@pytest.fixture(scope="module")
def engines(fleet: Any) -> Any:
    """The fleet with one engine."""
    fleet.first = fleet.add(0)
    return fleet


def chat(url: str, **more: Any) -> httpx.Response:
    # The engine answers one request after the other
    return httpx.post(f"{url}/v1/chat/completions", json={**CHAT, **more}, timeout=300)


def events(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_a_chat_has_its_usage(engines: Any) -> None:
    answer = chat(engines.url)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["choices"][0]["message"]["content"]
    assert 0 < body["usage"]["completion_tokens"] <= 16
    assert body["usage"]["prompt_tokens"] > 0


def test_a_stream_is_the_chat(engines: Any) -> None:
    whole = chat(engines.url).json()["choices"][0]["message"]["content"]
    answer = chat(engines.url, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    chunks = events(answer.text)
    text = "".join(each["delta"].get("content") or "" for it in chunks for each in it["choices"])
    assert text == whole


def test_usage_is_counted_though_no_client_asks_for_it(engines: Any) -> None:
    before = tokens(engines.admin)
    chat(engines.url, stream=True)
    chat(engines.url)
    assert tokens(engines.admin) > before


def tokens(admin: str) -> float:
    model = httpx.get(f"{admin}/debug/fleet").json()["models"][0]
    return float(model["completion_tokens"])


def test_it_is_told_nothing_of_the_fleet_and_known_as_an_engine_of_others(engines: Any) -> None:
    replica = engines.replica("tiny-0")
    assert (replica["engine"], replica["load_stream"], replica["load"]) == ("openai", "none", None)
    listed = httpx.get(f"{engines.url}/v1/models").json()["data"]
    assert [each["id"] for each in listed] == ["tiny"]


def test_what_the_engine_refuses_the_client_is_told(engines: Any) -> None:
    answer = chat(engines.url, no_such_field=1)
    assert answer.status_code == 422
    assert "no_such_field" in answer.text
    assert engines.replica("tiny-0")["health"] == "ready"


def test_one_takes_anothers_place_under_load_and_nothing_is_lost(engines: Any) -> None:
    stop = Event()

    def ask() -> list[str]:
        """Chat again and again; return what went wrong."""
        wrong = []
        asked = 0
        while not stop.is_set() or not asked:
            asked += 1
            answer = chat(engines.url, stream=True)
            chunks = events(answer.text) if answer.status_code == 200 else []
            choices = [each for chunk in chunks for each in chunk.get("choices", ())]
            # It sends no [DONE]
            if not choices or choices[-1]["finish_reason"] is None:
                wrong.append(f"{answer.status_code} {answer.text[-300:]}")
        return wrong

    with ThreadPoolExecutor(3) as clients:
        asking = [clients.submit(ask) for _ in range(3)]
        try:
            engines.add(1)
            engines.drain("tiny-0")
            assert engines.first.terminate() in (0, -signal.SIGTERM)
            served = engines.replica("tiny-1")["served"]
            chat(engines.url)
        finally:
            stop.set()
        assert [problem for each in asking for problem in each.result()] == []
    assert served > 0
    assert engines.replica("tiny-1")["failures"] == {}


def test_kvasir_up_runs_its_command(write_resource: Path, tmp_path: Path) -> None:
    [port] = free_ports(1)
    command = [sys.executable, "-m", "kvasir", "up", "-f", str(write_resource)]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--log-dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = [
            line for line in iter(process.stdout.readline, "Ctrl-C stops everything.\n") if line
        ]
        assert any(line.startswith("Ready after") for line in said), "".join(said)
        answer = chat(f"http://127.0.0.1:{port}")
        assert answer.status_code == 200, answer.text
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
