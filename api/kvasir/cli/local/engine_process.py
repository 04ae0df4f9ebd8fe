"""The process of one replica, and its entry in the router's discovery file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kvasir.cli.local.child_process import ChildSpec
from kvasir.resource import LLMDeployment, engine_command
from kvasir.resource.engines.engine_args import (
    engine_variables,
    event_flags,
    expand,
    model_argument,
)

STOP_MARGIN = 10.0
"""Seconds that a process gets beyond its drain time before it is killed."""
LOOPBACK = "127.0.0.1"
_SECRETS = ("KVASIR_FLEET_SECRET", "KVASIR_API_KEY")
"""Variables that engines of others do not get."""


class EnginePorts(NamedTuple):
    """Ports that one engine listens on."""

    http: int
    grpc: int
    kv_events: int
    kv_replay: int


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """One replica of `owner`: its number and ports."""

    owner: LLMDeployment
    index: int
    ports: EnginePorts

    @property
    def name(self) -> str:
        """Name of the process and of the replica."""
        return f"{self.owner.name}-{self.index}"

    @property
    def url(self) -> str:
        """Base URL of its API."""
        return f"http://{LOOPBACK}:{self.ports.http}"

    def child(self, program: tuple[str, ...], env: Mapping[str, str]) -> ChildSpec:
        """Return the process; `program` runs Kvasir's CLI, `env` is what all processes have."""
        spec = self.owner.spec
        engine = spec.engine
        own = {each.name: each.value for each in engine.env if each.value is not None}
        command = self._command(program)
        if engine.type != "kvasir":
            env = {name: value for name, value in env.items() if name not in _SECRETS}
        if engine.type == "custom":
            own = {**self._variables(), **own}
            command = expand(command, own)
        ready = engine.custom_api.ready_path
        return ChildSpec(
            name=self.name,
            command=tuple(command),
            env={**env, **own},
            ready_url=f"{self.url}{ready}",
            grace=spec.lifecycle.drain_seconds + STOP_MARGIN,
        )

    def entry(self) -> dict[str, Any]:
        """Return the replica as the router's discovery file has it."""
        found: dict[str, Any] = {"id": self.name, "url": self.url}
        engine = self.owner.spec.engine
        if engine.type == "kvasir":
            found["grpc_port"] = self.ports.grpc
        elif engine.type == "custom":
            found |= {"engine": "openai", "ready_path": engine.custom_api.ready_path}
            if engine.metrics is not None:
                found["metrics"] = engine.metrics.model_dump(exclude_none=True)
        else:
            found["engine"] = engine.type
        if self._tells_events:
            found["kv_events"] = _zmq_address(self.ports.kv_events)
            found["kv_replay"] = _zmq_address(self.ports.kv_replay)
        return found

    @property
    def _tells_events(self) -> bool:
        spec = self.owner.spec
        return bool(spec.engine.traits.events) and (
            spec.engine.type == "kvasir" or spec.router.tokenizer is not None
        )

    def _command(self, program: tuple[str, ...]) -> list[str]:
        traits = self.owner.spec.engine.traits
        own = program if traits.contract else None
        command = engine_command(self.owner, host=LOOPBACK, port=self.ports.http, program=own)
        if traits.contract:
            command += ["--grpc-port", str(self.ports.grpc)]
        if self._tells_events:
            events, replay = self.ports.kv_events, self.ports.kv_replay
            command += event_flags(traits, _zmq_address(events), _zmq_address(replay))
        return command

    def _variables(self) -> dict[str, str]:
        spec = self.owner.spec
        tensor = spec.parallelism.tensor
        return engine_variables(
            self.owner,
            host=LOOPBACK,
            port=self.ports.http,
            model=model_argument(spec),
            tensor=tensor if isinstance(tensor, int) else spec.resources.gpus,
        )


def _zmq_address(port: int) -> str:
    return f"tcp://{LOOPBACK}:{port}"
