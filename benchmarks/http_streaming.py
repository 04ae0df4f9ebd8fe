"""Cost of streaming for an API process: its CPU time a token, one SSE event a token.

    python benchmarks/http_streaming.py [--tokens 200] [--step-ms 40] [--repeat 5] [--save]

`kvasir serve --device sim` with the tiny model's configuration and tokenizer, whose steps are long
enough that no two tokens of a stream share an event. The clients are a process of their own that
reads raw sockets. Everything the API process does for a request is counted (/proc/PID/stat, all
threads) and divided by its tokens; events and socket reads a token are shown beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import uvloop
from common import (
    TINY_MODEL,
    Figure,
    Report,
    children,
    command_line,
    cpu_seconds,
    free_port,
    wait_for,
    warn_if_busy,
)

from kvasir_engine.sim.latency_model import SpeedProfile

START_SECONDS = 60.0
LEAST_EVENTS = 0.999
"""A token: on a machine that stalls for a step, two tokens may come in one event."""
DATA, DONE = b"data: ", b"data: [DONE]"


@dataclass
class Seen:
    """Counts of events and socket reads that the clients have made."""

    events: int = 0
    reads: int = 0


async def stream(port: int, number: int, tokens: int, seen: Seen) -> None:
    """Send one request and read its answer to the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    message = {"role": "user", "content": f"This is stream {number}."}
    fields = {"messages": [message], "max_tokens": tokens, "stream": True, "ignore_eos": True}
    body = json.dumps({"model": "bench", **fields}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    tail = b""
    while DONE not in tail:
        data = await reader.read(65536)
        if not data:
            raise ConnectionError("the server closed a stream early.")
        # The kept end is shorter than the mark, so no event is counted twice.
        seen.events += (tail[-(len(DATA) - 1) :] + data).count(DATA)
        seen.reads += 1
        tail = (tail + data)[-2 * len(DONE) :]
    writer.close()


async def clients(port: int, streams: int, tokens: int) -> None:
    """All streams at once; prints events of text and reads, as JSON."""
    seen = Seen()
    await asyncio.gather(*(stream(port, number, tokens, seen) for number in range(streams)))
    # A stream also has an event with the role and [DONE].
    seen.events -= 2 * streams
    print(json.dumps(asdict(seen)))


@contextmanager
def serve(directory: Path, step_ms: float, streams: int) -> Iterator[tuple[int, int]]:
    """A simulated engine whose steps take `step_ms`; its port and its API process."""
    profile = replace(SpeedProfile.load("instant"), name="paced", overhead_ms=step_ms)
    path = directory / "profile.json"
    path.write_text(json.dumps(asdict(profile)))
    port = free_port()
    command = [sys.executable, "-m", "kvasir", "serve", "sim", "--device", "sim"]
    command += ["--model-config", str(TINY_MODEL), "--speed-profile", str(path)]
    command += ["--port", str(port), "--max-num-seqs", str(streams)]
    command += ["--served-model-name", "bench"]
    with subprocess.Popen(command) as engine:
        try:
            url = f"http://127.0.0.1:{port}/ready"
            wait_for(url, within=START_SECONDS, process_alive=lambda: engine.poll() is None)
            yield port, next(p for p in children(engine.pid) if "server.process" in command_line(p))
        finally:
            engine.terminate()


def measure(port: int, api: int, streams: int, tokens: int) -> dict[str, float]:
    """Return one run's microseconds of the API process a token, and events and reads a token."""
    before = cpu_seconds(api)
    numbers = [str(port), str(streams), str(tokens)]
    command = [sys.executable, __file__, "--clients", *numbers]
    seen = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    spent = cpu_seconds(api) - before
    total = streams * tokens
    return {
        "us": spent / total * 1e6,
        "events": seen["events"] / total,
        "reads": seen["reads"] / total,
    }


def main() -> None:
    """Print and save."""
    if sys.argv[1:2] == ["--clients"]:
        uvloop.run(clients(*map(int, sys.argv[2:])))
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=200, help="of each stream")
    parser.add_argument("--step-ms", type=float, default=40.0)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/cpu/")
    options = parser.parse_args()
    warn_if_busy()
    with (
        tempfile.TemporaryDirectory() as directory,
        serve(Path(directory), options.step_ms, options.streams) as (port, api),
    ):
        measure(port, api, options.streams, 8)  # warm-up
        runs = [measure(port, api, options.streams, options.tokens) for _ in range(options.repeat)]
    report = Report(
        "http_streaming",
        "Streaming over HTTP",
        f"{options.streams} streams of {options.tokens} tokens of `/v1/chat/completions` from a "
        f"simulated engine with steps of {options.step_ms:g} ms, one SSE event a token; CPU time "
        "of the API process, its requests' admission and tokenising included.",
        [
            Figure("API process, CPU a token", "µs", [run["us"] for run in runs], "<= 80", 1),
            Figure("SSE events a token", "", [run["events"] for run in runs], "", 3),
            Figure("socket reads a token", "", [run["reads"] for run in runs], "", 3),
        ],
        packages=("uvicorn", "uvloop", "msgspec", "fastapi", "starlette", "tokenizers"),
    )
    report.publish(save=options.save)
    if min(run["events"] for run in runs) < LEAST_EVENTS:
        sys.exit("fewer events than tokens: raise --step-ms, or measure on an idle machine.")


if __name__ == "__main__":
    main()
