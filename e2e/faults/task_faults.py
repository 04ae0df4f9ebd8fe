"""Each of the router's own tasks raises, returns or hangs while requests run."""

import asyncio
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from faults.processes import MODEL, BadEngine, Router
from faults.rig import Rig, Row

import kvasir_engine
from kvasir_router.admission.keys import ApiKey, KeyFile, dump_keys, hash_key

KEY = "a-key"
BACK_SECONDS = 1.0
HANG_SECONDS = 0.5
"""Until a task that goes on every so often is found to hang, beyond this time."""
_WAIT_SECONDS = 10.0
_OFTEN_SECONDS = 2.0
"""A task that goes on less often does nothing that requests wait for."""
_TINY = Path(kvasir_engine.__file__).parent / "assets" / "tiny"
_ONE = {
    *("queue", "deadlines", "scaling signals", "discovery", "key file", "peers", "probes"),
    "admin port",
    *("load stream", "prompts", "scrapes", "silence", "tokenizer process"),
}
_WORKERS = _ONE | {
    *("index link", "index link's watch", "others' load", "waiting counts", "workers' links"),
    *("heartbeat", "workers' load", "gathering"),
}


class FaultyRouter(Router):
    """A router that `faulty_router.py` runs, with a key file and a model with a tokenizer."""

    def __init__(self, folder: Path, workers: int) -> None:
        folder.mkdir()
        keys = folder / "keys.yaml"
        keys.write_bytes(dump_keys(KeyFile(keys=(ApiKey(id="a", hash=hash_key(KEY.encode())),))))
        options = ("--keys-file", str(keys), "--routers-dns", "localhost")
        super().__init__(folder, (*options, "--workers", str(workers)))
        self._folder = folder
        self._orders = 0

    async def launch(self, *arguments: str) -> None:
        """Process.launch, of the faulty router."""
        script = Path(__file__).with_name("faulty_router.py")
        await super().launch(str(script), str(self._folder), *arguments[2:])

    async def order(self, kind: str, name: str) -> int:
        """Give an order; return its number."""
        self._orders += 1
        new = self._folder / "order.new"
        new.write_text(f"{self._orders} {kind} {name}")
        new.replace(self._folder / "order")
        return self._orders

    def told(self, number: int) -> list[dict[str, Any]]:
        """Return what was told of an order."""
        file = self._folder / "told"
        lines = file.read_text().splitlines() if file.exists() else ()
        return [line for line in map(json.loads, lines) if line["order"] == number]

    async def names(self) -> dict[str, float | None]:
        """Return the tasks that there are, and how often each goes on."""
        number = await self.order("none", "*")
        await asyncio.sleep(0.5)
        return {name: each for told in self.told(number) for name, each in told["names"].items()}

    async def fail(self, kind: str, name: str) -> list[float | None]:
        """Have a task fail in each process that has it; return after how long each was back, None
        for one that never was."""
        number, until = await self.order(kind, name), time.monotonic() + _WAIT_SECONDS
        begun: dict[tuple[int, int], float] = {}
        back: dict[tuple[int, int], float] = {}
        settled = time.monotonic() + 0.2
        while time.monotonic() < until:
            await asyncio.sleep(0.02)
            for line in self.told(number):
                times = begun if "failed" in line else back
                times[line["pid"], line["task"]] = line.get("failed") or line["back"]
            if begun and begun.keys() == back.keys() and time.monotonic() > settled:
                break
        return [back[key] - at if key in back else None for key, at in begun.items()]


async def _start(rig: Rig, workers: int) -> tuple[FaultyRouter, BadEngine]:
    """Return when its engines are ready, and each kind of task runs."""
    folder = rig.folder / f"faulty{workers}"
    shutil.rmtree(folder, ignore_errors=True)
    router = FaultyRouter(folder, workers)
    scraped = BadEngine("scraped", folder, "ok", "vllm")
    await scraped.start()
    sized = {**scraped.entry, **rig.engines[0].events}
    models = [
        {"name": MODEL, "replicas": [engine.entry for engine in rig.engines]},
        {"name": "sized", "tokenizer": str(_TINY), "replicas": [sized]},
    ]
    await router.start(models)
    await router.until({engine.name: "ready" for engine in rig.engines})
    return router, scraped


async def _fault(rig: Rig, workers: int, kinds: Sequence[str], wanted: set[str]) -> Row:
    row = Row(f"each task {' or '.join(kinds)}, {workers} worker{'s' * (workers > 1)}")
    router, scraped = await _start(rig, workers)
    try:
        load = rig.load(12, MODEL, f"Authorization: Bearer {KEY}", port=router.port)
        await rig.settle(load)
        names = await router.names()
        row.expect(wanted <= names.keys(), f"not found: {sorted(wanted - names.keys())}")
        worst, faults = 0.0, 0
        for kind in kinds:
            for name in sorted(wanted & names.keys()):
                every = names[name]
                if kind == "hangs" and (every is None or every > _OFTEN_SECONDS):
                    continue
                limit = BACK_SECONDS if kind != "hangs" else (every or 0.0) + HANG_SECONDS + 0.5
                times = await router.fail(kind, name)
                row.expect(bool(times), f"{name} was not made to fail ({kind})")
                for seconds in times:
                    row.expect(seconds is not None, f"{name} was never back ({kind})")
                    row.within(seconds, limit, f"{name} was back ({kind})")
                    worst = max(worst, seconds or 0.0)
                faults += len(times)
        await rig.settle(load)
        row.count(await load.stop())
        row.recovered = worst
        row.note = f"{faults} faults in {len(wanted)} kinds of tasks"
    finally:
        await router.kill()
        await scraped.kill()
    return row


async def tasks_fail(rig: Rig) -> Row:
    """Each of its tasks raises, then each returns by mistake."""
    return await _fault(rig, 1, ("raises", "returns"), _ONE)


async def tasks_hang(rig: Rig) -> Row:
    """Each of its tasks that goes on by the clock waits for what never comes."""
    return await _fault(rig, 1, ("hangs",), _ONE)


async def worker_tasks_fail(rig: Rig) -> Row:
    """The same in a router of an index process and two workers."""
    return await _fault(rig, 2, ("raises", "returns"), _WORKERS)


async def worker_tasks_hang(rig: Rig) -> Row:
    """The same in a router of an index process and two workers."""
    return await _fault(rig, 2, ("hangs",), _WORKERS)
