"""Ask running downloads for their progress."""

from __future__ import annotations

import time
from collections.abc import Iterable

import httpx

from kvasir.kube.objects import Object, is_terminating, label
from kvasir.models.download.progress import MAX_PROGRESS_BYTES, Progress, parse_progress
from kvasir.resource import labels
from kvasir_operator.plan.model_download.cache_step import POLL_SECONDS
from kvasir_operator.pod_http import NoAnswerError, ask

_ANSWER_SECONDS = 2.0
_MAX_CONCURRENT = 256


class Downloads:
    """Client of the pods of download Jobs. Each is asked at most every five seconds, as often as
    its LLMDeployment's status may change for it."""

    def __init__(self) -> None:
        self._http = httpx.AsyncClient(timeout=_ANSWER_SECONDS, trust_env=False)
        self._answers: dict[str, tuple[float, Progress | None]] = {}

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def ask(self, pods: Iterable[Object]) -> dict[str, Progress]:
        """Return the reports of running pods, by the names of their Jobs."""
        found: dict[str, Progress] = {}
        for pod in pods:
            status = pod.get("status") or {}
            if status.get("phase") == "Running" and status.get("podIP") and not is_terminating(pod):
                progress = await self._progress(pod)
                if progress is not None:
                    found[label(pod, "job-name")] = progress
        return found

    async def _progress(self, pod: Object) -> Progress | None:
        uid, now = str(pod["metadata"]["uid"]), time.monotonic()
        asked, answer = self._answers.get(uid, (-POLL_SECONDS, None))
        if now - asked >= POLL_SECONDS:
            if len(self._answers) >= _MAX_CONCURRENT:
                self._answers.clear()
            # Noted before the answer: one that does not come is not asked for any sooner
            self._answers[uid] = (now, answer)
            answer = await self._ask(pod) or answer
            self._answers[uid] = (now, answer)
        return answer

    async def _ask(self, pod: Object) -> Progress | None:
        try:
            _, body = await ask(self._http, pod, labels.HTTP_PORT, "/progress", MAX_PROGRESS_BYTES)
            return parse_progress(body)
        except (NoAnswerError, ValueError):
            return None
