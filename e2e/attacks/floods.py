"""h2load (nghttp2) over HTTP/1.1: floods of requests and of connections."""

import asyncio
import json
import re
import shutil
from pathlib import Path

PROGRAM = "h2load"


def check_installed() -> None:
    """Raises SystemExit without it."""
    if shutil.which(PROGRAM) is None:
        raise SystemExit("h2load is missing; on Debian: apt-get install nghttp2-client")


async def requests(port: int, seconds: int, folder: Path, model: str) -> int:
    """Flood it with requests of 64 connections at once, for a model; how many were answered."""
    body = folder / "flood.json"
    body.write_text(json.dumps({"model": model, "prompt": "word " * 100, "max_tokens": 1}))
    return await _run(
        *("-c", "64", "-D", str(seconds), "-d", str(body), "-H", "content-type: application/json"),
        f"http://127.0.0.1:{port}/v1/completions",
    )


async def connections(port: int, count: int) -> int:
    """Open so many connections, 500 a second, for one request each; how many were answered."""
    return await _run(
        *("-c", str(count), "-n", str(count), "-r", "500"), f"http://127.0.0.1:{port}/v1/models"
    )


async def _run(*options: str) -> int:
    process = await asyncio.create_subprocess_exec(
        *("nice", "-n", "10", PROGRAM, "--h1", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    text = output.decode(errors="replace")
    found = re.search(r"requests: \d+ total, \d+ started, (\d+) done", text)
    if found is None:
        raise RuntimeError(f"h2load said nothing of its requests: {text[-500:]}")
    return int(found[1])
