"""Ask each Ready router which engines it serves; one that is slow or silent delays no other."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import httpx
import structlog

from kvasir.kube.objects import Object, name_of
from kvasir_operator.controller.view import View
from kvasir_operator.pod_http import FleetProof, NoAnswerError, ask
from kvasir_operator.settings import OperatorSettings

ANSWER_SECONDS = 3.0
"""Time that a router has for one answer."""
SILENT_SECONDS = 15.0
"""A Ready router that was asked for this long without an answer is not waited for."""
_PAUSE_SECONDS = 5.0
_MAX_BYTES = 4 << 20
_MAX_PROBLEM = 240

_log = structlog.get_logger("kvasir_operator.router_answers")


@dataclass
class _Router:
    """One router and its last answer."""

    name: str
    asked: float
    """When it was asked last."""
    unanswered: float
    """Since when it has been asked without an answer."""
    runs: frozenset[str] | None = None
    """The engines' runs in its last answer; None = it has never answered."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Reasons for which servers of others do not serve, by their runs, in its last answer."""
    task: asyncio.Task[None] | None = None
    reported: bool = False
    """The log has its silence."""


class RouterAnswers:
    """The last answer of every Ready router."""

    def __init__(
        self, view: View, settings: OperatorSettings, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._view = view
        self._settings = settings
        self._now = now
        self._routers: dict[str, _Router] = {}

    def client(self) -> httpx.AsyncClient:
        """Return a client that routers trust."""
        proof = FleetProof(self._settings.fleet_secret)
        return httpx.AsyncClient(timeout=ANSWER_SECONDS, trust_env=False, auth=proof)

    def ask(self, client: httpx.AsyncClient, answered: Callable[[], None]) -> None:
        """Ask every Ready router that is not being asked; `answered` is called for each answer."""
        now = self._now()
        ready = self._view.ready_routers(self._settings.router_namespace)
        by_uid = {str(pod["metadata"]["uid"]): pod for pod in ready}
        for uid in self._routers.keys() - by_uid.keys():
            self._forget(uid)
        for uid, pod in by_uid.items():
            router = self._routers.setdefault(uid, _Router(name_of(pod), now, now))
            if router.task is None or router.task.done():
                if now - router.asked > _PAUSE_SECONDS:
                    router.unanswered = now  # nobody asked for a while: that is no silence
                router.asked = now
                self._report(router)
                router.task = asyncio.create_task(self._ask(client, router, pod, answered))

    def confirmed(self, run: str) -> bool:
        """Tell if every Ready router that answers has `run` in its last answer; False if none
        answers."""
        counted = [each for each in self._routers.values() if not self._is_silent(each)]
        return bool(counted) and all(each.runs is not None and run in each.runs for each in counted)

    def problem(self, run: str) -> str:
        """Return why one of the Ready routers that answer does not send requests to a server of
        others; "" = none has told."""
        counted = [each for each in self._routers.values() if not self._is_silent(each)]
        return next((it for each in counted if (it := each.problems.get(run))), "")

    def silent(self) -> tuple[str, ...]:
        """Return the names of the Ready routers that are not waited for."""
        ready = self._view.ready_routers(self._settings.router_namespace)
        uids = {str(pod["metadata"]["uid"]) for pod in ready}
        silent = (it for uid, it in self._routers.items() if uid in uids and self._is_silent(it))
        return tuple(sorted(it.name for it in silent))

    async def close(self) -> None:
        """End what is being asked."""
        tasks = [each.task for each in self._routers.values() if each.task is not None]
        for uid in list(self._routers):
            self._forget(uid)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _report(self, router: _Router) -> None:
        if self._is_silent(router) and not router.reported:
            _log.warning("a Ready router does not answer: not waited for", router=router.name)
            router.reported = True

    def _is_silent(self, router: _Router) -> bool:
        return router.asked - router.unanswered >= SILENT_SECONDS

    def _forget(self, uid: str) -> None:
        task = self._routers.pop(uid).task
        if task is not None:
            task.cancel()

    async def _ask(
        self, client: httpx.AsyncClient, router: _Router, pod: Object, answered: Callable[[], None]
    ) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                port = self._settings.router_admin_port
                status, body = await ask(client, pod, port, "/serving", _MAX_BYTES)
            if status != httpx.codes.OK:
                raise NoAnswerError(f"it answers with status {status}")
            answer = json.loads(body)
            router.runs = frozenset(str(each) for each in answer["serving"])
            problems = answer.get("problems") or {}  # routers of earlier versions have none
            router.problems = {str(run): str(why)[:_MAX_PROBLEM] for run, why in problems.items()}
        except (
            NoAnswerError,
            TimeoutError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
        ) as error:
            _log.debug("a router does not answer", router=router.name, error=repr(error))
        else:
            router.unanswered, router.reported = self._now(), False
            answered()
