"""Ports, probes and metrics of an engine: how it is reached and what it is asked."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from kvasir.resource import labels
from kvasir.resource.strict_model import StrictModel, rule, rules

_Port = Annotated[int, Field(ge=1, le=65535)]
_Path = Annotated[
    str, StringConstraints(pattern=r"^/[-A-Za-z0-9._~/]*$", min_length=1, max_length=256)
]
MetricName = Annotated[
    str, StringConstraints(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$", min_length=1, max_length=128)
]
"""Name of a series, as Prometheus takes it."""
_SAME_PORT = "http, events and replay are different ports; change one"
_NO_EVENTS = "replay is of no use without events; give that port too"


class CustomPorts(StrictModel):
    """Ports of an engine of type custom."""

    model_config = rules(
        rule("!has(self.replay) || has(self.events)", _NO_EVENTS),
        rule(
            "(!has(self.events) || self.events != self.http) && (!has(self.replay)"
            " || !has(self.events) || !(self.replay in [self.http, self.events]))",
            _SAME_PORT,
        ),
    )

    http: _Port = labels.HTTP_PORT
    """Port of OpenAI's API."""

    events: _Port | None = None
    """Port of its KV events, by ZMQ in vLLM's format; none by default."""

    replay: _Port | None = None
    """Port at which missed KV events are asked for."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.replay is not None and self.events is None:
            raise ValueError(_NO_EVENTS)
        given = [port for port in (self.http, self.events, self.replay) if port is not None]
        if len(set(given)) < len(given):
            raise ValueError(_SAME_PORT)
        return self


class Probe(StrictModel):
    """When and how often an engine is asked."""

    path: _Path | None = None
    """Path that answers 200 if all is well, of type custom; the other types have their own."""

    period_seconds: Annotated[int, Field(ge=1, le=600)] | None = None
    """Seconds between two questions."""

    timeout_seconds: Annotated[int, Field(ge=1, le=600)] | None = None
    """Seconds that an answer may take, 5 by default."""


class CountedProbe(Probe):
    """A probe of an engine that runs."""

    failure_threshold: Annotated[int, Field(ge=1, le=100)] | None = None
    """Failures in a row that count."""


class Probes(StrictModel):
    """Probes of the engine's container. Routers ask the readiness path too, by themselves."""

    startup: Probe = Probe()
    """Asked until the engine serves for the first time, for lifecycle.startupSeconds at most; its
    path is readiness' unless it has one."""

    readiness: CountedProbe = CountedProbe()
    """Asked whether it serves; path /health by default."""

    liveness: CountedProbe = CountedProbe()
    """Asked whether it is alive, and started again if not; without a path an engine of type custom
    is alive while its port is open."""


class CustomMetrics(StrictModel):
    """Names of the series that tell the load of an engine of type custom. Without `running` routers
    go by the requests that they have in flight there."""

    path: _Path = "/metrics"
    """Path of its metrics, in Prometheus' text format."""

    running: MetricName
    """Gauge of the requests that it computes."""

    waiting: MetricName | None = None
    """Gauge of the requests in its queue."""

    kv_usage: MetricName | None = None
    """Gauge of the share of its KV cache that is in use, 0 to 1."""

    prompt_tokens: MetricName | None = None
    """Histogram of prompts' lengths in tokens, without _sum and _count."""
