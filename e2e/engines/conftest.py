"""`transformers serve` as engines of type custom, and a router in front of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml

from kvasir.cli.local.child_process import ChildSpec
from kvasir.cli.local.engine_process import EnginePorts, EngineProcess
from kvasir.cli.local.ports import free_ports
from kvasir.resource import LLMDeployment

ROOT = Path(__file__).parents[2]
TINY = ROOT / "engine/kvasir_engine/assets/tiny"
SERVE = ROOT / ".venv/engines/bin/transformers"
DEADLINE = 300.0
"""Seconds for whatever is waited for: engines import torch, beside others on the same cores."""


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    """Fail where the engine is not installed."""
    assert SERVE.exists(), "The engine is missing; make engines."


@pytest.fixture(scope="session")
def resource() -> dict[str, Any]:
    """The LLMDeployment. The engine answers to the name alone that it was started with, so it is
    started beside its model, by the model's folder's name."""
    serve = 'cd "$KVASIR_MODEL/.." && exec "$SERVE" serve "$KVASIR_SERVED_NAME"'
    flags = '--host "$KVASIR_HOST" --port "$KVASIR_PORT" --device cpu'
    return {
        "apiVersion": "kvasir.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": TINY.name},
        "spec": {
            "model": {"uri": f"file://{TINY}"},
            "engine": {
                "type": "custom",
                "command": ["sh", "-c", f"{serve} {flags}"],
                "env": [
                    {"name": "SERVE", "value": str(SERVE)},
                    {"name": "OMP_NUM_THREADS", "value": "1"},
                    {"name": "HF_HUB_OFFLINE", "value": "1"},
                ],
                "probes": {"readiness": {"path": "/health"}},
                "drainsOnSigterm": True,
            },
        },
    }


class Running:
    """A process of the fleet."""

    def __init__(self, child: ChildSpec, log: Path) -> None:
        self.name, self._ready = child.name, child.ready_url
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                child.command, env=dict(child.env), stdout=out, stderr=subprocess.STDOUT
            )
        self._log = log

    def wait_ready(self) -> None:
        """Wait until it answers that it serves."""
        wait_until(self._is_ready, f"{self.name} is ready")

    def terminate(self) -> int:
        """Send SIGTERM; return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE)

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self._log.read_text()
        try:
            with urlopen(self._ready, timeout=30) as answer:
                return bool(answer.status == 200)
        except (URLError, ConnectionError, TimeoutError):
            return False


class Fleet:
    """A router by a discovery file, and engines that come and go."""

    def __init__(self, resource: dict[str, Any], folder: Path) -> None:
        self._owner = LLMDeployment.model_validate(resource)
        self._folder = folder
        self._config = folder / "fleet.json"
        self._entries: dict[str, dict[str, Any]] = {}
        self._running: list[Running] = []
        self.write()
        port, admin = free_ports(2)
        self.url, self.admin = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}"
        words = ["router", "--config", str(self._config), "--port", str(port)]
        words += ["--admin-port", str(admin)]
        child = ChildSpec(
            "router",
            (sys.executable, "-m", "kvasir", *words),
            {**os.environ, "KVASIR_FLEET_SECRET": "a secret of sixteen or more"},
            f"{self.admin}/metrics",
            10.0,
        )
        self._start(child).wait_ready()

    def add(self, index: int) -> Running:
        """Start an engine and let the router know of it."""
        [port] = free_ports(1)
        engine = EngineProcess(self._owner, index, EnginePorts(port, 0, 0, 0))
        running = self._start(engine.child((), os.environ))
        self._entries[engine.name] = engine.entry()
        self.write()
        running.wait_ready()
        wait_until(lambda: self.replica(engine.name)["health"] == "ready", "the router takes it")
        return running

    def drain(self, name: str) -> None:
        """Send it nothing new, and wait until it has nothing left."""
        self._entries[name]["draining"] = True
        self.write()
        wait_until(
            lambda: self.replica(name)["draining"] and not self.replica(name)["in_flight"],
            f"{name} has drained",
        )

    def replica(self, name: str) -> dict[str, Any]:
        """The router's account of a replica."""
        with urlopen(f"{self.admin}/debug/fleet", timeout=30) as answer:
            replicas = json.load(answer)["models"][0]["replicas"]
        found: dict[str, dict[str, Any]] = {each["id"]: each for each in replicas}
        return found.get(name, {"health": "unknown"})

    def write(self) -> None:
        """Write the discovery file as it is wanted now."""
        model = {"name": self._owner.name, "replicas": list(self._entries.values())}
        fresh = self._config.with_suffix(".new")
        fresh.write_text(json.dumps({"models": [model]}))
        fresh.replace(self._config)

    def stop(self) -> None:
        """End everything."""
        for each in self._running:
            each.process.kill()
            each.process.wait()

    def _start(self, child: ChildSpec) -> Running:
        self._running.append(Running(child, self._folder / f"{child.name}.log"))
        return self._running[-1]


def wait_until(condition: Callable[[], Any], what: str) -> None:
    """Wait for something to become so."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"not within {DEADLINE} s: {what}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def fleet(resource: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet without engines."""
    found = Fleet(resource, tmp_path_factory.mktemp("fleet"))
    yield found
    found.stop()


@pytest.fixture
def write_resource(resource: dict[str, Any], tmp_path: Path) -> Path:
    """The LLMDeployment in a file."""
    file = tmp_path / "models.yaml"
    file.write_text(yaml.safe_dump(resource))
    return file
