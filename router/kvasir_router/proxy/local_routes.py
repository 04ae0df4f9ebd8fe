"""Routes that the router answers itself."""

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import msgspec

from kvasir_router.admission.admission import Admission, forbidden
from kvasir_router.admission.keyring import Holder
from kvasir_router.fleet.fleet import Fleet
from kvasir_router.fleet.target import Target
from kvasir_router.telemetry import router_metrics
from kvasir_router.telemetry.router_metrics import Metrics
from kvasir_router.wire import responses as answers
from kvasir_router.wire.endpoints import (
    ENDPOINTS,
    HEALTH,
    METRICS,
    MODEL_PREFIX,
    ONE_MODEL,
    READY,
)
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.responses import Answer, RefusalError

_MAX_NAMES = 20
_MAX_NAME = 256
_ALL_PATHS = ", ".join(endpoint.path for endpoint in ENDPOINTS)


class LocalRoutes:
    """GET and HEAD of health, metrics and models; OPTIONS (without CORS)."""

    def __init__(
        self,
        fleet: Fleet,
        admission: Admission,
        metrics: Metrics,
        not_ready: Callable[[], str | None],
        warnings: Callable[[], list[str]],
    ) -> None:
        """Answer from these; `not_ready` returns why the router is not ready, or None; `warnings`
        what is not as it should be in a ready one."""
        self._warnings = warnings
        self._fleet = fleet
        self._admission = admission
        self._metrics = metrics
        self._not_ready = not_ready
        self._routes: dict[str, Callable[[], Answer]] = {
            HEALTH.path: self._health,
            READY.path: self._ready,
            METRICS.path: self._metrics_page,
        }

    def answer(self, request: Request) -> Answer:
        """Answer what no replica is asked for. Raises RefusalError."""
        if request.method == b"OPTIONS":
            return Answer(200, b"", lines=b"Allow: GET, HEAD, POST, DELETE, OPTIONS\r\n")
        endpoint = request.endpoint
        if request.method.decode() not in endpoint.methods:
            raise RefusalError(_no_route(request))
        if endpoint.path in self._routes:
            return self._routes[endpoint.path]()
        holder = self._admission.holder(request.credentials)
        if endpoint is ONE_MODEL:
            return self._one_model(unquote(request.path.removeprefix(MODEL_PREFIX)), holder)
        return self._models(holder)

    def unwanted_body(self, request: Request) -> RefusalError:
        """Make the refusal of a request that has a body and is for no replica."""
        method = request.method.decode()
        if method == "OPTIONS" or method in request.endpoint.methods:
            message = f"A {method} request has no body here; leave it out."
            return RefusalError(answers.error(400, message, "invalid_body"))
        return RefusalError(_no_route(request))

    def is_metrics(self, request: Request) -> bool:
        """Return whether the request is for metrics, and they are given on this port."""
        is_open = self._admission.is_open
        asked = request.endpoint is METRICS and request.method in (b"GET", b"HEAD")
        return asked and is_open

    def target(self, name: str, user: str | None, holder: Holder | None) -> Target:
        """Return what the name of a request stands for. Raises RefusalError: 404 if there is no
        such name."""
        target = self._fleet.find(name, user)
        if target is None:
            raise self.unknown_model(name, holder)
        return target

    def unknown_model(self, name: str, holder: Holder | None) -> RefusalError:
        """Make the refusal of a model; those that exist and the key may use are named."""
        if holder is not None and not holder.allows(name):
            return RefusalError(forbidden(holder, name))
        names = [known for known, _ in self._targets(holder)]
        listed = ", ".join(f"`{known}`" for known in names[:_MAX_NAMES]) or "none"
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        message = f"The model `{name[:_MAX_NAME]}` does not exist. Models here: {listed}{more}."
        return RefusalError(answers.error(404, message, "model_not_found", "model"))

    def _health(self) -> Answer:
        return Answer(200, b'{"status":"ok"}')

    def _ready(self) -> Answer:
        reason = self._not_ready()
        if reason is None:
            return Answer(200, msgspec.json.encode(ready_object(self._warnings())))
        for model, replica in self._fleet.replicas():
            if replica.served_names and model.name not in replica.served_names:
                served = ", ".join(replica.served_names[:_MAX_NAMES])[:_MAX_NAME]
                reason += f"; replica {replica.id} of model {model.name} serves only {served}"
                break
        return Answer(503, msgspec.json.encode({"status": "not ready", "reason": reason}))

    def _metrics_page(self) -> Answer:
        if not self._admission.is_open:
            return answers.error(404, "With API keys, metrics are on the admin port.", "not_found")
        return Answer(200, self._metrics.text(), router_metrics.CONTENT_TYPE)

    def _targets(self, holder: Holder | None) -> list[tuple[str, Target]]:
        """Return what the key may use, by name."""
        fleet = self._fleet
        found = ((name, fleet.find(name, name)) for name in fleet.names())
        return [
            (name, target)
            for name, target in found
            if target is not None and may_use(holder, name, target)
        ]

    def _models(self, holder: Holder | None) -> Answer:
        cards = [model_card(name, target) for name, target in self._targets(holder)]
        return Answer(200, msgspec.json.encode({"object": "list", "data": cards}))

    def _one_model(self, name: str, holder: Holder | None) -> Answer:
        target = self._fleet.find(name, name)
        if target is None:
            raise self.unknown_model(name, holder)
        if holder is not None and not may_use(holder, name, target):
            raise RefusalError(forbidden(holder, name))
        return Answer(200, msgspec.json.encode(model_card(name, target)))


def may_use(holder: Holder | None, name: str, target: Target) -> bool:
    """Return whether a request may use what its name stands for."""
    return holder is None or holder.may_use(name, target)


def ready_object(warnings: list[str]) -> dict[str, Any]:
    """Return the answer of /ready while the router is ready."""
    return {"status": "ready", "warnings": warnings} if warnings else {"status": "ready"}


def _no_route(request: Request) -> Answer:
    """Make the refusal of a path that is not in the table, or of a method that is not for it."""
    method, path = request.method.decode(), request.path[:_MAX_NAME]
    if allowed := ", ".join(request.endpoint.methods):
        message = f"{method} is not for {path}; use {allowed}."
        return answers.error(405, message, "method_not_allowed", allow=allowed)
    return answers.error(
        404, f"There is no route {method} {path}. Those here: {_ALL_PATHS}.", "not_found"
    )


def model_card(name: str, target: Target) -> dict[str, Any]:
    """OpenAI's model object, with the context length that every replica can serve; of an adapter it
    names the model as its parent, as vLLM does."""
    model = target.model
    card: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "kvasir",
        "root": target.adapter or model.name,
    }
    if target.adapter:
        card["parent"] = model.name
    lengths = [replica.max_model_len for replica in model.replicas.values()]
    known = [length for length in lengths if length is not None]
    if known:
        card["max_model_len"] = min(known)
    return card
