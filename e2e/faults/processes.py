"""Engines and a router as processes of their own, and what ends them."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from kvasir.cli.local.ports import free_ports

ROOT = Path(__file__).parents[2]
SECRET = "fleet-secret"
MODEL = "sim"
READY_SECONDS = 120.0

_ENVIRONMENT = os.environ | {
    "PYTHONPATH": f"{ROOT}/api:{ROOT}/engine:{ROOT}/router",
    "OMP_NUM_THREADS": "1",
}
_SERVE = (
    *("-m", "kvasir", "serve", MODEL, "--device", "sim", "--model-config", "builtin://kvasir-tiny"),
    *("--speed-profile", "h200-llama-3.1-8b-bf16", "--drain-timeout", "2"),
)


class Process:
    """A command and whatever it starts, as one process group; the same ports at each start."""

    def __init__(self, name: str, folder: Path, port: int, secret: str = SECRET) -> None:
        self.name = name
        self.port = port
        self.ports = [port]
        """All that it listens on."""
        self.log = folder / f"{name}.log"
        self._secret = secret
        self._process: asyncio.subprocess.Process | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def resident(self) -> int:
        """Bytes of memory of the first process of the group."""
        assert self._process is not None
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    async def launch(self, *arguments: str) -> None:
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, *arguments),
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=_ENVIRONMENT | {"KVASIR_FLEET_SECRET": self._secret},
            )

    @property
    def group(self) -> int:
        """Its process group: whatever it has started, too."""
        assert self._process is not None
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send the signal to all of its processes."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    async def ended(self) -> int:
        """The exit status, once nothing of it listens any more: children may end a little later."""
        assert self._process is not None
        status = await self._process.wait()
        async with asyncio.timeout(10):
            for port in self.ports:
                while await listens(port):  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
        return status

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if self._process is not None:
            await self.ended()


class SimEngine(Process):
    """A `kvasir serve --device sim` with all its feeds; `options` as on the command line."""

    def __init__(
        self, name: str, folder: Path, secret: str = SECRET, options: Sequence[str] = ()
    ) -> None:
        http, self._grpc, self._events, self._replay = free_ports(4)
        super().__init__(name, folder, http, secret)
        self.ports = [http, self._grpc, self._events, self._replay]
        self._options = options

    async def start(self) -> None:
        """Begin to start."""
        await self.launch(
            *(*_SERVE, "--port", str(self.port), "--grpc-port", str(self._grpc)),
            *("--kv-events-endpoint", f"tcp://127.0.0.1:{self._events}"),
            *("--kv-events-replay-endpoint", f"tcp://127.0.0.1:{self._replay}"),
            *self._options,
        )

    async def is_ready(self) -> bool:
        """Return True if the engine itself answers that it is ready."""
        try:
            return bool(json.loads(await get(self.port, "/ready"))["status"] == "ready")
        except (OSError, ValueError, TimeoutError):
            return False

    async def wait_ready(self) -> None:
        """Return once it answers that it is ready; fail with its log if it ended instead."""
        async with asyncio.timeout(READY_SECONDS):
            while not await self.is_ready():
                assert self.running, self.log.read_text()
                await asyncio.sleep(0.02)

    @property
    def events(self) -> dict[str, str]:
        """Addresses of the engine's block events."""
        return {
            "kv_events": f"tcp://127.0.0.1:{self._events}",
            "kv_replay": f"tcp://127.0.0.1:{self._replay}",
        }

    @property
    def entry(self) -> dict[str, Any]:
        """Entry of the engine in the discovery file."""
        url = f"http://127.0.0.1:{self.port}"
        return {"id": self.name, "url": url, "grpc_port": self._grpc, **self.events}


class BadEngine(Process):
    """A `bad_engine.py` in one of its modes."""

    def __init__(self, name: str, folder: Path, mode: str, kind: str = "kvasir") -> None:
        super().__init__(name, folder, free_ports(1)[0])
        self._mode = mode
        self._kind = kind
        self.served_name = MODEL
        """The model's name; to be set before the start."""

    async def start(self) -> None:
        script = Path(__file__).with_name("bad_engine.py")
        await self.launch(
            *(str(script), "--port", str(self.port), "--mode", self._mode),
            *("--served-model-name", self.served_name),
        )

    @property
    def entry(self) -> dict[str, Any]:
        return {"id": self.name, "url": f"http://127.0.0.1:{self.port}", "engine": self._kind}


class Router(Process):
    """A router for models; `options` as on the command line."""

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        port, self.admin_port = free_ports(2)
        super().__init__("router", folder, port)
        self._config = folder / "fleet.yaml"
        self._options = options

    async def start(self, models: list[dict[str, Any]]) -> None:
        self.configure(models)
        await self.launch(
            *("-m", "kvasir_router", "--config", str(self._config), "--no-access-log"),
            *("--port", str(self.port), "--admin-port", str(self.admin_port), *self._options),
        )

    def configure(self, models: list[dict[str, Any]]) -> None:
        """Write the models that exist now: the router looks twice a second."""
        new = self._config.with_suffix(".new")
        new.write_text(yaml.safe_dump({"models": models}))
        new.replace(self._config)

    async def health(self, model: str = MODEL) -> dict[str, str]:
        """Each replica's, by its id."""
        with suppress(OSError, ValueError, asyncio.IncompleteReadError):
            for each in json.loads(await get(self.admin_port, "/debug/fleet"))["models"]:
                if each["name"] == model:
                    return {replica["id"]: replica["health"] for replica in each["replicas"]}
        return {}

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels."""
        total = 0.0
        for line in (await get(self.admin_port, "/metrics")).decode().splitlines():
            wanted = line.startswith(f"kvasir_router_{name}")
            if wanted and all(f'{key}="{value}"' in line for key, value in labels.items()):
                total += float(line.rsplit(" ", 1)[1])
        return total

    async def until(self, wanted: dict[str, str], model: str = MODEL) -> float:
        """Wait until these replicas have this health; returns the time by the monotonic clock."""
        async with asyncio.timeout(READY_SECONDS):
            while True:
                health = await self.health(model)
                if all(health.get(name) in each.split("|") for name, each in wanted.items()):
                    return time.monotonic()
                await asyncio.sleep(0.02)


async def get(port: int, path: str) -> bytes:
    """The body of a GET."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        async with asyncio.timeout(10):
            return (await reader.read()).partition(b"\r\n\r\n")[2]
    finally:
        writer.close()


async def listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
