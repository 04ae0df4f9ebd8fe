"""Real engines behind a router, and what ends them."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
from openai.lib.streaming.chat import ChatCompletionStreamState

ROOT = Path(__file__).parents[3]


SECRET = "fleet-secret-of-the-tests"


READY_SECONDS = 120.0


@dataclass
class Engine:
    """A `kvasir serve` process."""

    flags: tuple[str, ...]
    port: int
    log: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kvasir", "serve", *self.flags, "--port", str(self.port)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ
                | {
                    "PYTHONPATH": f"{ROOT}/api:{ROOT}/engine",
                    "OMP_NUM_THREADS": "1",
                    "KVASIR_FLEET_SECRET": SECRET,
                },
            )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            with suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/ready", trust_env=False).status_code == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(f"not ready: {self.log.read_text()}")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """As the kernel does it to one that has no memory left; what it started ends by itself."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Cutter:
    """A TCP relay before an engine. It ends a stream's connection as its engine's death would,
    after `cut_after` events and some bytes of the next one."""

    def __init__(self, engine: Engine, plan: list[tuple[int, int]]) -> None:
        self._engine = engine
        self._plan = plan
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            inner, outer = await asyncio.open_connection("127.0.0.1", self._engine.port)
            up = asyncio.create_task(self._requests(reader, outer))
            try:
                await self._answers(inner, writer)
            finally:
                up.cancel()
                outer.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.transport.abort()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        events, extra, seen = 0, 0, b""
        while data := await reader.read(65536):
            if b"text/event-stream" in data:
                events, extra = self._plan.pop(0) if self._plan else (0, 0)
                seen = b""
            if events:
                seen += data
                at = -1
                for _ in range(events):
                    at = seen.find(b"\n\n", at + 1)
                    if at < 0:
                        break
                if at >= 0:
                    keep = len(data) - (len(seen) - at - 2 - extra)
                    writer.write(data[: max(keep, 0)])
                    await asyncio.sleep(0.005)
                    return
            writer.write(data)
            await writer.drain()


class OpenAIClient:
    """What an application sees."""

    def __init__(self, url: str) -> None:
        # Without certificates, whose loading takes longer than a test.
        self._http = httpx.AsyncClient(trust_env=False, verify=False, timeout=60)
        self._client = openai.AsyncOpenAI(
            api_key="x", base_url=f"{url}/v1", http_client=self._http, max_retries=0
        )

    async def close(self) -> None:
        await self._client.close()

    async def chat(self, **fields: Any) -> dict[str, Any]:
        """A streamed chat, merged as the client's own `chat.completions.stream()` merges."""
        state = ChatCompletionStreamState()
        ids = set()
        stream = await self._client.chat.completions.create(stream=True, **fields)
        async for chunk in stream:
            ids.add((chunk.id, chunk.created, chunk.model))
            state.handle_chunk(chunk)
        assert len(ids) == 1
        merged = state.current_completion_snapshot.to_dict(exclude_none=True)
        return {"choices": merged["choices"], "usage": merged.get("usage")}

    async def unary(self, **fields: Any) -> str | None:
        answer = await self._client.chat.completions.create(**fields)
        return answer.choices[0].message.content
