"""Processes for a file of LLMDeployments on one machine: one for each replica, and a router."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvasir.atomic_files import write_atomic
from kvasir.cli.local.child_process import ChildSpec
from kvasir.cli.local.engine_process import LOOPBACK, STOP_MARGIN, EnginePorts, EngineProcess
from kvasir.cli.local.gpu_assignment import assign_gpus, visible_gpus
from kvasir.cli.local.ports import free_ports
from kvasir.cli.local.upstreams import upstream_replicas
from kvasir.resource import LLMDeployment

PROGRAM = (sys.executable, "-P", "-m", "kvasir")
"""-P: a file in the user's directory must not take the place of a module."""
_RESPONSES = "KVASIR_RESPONSE_STORE"
"""Variable that says where the router keeps responses: here for as long as it runs."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The processes of one run."""

    engines: list[ChildSpec]
    router: ChildSpec
    url: str
    """URL at which clients reach the router."""
    models: list[str]
    """The first name of each model."""
    admin_url: str
    """The router's own page: replicas, load, cache hits."""


def plan_fleet(
    deployments: Sequence[LLMDeployment],
    *,
    host: str,
    port: int,
    runtime_dir: Path,
    environ: Mapping[str, str] = os.environ,
) -> Fleet:
    """Choose ports, GPUs and threads, and write the router's discovery file to `runtime_dir`.

    Raises GPUShortageError.
    """
    owners = [d for d in deployments for _ in range(_engines_of(d))]
    each = len(EnginePorts._fields)
    admin_port, *ports = free_ports(1 + each * len(owners))
    own_ports = [EnginePorts(*ports[i : i + each]) for i in range(0, len(ports), each)]
    common = _common_environment(environ, len(owners))
    gpus = _gpus(owners, environ)
    processes = [
        EngineProcess(owner, index, own)
        for owner, index, own in zip(owners, _indexes(owners), own_ports, strict=True)
    ]
    engines = [
        process.child(PROGRAM, {**common, **devices})
        for process, devices in zip(processes, gpus, strict=True)
    ]
    config = runtime_dir / "fleet.json"
    write_atomic(config, _discovery(deployments, processes, runtime_dir))
    drain = max((d.spec.lifecycle.drain_seconds for d in deployments), default=0)
    reachable = _reachable(host)
    command = [*PROGRAM, "router", "--config", str(config), "--host", host, "--port", str(port)]
    command += ["--admin-port", str(admin_port), "--drain-timeout", str(drain)]
    return Fleet(
        engines=engines,
        router=ChildSpec(
            name="router",
            command=tuple(command),
            env={_RESPONSES: f"sqlite:///{runtime_dir / 'responses.db'}", **common},
            ready_url=f"http://{reachable}:{port}/ready",
            grace=drain + STOP_MARGIN,
        ),
        url=f"http://{reachable}:{port}",
        models=[d.served_names[0] for d in deployments],
        admin_url=f"http://127.0.0.1:{admin_port}",
    )


def _engines_of(deployment: LLMDeployment) -> int:
    """Return how many engines are started; none for a model that servers of others serve."""
    return 0 if deployment.spec.external is not None else deployment.spec.replicas


def _indexes(owners: list[LLMDeployment]) -> list[int]:
    """The number of each replica within its deployment."""
    return [i - owners.index(owner) for i, owner in enumerate(owners)]


def _common_environment(environ: Mapping[str, str], engines: int) -> dict[str, str]:
    threads = max(1, len(os.sched_getaffinity(0)) // max(1, engines))
    return {
        "OMP_NUM_THREADS": str(threads),
        "KVASIR_LOG_FORMAT": "console",
        **environ,
        "KVASIR_FLEET_SECRET": secrets.token_urlsafe(32),
        "PYTHONUNBUFFERED": "1",
    }


def _gpus(owners: list[LLMDeployment], environ: Mapping[str, str]) -> list[dict[str, str]]:
    """CUDA_VISIBLE_DEVICES of each replica: as in a cluster, one that asks for none sees none. Here
    a simulated one has none, whatever it asks for."""
    specs = [owner.spec for owner in owners]
    needs = [0 if spec.engine.config.device == "sim" else spec.resources.gpus for spec in specs]
    available = visible_gpus(environ) if any(needs) else []
    return [{"CUDA_VISIBLE_DEVICES": ",".join(own)} for own in assign_gpus(needs, available)]


def _discovery(
    deployments: Sequence[LLMDeployment], processes: list[EngineProcess], runtime_dir: Path
) -> bytes:
    replicas = iter(processes)
    models = []
    for deployment in deployments:
        name, *aliases = deployment.served_names
        own = [next(replicas).entry() for _ in range(_engines_of(deployment))]
        own += upstream_replicas(deployment, runtime_dir)
        router = deployment.spec.router
        models.append(
            {
                "name": name,
                "aliases": aliases,
                "replicas": own,
                "policy": router.policy,
                "hold": router.hold_seconds,
                "tokenizer": router.tokenizer,
                "fallbacks": deployment.spec.fallbacks,
                "fallback_after": router.fallback_seconds,
            }
        )
    return json.dumps({"models": models}, indent=1).encode()


def _reachable(host: str) -> str:
    """A name for `host` to connect to: a wildcard address is reached by loopback."""
    name = {"0.0.0.0": LOOPBACK, "": LOOPBACK, "::": "::1"}.get(host, host)
    return f"[{name}]" if ":" in name else name
