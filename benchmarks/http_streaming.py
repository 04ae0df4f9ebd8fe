"""What streaming costs an API process: its CPU time a token, one SSE event a token.

    python benchmarks/http_streaming.py [--streams 256] [--tokens 200] [--step-ms 80] [--repeat 5]

The API process is this one: the real application on uvicorn and uvloop, over a real core process
with the simulated runner, whose steps are long enough that no two tokens of a stream share an
event. The clients are a child process. Everything a request costs is counted, divided by its
tokens; the share of events that carried exactly one token is printed beside it.
"""

import argparse
import asyncio
import gc
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from kvasir_engine.core.channels import CoreConfig
from kvasir_engine.core.spawn import CoreProcess
from kvasir_engine.core.zmq_client import ZmqCoreClient
from kvasir_engine.runner.profile import SpeedProfile
from kvasir_engine.server.app import create_app
from kvasir_engine.server.model import load_served_model
from kvasir_engine.server.settings import ServerSettings
from kvasir_engine.settings import make_settings

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}


def write_model(directory: Path, step_ms: float) -> None:
    """A configuration, a byte tokenizer, and a profile whose steps take `step_ms`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps(CONFIG))
    profile = replace(SpeedProfile.load("instant"), name="paced", overhead_ms=step_ms)
    (directory / "profile.json").write_text(json.dumps(asdict(profile)))


async def clients(port: int, streams: int, tokens: int) -> None:
    """The child's work: read every stream to its end and count the events."""
    events = 0

    async def read(number: int) -> None:
        nonlocal events
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        fields = {"prompt": f"stream {number}", "max_tokens": tokens, "stream": True}
        body = json.dumps({**fields, "ignore_eos": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(body) + body)
        tail = b""
        while b"[DONE]" not in tail:
            data = await reader.read(65536)
            if not data:
                raise ConnectionError("the server closed a stream early")
            events += data.count(b"data: ")
            tail = tail[-16:] + data
        writer.close()

    await asyncio.gather(*map(read, range(streams)))
    sys.stdout.write(str(events - streams))  # without [DONE]


async def measure(options: argparse.Namespace, port: int) -> dict[str, float]:
    """One run: microseconds of this process's CPU a token, and events a token."""
    numbers = [str(port), str(options.streams), str(options.tokens)]
    command = [sys.executable, __file__, "--clients", *numbers]
    began = time.process_time()
    child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    events, _ = await child.communicate()
    spent = time.process_time() - began
    tokens = options.streams * options.tokens
    return {"us_per_token": spent / tokens * 1e6, "events_per_token": int(events) / tokens}


async def serve(options: argparse.Namespace, directory: Path) -> list[dict[str, float]]:
    """Start core and server, measure, stop."""
    engine = make_settings(
        str(directory),
        device="sim",
        speed_profile=str(directory / "profile.json"),
        max_num_seqs=options.streams,
        max_num_batched_tokens=max(8192, options.streams),
    )
    core = CoreProcess(CoreConfig(engine, str(directory), num_clients=1))
    client = ZmqCoreClient(core.channels)
    ended = asyncio.create_task(asyncio.to_thread(core.wait))
    settings = ServerSettings(model="bench", model_dir=directory)
    app = create_app(client, load_served_model(settings), settings)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, http="httptools", ws="none", log_config=None, access_log=False)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await client.wait_ready()
        gc.freeze()  # as the API process does
        await asyncio.sleep(0.5)
        port = listener.getsockname()[1]
        runs = [await measure(options, port) for _ in range(options.repeat)]
        server.should_exit = True
        await serving
    client.close()
    await asyncio.to_thread(core.stop)
    await ended
    return runs


def main() -> None:
    """Print one line a run and the median."""
    if sys.argv[1:2] == ["--clients"]:
        uvloop.run(clients(*map(int, sys.argv[2:])))
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--step-ms", type=float, default=80.0)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        write_model(Path(directory), options.step_ms)
        runs = uvloop.run(serve(options, Path(directory)))
    for run in runs:
        print(f"{run['us_per_token']:.1f} us a token, {run['events_per_token']:.3f} events a token")
    median: Any = statistics.median(run["us_per_token"] for run in runs)
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    print(f"median {median:.1f} us of API-process CPU a token ({machine}, load {os.getloadavg()})")


if __name__ == "__main__":
    main()
