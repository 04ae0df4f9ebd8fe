"""Logs of all pods of a model, one after the other or as they come."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from kvasir.cli.kubectl.cluster_session import (
    PODS,
    ClusterError,
    ClusterSession,
    NotAllowedError,
    selector_of,
)
from kvasir.cli.kubectl.pod_logs import LogQuery, stream_log
from kvasir.cli.printable import printable
from kvasir.kube.objects import Object, label, name_of, namespace_of
from kvasir.resource import labels

_POLL_SECONDS = 2.0
_MAX_FOLLOWED = 100
"""Each is a connection to the API server."""
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?")

Write = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LogChoice:
    """The logs that are wanted, and how they are printed."""

    component: str | None = None
    """engine or download; None = every pod."""
    container: str | None = None
    """None = every container."""
    prefix: bool | None = None
    """None = where there are several."""
    timestamps: bool = False
    previous: bool = False
    follow: bool = False
    tail: int | None = None
    since_seconds: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class ContainerRun:
    """One run of a container."""

    pod: str
    container: str
    namespace: str
    uid: str
    restarts: int
    is_running: bool = field(compare=False, default=False)

    @property
    def title(self) -> str:
        """Text before its lines."""
        return f"[{self.pod}/{self.container}]"


def parse_duration(text: str) -> int:
    """Return the seconds of `text`, such as 90s, 10m or 1h30m. Raises ValueError."""
    found = _DURATION.fullmatch(text) if text else None
    if found is None:
        raise ValueError(f"{text!r} is no time; write it as 90s, 10m or 1h30m")
    hours, minutes, seconds = (int(each or 0) for each in found.groups())
    return hours * 3600 + minutes * 60 + seconds


async def print_logs(
    session: ClusterSession, name: str, choice: LogChoice, write: Write | None = None
) -> None:
    """Print the logs of the LLMDeployment or model `name`. Raises ClusterError."""
    resource = await session.deployment(name)
    own, namespace = name_of(resource), namespace_of(resource)

    async def pods() -> list[Object]:
        return await session.find(PODS, namespace, selector_of(own))

    printer = LogPrinter(session, choice, write or _print_line)
    if choice.follow:
        await printer.follow(pods)
        return
    runs = sorted(runs_of(await pods(), choice))
    if not runs:
        raise ClusterError(_nothing(own, choice))
    await printer.print_all(runs)


def runs_of(pods: Iterable[Object], choice: LogChoice) -> Iterator[ContainerRun]:
    """Yield the containers of `pods` that have begun, as `choice` wants them; for the run before,
    those that were restarted."""
    for pod in pods:
        if choice.component not in (None, label(pod, labels.COMPONENT)):
            continue
        status = pod.get("status") or {}
        for it in (
            *(status.get("initContainerStatuses") or ()),
            *(status.get("containerStatuses") or ()),
        ):
            restarts = int(it.get("restartCount") or 0)
            has_begun = "waiting" not in (it.get("state") or {"waiting": {}}) or restarts > 0
            is_wanted = choice.container in (None, it.get("name"))
            if is_wanted and has_begun and (restarts or not choice.previous):
                name, uid = str(it["name"]), str(pod["metadata"]["uid"])
                is_running = "running" in (it.get("state") or {})
                yield ContainerRun(name_of(pod), name, namespace_of(pod), uid, restarts, is_running)


def _nothing(name: str, choice: LogChoice) -> str:
    if choice.previous:
        return f"no container of {name} was restarted; leave out --previous"
    which = f" called {choice.container}" if choice.container else ""
    return f"no container{which} of {name} has begun; see kubectl kvasir why {name}"


class LogPrinter:
    """Prints lines, each whole, of several containers."""

    def __init__(self, session: ClusterSession, choice: LogChoice, write: Write) -> None:
        self._session = session
        self._choice = choice
        self._write = write
        self._last: dict[ContainerRun, str] = {}
        """Time of the last line of each run that is followed: where it goes on."""
        self._told: set[str] = set()

    async def print_all(self, runs: Sequence[ContainerRun]) -> None:
        """Print one log after the other. Raises ClusterError when none could be read."""
        several = len(runs) > 1
        title = several if self._choice.prefix is None else self._choice.prefix
        problems = []
        for run in runs:
            try:
                await self._print(run, self._query(), title)
            except ClusterError as error:
                problems.append(error)
                self._tell(f"{run.title} {error}" if several else str(error))
        if len(problems) == len(runs):
            raise ClusterError("no log could be read")

    async def follow(
        self, pods: Callable[[], Awaitable[list[Object]]], poll: float = _POLL_SECONDS
    ) -> None:
        """Print what comes, also of pods that come, until it is cancelled. Raises ClusterError."""
        tasks: dict[ContainerRun, asyncio.Task[None]] = {}
        found = await pods()
        try:
            while True:
                self._start(tasks, runs_of(found, self._choice))
                await asyncio.sleep(poll)
                try:
                    found = await pods()
                except NotAllowedError:
                    raise
                except ClusterError as error:
                    self._tell(str(error))
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    def _start(
        self, tasks: dict[ContainerRun, asyncio.Task[None]], runs: Iterable[ContainerRun]
    ) -> None:
        """Follow the runs that are not followed yet, and those whose stream has ended though they
        still run: servers end streams after hours."""
        for before in tasks.values():
            if before.done():
                before.result()  # such as that the reader of our output went away
        there = set(runs)
        for gone in [run for run, task in tasks.items() if run not in there and task.done()]:
            del tasks[gone]
            self._last.pop(gone, None)
        for run in sorted(there):
            task = tasks.get(run)
            if task is not None and not (task.done() and run.is_running):
                continue
            if sum(not each.done() for each in tasks.values()) >= _MAX_FOLLOWED:
                self._tell(f"only {_MAX_FOLLOWED} containers are followed; choose with -c")
                return
            tasks[run] = asyncio.create_task(self._follow(run))

    async def _follow(self, run: ContainerRun) -> None:
        last = self._last.get(run)
        query = self._query(last)
        try:
            await self._print(run, query, self._choice.prefix is not False, after=last or "")
        except ClusterError as error:
            self._tell(f"{run.title} {error}")

    def _query(self, last: str | None = None) -> LogQuery:
        choice = self._choice
        return LogQuery(
            tail=choice.tail if last is None else None,
            since_seconds=choice.since_seconds if last is None else None,
            since_time=last,
            previous=choice.previous,
            follow=choice.follow,
            timestamps=choice.timestamps or choice.follow,
        )

    async def _print(
        self, run: ContainerRun, query: LogQuery, title: bool, after: str = ""
    ) -> None:
        """Print the lines of a run that are younger than the time `after`. Raises ClusterError."""
        lines = stream_log(self._session, run.namespace, run.pod, run.container, query)
        async with aclosing(lines):
            async for line in lines:
                text = line
                if query.timestamps:
                    time, _, rest = line.partition(" ")
                    if after and time <= after:
                        continue
                    self._last[run] = time
                    text = line if self._choice.timestamps else rest
                self._write(printable(f"{run.title} {text}" if title else text))

    def _tell(self, problem: str) -> None:
        """Say on stderr what has not been said yet."""
        if problem not in self._told:
            self._told.add(problem)
            print(printable(problem), file=sys.stderr, flush=True)


def _print_line(text: str) -> None:
    print(text, flush=True)
