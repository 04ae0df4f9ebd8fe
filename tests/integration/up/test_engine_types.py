"""Types of engines with `kvasir up`: whole fleets of real processes.

No vLLM can run here. In its place runs Kvasir's simulated engine, under the name `vllm`: it takes
the command line that vLLM is given, answers OpenAI's API and /health, and its metrics have vLLM's
names. That the names are vLLM's is tested nowhere but in the table of engine types.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml

pytestmark = pytest.mark.slow

VLLM = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path
took = dict(zip(sys.argv[1:], sys.argv[2:]))
Path(os.environ["TOLD"]).write_text(json.dumps([sys.argv[1:], dict(os.environ)]))
flags = {{"--host": "--host", "--port": "--port", "--served-model-name": "--served-model-name",
         "--shutdown-timeout": "--drain-timeout"}}
words = [word for flag, own in flags.items() for word in (own, took[flag])]
os.execv(sys.executable, [sys.executable, "-m", "kvasir", "serve", "builtin://kvasir-tiny",
                          "--device", "sim", "--metrics-prefix", "vllm:", *words])
"""
Process = subprocess.Popen[str]
RESOURCE: dict[str, Any] = {
    "apiVersion": "kvasir.dev/v1alpha1",
    "kind": "LLMDeployment",
    "metadata": {"name": "m"},
}


@pytest.fixture
def up(tmp_path: Path, free_port: int) -> Iterator[Callable[..., tuple[Process, str]]]:
    """up(spec, **environ): a running `kvasir up` when it is ready, and its router's admin URL."""
    runs: list[Process] = []

    def start(spec: dict[str, Any], **environ: str) -> tuple[Process, str]:
        file = tmp_path / "models.yaml"
        file.write_text(yaml.safe_dump({**RESOURCE, "spec": spec}))
        command = [sys.executable, "-m", "kvasir", "up", "-f", str(file)]
        process = subprocess.Popen(
            [*command, "--port", str(free_port), "--log-dir", str(tmp_path / "logs")],
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        runs.append(process)
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("In the browser: "):
                return process, line.split()[3]
        raise AssertionError("".join(said))

    yield start
    for process in runs:
        process.kill()
        process.communicate()


def ask(url: str, body: dict[str, Any]) -> bytes:
    headers = {"Content-Type": "application/json"}
    request = Request(url, json.dumps(body).encode(), headers, method="POST")
    with urlopen(request, timeout=60) as answer:
        found: bytes = answer.read()
    return found


def told_load(admin: str) -> dict[str, Any]:
    """The only replica, when its load is known."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with urlopen(f"{admin}/debug/fleet", timeout=10) as answer:
            [replica] = json.load(answer)["models"][0]["replicas"]
        if replica["load"] is not None:
            return dict(replica)
        time.sleep(0.05)
    raise AssertionError(replica)


def test_vllm_is_started_routed_to_and_drained(
    up: Callable[..., tuple[Process, str]], tmp_path: Path, free_port: int
) -> None:
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(VLLM)
    program.chmod(0o755)
    told = tmp_path / "told"
    process, admin = up(
        {
            "model": {"uri": "hf://org/model@v1"},
            "engine": {"type": "vllm", "config": {"maxModelLen": 512}},
            "lifecycle": {"drainSeconds": 7},
        },
        PATH=f"{program.parent}:{os.environ['PATH']}",
        TOLD=str(told),
    )
    command, environ = json.loads(told.read_text())
    assert command[:2] == ["serve", "org/model"]
    flags = dict(pairwise(command))
    assert flags["--revision"] == "v1"
    assert flags["--shutdown-timeout"] == "7"
    assert flags["--max-model-len"] == "512"
    assert "KVASIR_FLEET_SECRET" not in environ

    url = f"http://127.0.0.1:{free_port}/v1/chat/completions"
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    assert json.loads(ask(url, body))["usage"]["completion_tokens"] == 3
    events = ask(url, {**body, "stream": True}).decode()
    assert events.endswith("data: [DONE]\n\n")
    # It was asked of the engine, for the router, and the client did not ask for it
    assert '"usage":{' not in events
    with pytest.raises(HTTPError, match="404"):
        ask(url, {**body, "model": "other"})

    replica = told_load(admin)
    assert (replica["engine"], replica["load_stream"]) == ("vllm", "none")
    assert replica["kv_capacity"] > 0
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
