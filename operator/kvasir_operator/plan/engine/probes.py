"""Probes of the engine's container."""

from __future__ import annotations

from kvasir.kube.objects import Object
from kvasir.resource.engines.served_api_spec import CountedProbe, Probe, Probes
from kvasir.resource.spec import Spec

_TIMEOUT = 5


def probes(spec: Spec) -> Object:
    """Return the startup, readiness and liveness probe, by the engine's traits and the spec."""
    given, traits = spec.engine.probes or Probes(), spec.engine.traits
    ready = given.readiness.path or traits.ready_path
    startup = given.startup
    period = startup.period_seconds or 2
    failures = max(1, spec.lifecycle.startup_seconds // period)
    return {
        "startupProbe": _probe(startup, startup.path or ready, period, failures),
        "readinessProbe": _counted(given.readiness, ready, 2, 2),
        "livenessProbe": _counted(given.liveness, traits.live_path, 10, 3),
    }


def _counted(given: CountedProbe, path: str, period: int, failures: int) -> Object:
    return _probe(
        given,
        given.path or path,
        given.period_seconds or period,
        given.failure_threshold or failures,
    )


def _probe(given: Probe, path: str, period: int, failures: int) -> Object:
    """Return one; without a path it asks whether the port is open."""
    asked: Object = {"tcpSocket": {"port": "http"}}
    if path:
        asked = {"httpGet": {"path": path, "port": "http", "scheme": "HTTP"}}
    return {
        **asked,
        "periodSeconds": period,
        "timeoutSeconds": given.timeout_seconds or _TIMEOUT,
        "failureThreshold": failures,
    }
