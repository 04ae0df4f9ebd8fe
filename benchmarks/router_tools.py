"""Shared parts of the router's benchmarks: native mock and load, pinned processes, the routers.

The mock and the load generator are C++ (`native/`), built when a benchmark starts: in Python they
would need more of the machine than the router does. Every router under test is pinned to the first
core that this process may use; mock, load and this process to the others.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import ssl
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from common import ROOT, free_port, wait_for

from kvasir_router import compiled
from kvasir_router.admission.keys import ApiKey, KeyFile, dump_keys, hash_key

NATIVE = ROOT / "benchmarks" / "native"
MODEL = "bench"
API_KEY = "sk-benchmark"
_SET_PARENT_DEATH_SIGNAL = 1  # prctl(2)
RIVALS = {"smg": "1.13.0", "vllm-router": "0.1.17"}
FORM = "compiled" if compiled.in_use() else "not compiled (`make compile`)"
"""Form of the router, as far as it runs from this environment."""


class Cores(NamedTuple):
    """Cores of the router, and of everything else."""

    router: set[int]
    others: set[int]

    @classmethod
    def split(cls) -> Cores:
        """Raises SystemExit on a machine with one core."""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            raise SystemExit("the router needs a core of its own: give this benchmark two.")
        return cls({cores[0]}, set(cores[1:]))


@dataclass(frozen=True)
class Native:
    """The built programs."""

    mock: Path
    load: Path


def build_native(folder: Path, *, tls: bool = False) -> Native:
    """Compile both programs into `folder`; with `tls` the load speaks TLS. Raises SystemExit
    without a C++ compiler."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise SystemExit("the load generator is C++: install a compiler, or name one in CXX.")
    native = Native(folder / "mock_engine", folder / ("https_load" if tls else "http_load"))
    speaks = ["-DTLS", "-lssl", "-lcrypto"] if tls else []
    for program, source in ((native.mock, "mock_engine"), (native.load, "http_load")):
        command: list[str | Path] = [compiler, "-O2", "-std=c++17", "-o", program]
        subprocess.run([*command, NATIVE / f"{source}.cpp", *speaks], check=True)
    return native


@contextmanager
def process(
    *command: str | Path, cpus: set[int], environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process on these cores, its output thrown away, ended at the end."""
    running = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | (environment or {}),
        preexec_fn=lambda: _pin(cpus),
    )
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def _pin(cpus: set[int]) -> None:
    """Pin the child process to these cores, and end it when the benchmark ends, however that
    does."""
    os.sched_setaffinity(0, cpus)
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def children(pid: int) -> list[int]:
    """The processes that its main thread has started, and that live."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def cpu_ns(pid: int) -> int:
    """Nanoseconds that all threads of the process and of its children have run, as the scheduler
    counts them."""
    total = sum(cpu_ns(child) for child in children(pid))
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except FileNotFoundError:
            continue  # a thread that ended just now
    return total


def resident_mb(pid: int) -> float:
    """Resident memory of the process, in 10^6 bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def chat_body(prompt: str, **fields: Any) -> bytes:
    """A chat request as clients send it: system text that others share, and a question."""
    half = len(prompt) // 2
    messages = [
        {"role": "system", "content": prompt[:half]},
        {"role": "user", "content": prompt[half:]},
    ]
    content = {"model": MODEL, "messages": messages, **fields}
    return json.dumps(content, separators=(",", ":")).encode()


def write_requests(path: Path, bodies: Iterable[bytes]) -> None:
    """The file of requests that http_load reads."""
    with path.open("wb") as file:
        for body in bodies:
            head = (
                "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n"
                f"User-Agent: benchmark\r\nAuthorization: Bearer {API_KEY}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            ).encode()
            file.write(struct.pack("<I", len(head) + len(body)) + head + body)


@dataclass(frozen=True)
class Measured:
    """Measurement of one load: its own counts, and what it cost the process under test."""

    counts: dict[str, Any]
    cpu_ns: int
    wall_seconds: float

    @property
    def saturation(self) -> float:
        """Share of its core that the process used."""
        return self.cpu_ns / 1e9 / self.wall_seconds

    def cpu_us(self, unit: str) -> float:
        """Return microseconds of CPU time for each of `answers` or `events`."""
        return float(self.cpu_ns / 1000 / max(self.counts[unit], 1))


def run_load(
    native: Native,
    cores: Cores,
    port: int,
    requests: Path,
    *,
    in_flight: int,
    warmup: float,
    seconds: float,
    pid: int,
    lossless: bool = True,
    opening: float = 0.0,
) -> Measured:
    """`opening`: seconds over which the first requests begin. Raises RuntimeError when the load
    breaks off; with `lossless` also when any answer was not good."""
    command = [native.load, port, requests, in_flight, warmup, seconds, opening]
    with subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: _pin(cores.others),
    ) as load:
        assert load.stdout is not None
        if load.stdout.readline() != b"begin\n":
            raise RuntimeError(f"http_load ended early with status {load.wait()}.")
        begin = cpu_ns(pid)
        load.stdout.readline()
        spent = cpu_ns(pid) - begin
        counts = json.loads(load.stdout.readline())
    if lossless and counts["errors"]:
        raise RuntimeError(f"{counts['errors']} answers were not good: {counts}.")
    return Measured(counts, spent, counts["seconds"])


class Router(NamedTuple):
    """A running router under test."""

    name: str
    port: int
    pid: int


def router_command(
    config: Path, port: int, *options: str, tokens: int = 1, checkout: Path = ROOT
) -> tuple[list[str | Path], dict[str, str]]:
    """Return the command of `kvasir router` and its environment; `tokens`: number of tokens that
    one token of its engines stands for; `checkout`: whose code and environment are used."""
    scaled = [Path(__file__).parent / "scaled_router.py", str(tokens)]
    program = scaled if tokens > 1 else ["-m", "kvasir_router"]
    python = sys.executable if checkout == ROOT else checkout / ".venv/bin/python"
    command = [python, *program, "--config", config]
    ports = ["--port", str(port), "--admin-port", str(free_port())]
    return [*command, *ports, *options], {"PYTHONPATH": f"{checkout}/api:{checkout}/router"}


def write_keys(path: Path, keys: Mapping[str, str]) -> None:
    """A key file: a key for each tenant."""
    entries = [
        ApiKey(id=tenant, tenant=tenant, hash=hash_key(key.encode()))
        for tenant, key in keys.items()
    ]
    path.write_bytes(dump_keys(KeyFile(keys=tuple(entries))))


@contextmanager
def kvasir_router(
    folder: Path,
    replicas: Sequence[int],
    cores: Cores,
    name: str,
    *options: str,
    checkout: Path = ROOT,
    tls: ssl.SSLContext | None = None,
) -> Iterator[Router]:
    """`kvasir router` in front of replicas at these ports, with API_KEY as the only key; `tls`:
    how to speak to one whose options say that it serves HTTPS."""
    config, port = folder / f"{name}.yaml", free_port()
    entries = [
        {"id": f"r{i}", "url": f"http://127.0.0.1:{port}", "engine": "kvasir"}
        for i, port in enumerate(replicas)
    ]
    config.write_text(json.dumps({"models": [{"name": MODEL, "replicas": entries}]}))
    keys = folder / f"{name}-keys.yaml"
    write_keys(keys, {"bench": API_KEY})
    command, environment = router_command(
        config, port, "--keys-file", str(keys), *options, checkout=checkout
    )
    with process(*command, cpus=cores.router, environment=environment) as running:
        url = f"{'http' if tls is None else 'https'}://127.0.0.1:{port}/ready"
        wait_for(url, within=20, process_alive=lambda: _alive(running), tls=tls)
        yield Router(name, port, running.pid)


def install_rivals(folder: Path, names: Sequence[str]) -> Path:
    """An environment of their own for other routers, from PyPI; its folder of programs."""
    environment = folder / "rivals"
    wanted = [f"{name}=={RIVALS[name]}" for name in names]
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "-q", *wanted]
    subprocess.run(pip, check=True)
    return environment / "bin"


@contextmanager
def rival(programs: Path, name: str, replicas: Sequence[int], cores: Cores) -> Iterator[Router]:
    """smg or vllm-router with its cache-aware policy and defaults."""
    port, metrics = free_port(), free_port()
    command: list[str | Path] = [programs / name, *(["launch"] if name == "smg" else [])]
    options = ["--host", "127.0.0.1", "--port", str(port), "--policy", "cache_aware"]
    options += ["--prometheus-port", str(metrics), "--worker-urls"]
    options += [f"http://127.0.0.1:{replica}" for replica in replicas]
    with process(*command, *options, cpus=cores.router) as running:
        wait_for(
            f"http://127.0.0.1:{port}/health", within=60, process_alive=lambda: _alive(running)
        )
        yield Router(name, port, running.pid)


def _alive(running: subprocess.Popen[bytes]) -> bool:
    return running.poll() is None
