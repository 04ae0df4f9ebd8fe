"""Measure the turns of an API process's event loop while many bodies of one kind come at once.

    python benchmarks/event_loop.py [--kinds chat,ids] [--save]

A stream goes on once a turn at most, so the longest turn is how long a body can hold it up. The
application is the engine's own over `--device sim`, with 131,072 tokens of context and 262,144 of
vocabulary, on asyncio's loop, whose turns can be timed; uvloop's cannot. The clients are another
process. The CPU time of the loop's thread is counted, so other work on the machine does not change
the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
from body_kinds import KINDS, RPC_KINDS, VOCABULARY
from common import TINY_MODEL, Figure, Report, Table

from kvasir_engine.core.channels import CoreConfig
from kvasir_engine.core.spawn import CoreProcess
from kvasir_engine.core.zmq_client import ZmqCoreClient
from kvasir_engine.server.http.app import create_app
from kvasir_engine.server.process.api import listen, make_server
from kvasir_engine.server.process.garbage_collection import collect_seldom
from kvasir_engine.server.rpc.start_grpc import start_grpc
from kvasir_engine.server.served_model import load_served_model
from kvasir_engine.server.server_settings import ServerSettings
from kvasir_engine.settings import make_settings

CONTEXT = 131_072
GOAL = "<= 20"
_METHOD = "/kvasir.engine.v1.Engine/"
_MILLISECONDS = 1e3


class TimedLoop(asyncio.SelectorEventLoop):
    """Event loop that keeps the CPU time of its longest turn."""

    longest = 0.0

    def _run_once(self) -> None:
        before = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.longest = max(self.longest, time.thread_time() - before)


def make_model(directory: Path) -> Path:
    """Return the tiny model's directory with a longer context, more tokens and no weights."""
    for name in ("tokenizer_config.json", "generation_config.json"):
        shutil.copy(TINY_MODEL / name, directory / name)
    tokenizer = json.loads((TINY_MODEL / "tokenizer.json").read_text())
    known = tokenizer["model"]["vocab"]
    known |= {f"<{token_id}>": token_id for token_id in range(len(known), VOCABULARY)}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((TINY_MODEL / "config.json").read_text())
    config |= {"max_position_embeddings": CONTEXT, "vocab_size": VOCABULARY}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@asynccontextmanager
async def engine(directory: Path) -> AsyncIterator[tuple[int, int]]:
    """A simulated core, and an API process's application in this one; its ports."""
    model = make_model(directory)
    made = make_settings(str(model), device="sim")
    core = CoreProcess(CoreConfig(made, str(model), num_clients=1))
    try:
        client = ZmqCoreClient(core.channels)
        settings = ServerSettings(
            model=str(model),
            model_dir=model,
            served_model_names=("bench",),
            max_logprobs=VOCABULARY,
        )
        app = create_app(client, load_served_model(settings), settings)
        server = make_server(app)
        with listen("127.0.0.1", 0) as listener:
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            collect_seldom()
            rpc = await start_grpc(app.state.server, 0, lambda watched: None)
            yield listener.getsockname()[1], rpc.port
            await rpc.stop(0)
            server.should_exit = True
            await serving
        client.close()
    finally:
        core.stop()


async def ask(loop: TimedLoop, kind: str, port: int, rpc_port: int) -> tuple[float, dict[str, int]]:
    """Return a kind's longest turn in milliseconds, and the answers' statuses."""
    command = [sys.executable, __file__, "--client", kind, str(port), str(rpc_port)]
    loop.longest = 0.0
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    out, _ = await process.communicate()
    return loop.longest * _MILLISECONDS, json.loads(out)


async def post(port: int, path: str, body: bytes) -> str:
    """Send one request; the status of its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    with suppress(ConnectionError):
        await writer.drain()
    answer = await reader.read()
    writer.close()
    return answer[9:12].decode() or "none"


async def call(channel: Any, method: str, message: bytes) -> str:
    """Make one call, and read its answer or the first of them; its status."""
    streams = method != "Abort"
    make = channel.unary_stream if streams else channel.unary_unary
    ask_for = make(_METHOD + method)
    try:
        if streams:
            stream = ask_for(message)
            await stream.read()
            stream.cancel()
        else:
            await ask_for(message)
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"


async def client(kind: str, port: int, rpc_port: int) -> None:
    """Send all of a kind at once; prints the statuses, as JSON."""
    if kind in RPC_KINDS:
        method, count, make = RPC_KINDS[kind]
        options = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{rpc_port}", options=options) as channel:
            message = make()
            statuses = await asyncio.gather(*(call(channel, method, message) for _ in range(count)))
    else:
        path, count, make = KINDS[kind]
        body = make()
        statuses = await asyncio.gather(*(post(port, path, body) for _ in range(count)))
    print(json.dumps({each: statuses.count(each) for each in sorted(set(statuses))}))


async def measure(kinds: list[str]) -> list[tuple[str, float, dict[str, int]]]:
    """Return each kind's longest turn and statuses."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, TimedLoop)
    found = []
    with tempfile.TemporaryDirectory() as directory:
        async with engine(Path(directory)) as ports:
            await ask(loop, "chat", *ports)  # warm-up
            for kind in kinds:
                longest, statuses = await ask(loop, kind, *ports)
                print(f"{kind:24} {longest:8.1f} ms  {statuses}", flush=True)
                found.append((kind, longest, statuses))
    return found


def main() -> None:
    """Print and save."""
    if sys.argv[1:2] == ["--client"]:
        asyncio.run(client(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kinds", default=",".join([*KINDS, *RPC_KINDS]))
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/cpu/")
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=TimedLoop) as runner:
        found = runner.run(measure(options.kinds.split(",")))
    Report(
        "event_loop",
        "Bodies beside streams",
        "The longest turn of an API process's event loop, CPU time, while a number of bodies of "
        "one kind come at once: how long they can hold up a stream.",
        [Figure(f"{kind}, longest turn", "ms", [longest], GOAL, 1) for kind, longest, _ in found],
        [
            Table(
                "Answers",
                ["kind", "statuses"],
                [
                    [kind, ", ".join(f"{status} x {count}" for status, count in statuses.items())]
                    for kind, _, statuses in found
                ],
            )
        ],
        packages=("uvicorn", "msgspec", "fastapi", "starlette", "tokenizers", "grpcio"),
    ).publish(save=options.save)


if __name__ == "__main__":
    main()
