"""Servers under attack: a router before an engine and two backends, or an engine by itself."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faults.processes import MODEL, Process, Router, SimEngine

from kvasir.cli.local.ports import free_ports

HEADER_SECONDS = 3
_ROUTER_OPTIONS = (
    *("--header-timeout", str(HEADER_SECONDS), "--body-timeout", str(HEADER_SECONDS)),
    *("--send-timeout", "10", "--policy", "least_load"),
)


class Backend(Process):
    """A `backend.py` that serves a model of its kind's name."""

    def __init__(self, kind: str, folder: Path) -> None:
        super().__init__(kind, folder, free_ports(1)[0])

    async def start(self) -> None:
        script = Path(__file__).with_name("backend.py")
        await self.launch(str(script), str(self.port), self.name, self.name)

    @property
    def model(self) -> dict[str, Any]:
        """Entry of its model in the discovery file."""
        replica = {"id": self.name, "url": f"http://127.0.0.1:{self.port}", "engine": "vllm"}
        return {"name": self.name, "replicas": [replica]}


class Target:
    """A server under attack, and what is behind it."""

    def __init__(self, name: str, folder: Path) -> None:
        folder.mkdir()
        self.name = name
        self.engine = SimEngine("engine", folder)
        self.server: Process = self.engine
        self.backends: list[Backend] = []
        self.model = MODEL
        """Model that the well-behaved client asks for."""
        self.cheap_model = MODEL
        """One whose answers cost little."""

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def is_router(self) -> bool:
        return isinstance(self.server, Router)

    async def start(self) -> None:
        """Return when it serves."""
        await self.engine.start()
        await self.engine.wait_ready()

    async def stop(self) -> None:
        for process in (self.server, *self.backends, self.engine):
            await process.kill()

    def resident(self) -> int:
        """Bytes of memory of all of the server's processes."""
        pages = (int(text.split()[1]) for text in self._told_by("statm", self.server))
        return sum(pages) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        """CPU time that the server's processes have taken, and the backends'."""
        told = self._told_by("stat", self.server, *self.backends)
        ticks = (text.rpartition(")")[2].split() for text in told)
        return sum(int(each[11]) + int(each[12]) for each in ticks) / os.sysconf("SC_CLK_TCK")

    def _told_by(self, name: str, *servers: Process) -> Iterator[str]:
        """Yield a file of /proc of each of these servers' processes."""
        groups = {server.group for server in servers}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if os.getpgid(int(folder.name)) in groups:
                    yield (folder / name).read_text()
            except OSError:
                continue  # it has ended

    def tracebacks(self) -> str:
        """Return the end of the server's log if a defect is in it."""
        log = self.server.log.read_text(errors="replace")
        return log[-2000:] if "Traceback" in log else ""


class RouterTarget(Target):
    """A router of so many workers, in front of the engine and of both backends."""

    def __init__(self, workers: int, folder: Path) -> None:
        super().__init__(f"router, {workers} worker{'s' * (workers > 1)}", folder)
        self._router = Router(folder, [*_ROUTER_OPTIONS, "--workers", str(workers)])
        self.server = self._router
        self.backends = [Backend(kind, folder) for kind in ("strict", "lenient")]
        self.cheap_model = "strict"

    async def start(self) -> None:
        """Target.start."""
        await self.engine.start()
        for backend in self.backends:
            await backend.start()
        models = [backend.model for backend in self.backends]
        await self._router.start([{"name": MODEL, "replicas": [self.engine.entry]}, *models])
        await self._router.until({"engine": "ready"})
        for backend in self.backends:
            await self._router.until({backend.name: "ready"}, backend.name)
