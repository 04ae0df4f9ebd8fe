"""Cost of TLS to clients: CPU time of the router's process a request and an event.

    python benchmarks/router_tls.py [--policy kv_aware] [--seconds 4] [--repeat 5] [--save]

Two routers that differ in `--tls-cert` alone, each pinned to the same core, take turns at the loads
of router_overhead.py, over connections that stay open: what a handshake costs is not in it. The
certificate's key is of the curve P-256; the load takes OpenSSL's first choice of ciphers. It needs
OpenSSL's headers and program.
"""

from __future__ import annotations

import argparse
import random
import ssl
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from common import Figure, Report, Table, free_port, warn_if_busy
from router_overhead import REPLICAS, WORKLOADS, Runs, Workload, show, write_workload
from router_tools import FORM, Cores, Native, Router, build_native, kvasir_router, process, run_load

PLAIN, TLS = "http", "https"
WORKS = tuple(work for work in WORKLOADS if work.name in ("2kb", "64kb", "chunk", "paced"))


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Return the files of a self-signed certificate and of its key."""
    certificate, key = folder / "tls.crt", folder / "tls.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "1", "-subj", "/CN=router", "-keyout", str(key), "-out"]
    command.append(str(certificate))
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def trusting() -> ssl.SSLContext:
    """A client's context that takes any certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def measure(folder: Path, sides: list[tuple[Router, Native]], options: argparse.Namespace) -> Runs:
    """Measure both routers with every work, round by round."""
    cores, runs, source = Cores.split(), Runs(), random.Random(1)
    for work in WORKS:
        write_workload(folder / work.name, work, source)
    for round_ in range(options.repeat):
        for work in WORKS:
            for router, native in sides if round_ % 2 else reversed(sides):
                measured = run_load(
                    native,
                    cores,
                    router.port,
                    folder / work.name,
                    in_flight=work.in_flight,
                    warmup=options.warmup if round_ == 0 else 1.0,
                    seconds=options.seconds,
                    pid=router.pid,
                )
                runs.add(work, router.name, measured)
                show(work, router, measured)
    return runs


def run(options: argparse.Namespace, folder: Path) -> None:
    """Start mock and routers, measure, publish."""
    certificate, key = make_certificate(folder)
    natives = [build_native(folder, tls=tls) for tls in (False, True)]
    cores, ports = Cores.split(), [free_port() for _ in range(REPLICAS)]
    policy = ("--policy", options.policy)
    with ExitStack() as stack:
        stack.enter_context(process(natives[0].mock, *map(str, ports), cpus=cores.others))
        time.sleep(0.2)
        plain = kvasir_router(folder, ports, cores, PLAIN, *policy)
        files = ("--tls-cert", str(certificate), "--tls-key", str(key))
        secure = kvasir_router(folder, ports, cores, TLS, *policy, *files, tls=trusting())
        sides = list(zip(map(stack.enter_context, (plain, secure)), natives, strict=True))
        runs = measure(folder, sides, options)
    publish(runs, options)


def publish(runs: Runs, options: argparse.Namespace) -> None:
    """Publish CPU times with TLS, and over those without it."""
    figures = []
    for work in WORKS:
        unit = "µs" if work.unit == "answers" else "µs an event"
        figures.append(Figure(f"CPU with TLS, {work.name}", unit, runs.cpu_us(work, TLS)))
        figures.append(Figure(f"CPU without, {work.name}", unit, runs.cpu_us(work, PLAIN)))
    Report(
        name="router_tls",
        title="The router's overhead with TLS to clients",
        work=(
            f"CPU time of one router process on one core with {REPLICAS} mock replicas, access log "
            f"and metrics on, {FORM}, policy {options.policy}; with and without TLS to clients in "
            "turn, over connections that stay open; the replicas are reached without TLS."
        ),
        figures=figures,
        tables=[
            Table(
                "CPU time over that without TLS",
                ["work", "geometric mean", "95 % confidence interval"],
                [_ratio(runs, work) for work in WORKS],
            )
        ],
        packages=("uvloop", "httptools", "msgspec"),
        folder="",
    ).publish(save=options.save)


def _ratio(runs: Runs, work: Workload) -> list[str]:
    mean, low, high = runs.mean_ratio(work, TLS, PLAIN)
    return [work.name, f"{mean:.3f}", f"{low:.3f} to {high:.3f}"]


def main() -> None:
    """Parse, run, publish."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--policy", default="kv_aware")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--warmup", type=float, default=4.0, help="of the first round")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    warn_if_busy()
    with tempfile.TemporaryDirectory() as folder:
        run(options, Path(folder))


if __name__ == "__main__":
    main()
