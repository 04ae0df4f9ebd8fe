"""Logs of several pods: which runs, in which order, with which words before each line; and how a
log that is followed goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support import recorded_model as made

from kvasir.cli.kubectl.cluster_session import ClusterError, ClusterSession
from kvasir.cli.kubectl.model_logs import (
    LogChoice,
    LogPrinter,
    parse_duration,
    print_logs,
    runs_of,
)

PATH = "/api/v1/namespaces/ml/pods/{}/log?engine"


def running(restarts: int = 0) -> dict[str, Any]:
    engine = {"name": "engine", "restartCount": restarts, "state": {"running": {}}}
    return {"containerStatuses": [engine]}


@pytest.fixture
def two(recorded: Any) -> Any:
    recorded.objects["pods"] = [made.pod("a", running()), made.pod("b", running(1))]
    recorded.texts = {PATH.format("a"): "1\n2\n", PATH.format("b"): "3\x1b[2J\nend"}
    recorded.texts[f"{PATH.format('b')}?previous"] = "before\n"
    return recorded


async def printed(session: ClusterSession, **choice: Any) -> list[str]:
    lines: list[str] = []
    await print_logs(session, "chat", LogChoice(**choice), lines.append)
    return lines


async def test_each_log_as_a_whole_with_its_pod(session: ClusterSession, two: Any) -> None:
    assert await printed(session) == [
        "[a/engine] 1",
        "[a/engine] 2",
        "[b/engine] 3",
        "[b/engine] end",
    ]
    assert await printed(session, prefix=False) == ["1", "2", "3", "end"]


async def test_one_pod_needs_no_prefix(session: ClusterSession, two: Any) -> None:
    two.objects["pods"].pop()
    assert await printed(session) == ["1", "2"]
    assert await printed(session, prefix=True) == ["[a/engine] 1", "[a/engine] 2"]


async def test_the_run_before_is_of_those_that_restarted(session: ClusterSession, two: Any) -> None:
    assert await printed(session, previous=True) == ["before"]
    two.objects["pods"].pop()
    with pytest.raises(ClusterError, match="no container of qwen was restarted"):
        await printed(session, previous=True)


async def test_what_is_asked_of_the_server(session: ClusterSession, two: Any) -> None:
    await printed(session, tail=5, since_seconds=60, timestamps=True)
    asked = {"container": "engine", "tailLines": "5", "sinceSeconds": "60", "timestamps": "true"}
    assert [query for path, query in two.opened] == [asked, asked]


async def test_a_log_that_cannot_be_read_leaves_the_others(
    session: ClusterSession, two: Any, capsys: Any
) -> None:
    two.texts[PATH.format("a")] = 403
    assert await printed(session) == ["[b/engine] 3", "[b/engine] end"]
    assert "[a/engine] you may not get pods/log in namespace ml" in capsys.readouterr().err
    two.texts[PATH.format("b")] = 403
    with pytest.raises(ClusterError, match="no log could be read"):
        await printed(session)


async def test_nothing_has_begun(session: ClusterSession, two: Any) -> None:
    waiting = {"name": "engine", "state": {"waiting": {"reason": "ContainerCreating"}}}
    two.objects["pods"] = [made.pod("a", {"containerStatuses": [waiting]}), made.pod("b", {})]
    with pytest.raises(ClusterError, match="has begun; see kubectl kvasir why qwen"):
        await printed(session)


def test_containers_and_components_are_chosen() -> None:
    statuses = [{"name": name, "state": {"running": {}}} for name in ("engine", "sidecar")]
    pods = [
        made.pod("a", {"containerStatuses": statuses}),
        made.pod("d", {"containerStatuses": statuses[:1]}, **{"kvasir.dev/component": "download"}),
    ]
    chosen = [(run.pod, run.container) for run in runs_of(pods, LogChoice(container="sidecar"))]
    assert chosen == [("a", "sidecar")]
    assert [run.pod for run in runs_of(pods, LogChoice(component="download"))] == ["d"]


class Pods:
    """Pods as they are at each look; ends the test's following at the last."""

    def __init__(self, *looks: list[dict[str, Any]]) -> None:
        self.looks = list(looks)

    async def __call__(self) -> list[dict[str, Any]]:
        if not self.looks:
            raise asyncio.CancelledError
        await asyncio.sleep(0)
        return self.looks.pop(0)


async def followed(session: ClusterSession, pods: Pods, **choice: Any) -> list[str]:
    lines: list[str] = []
    printer = LogPrinter(session, LogChoice(follow=True, **choice), lines.append)
    with pytest.raises(asyncio.CancelledError):
        await printer.follow(pods, poll=0.01)
    return lines


async def test_following_goes_on_where_a_stream_broke_off(
    session: ClusterSession, two: Any
) -> None:
    """The server gives whole seconds again: what was printed is not printed twice."""
    path = PATH.format("a")
    two.texts = {path: "2026-01-01T00:00:01.1Z one\n2026-01-01T00:00:01.2Z two\n"}
    pod = made.pod("a", running())
    lines = await followed(session, Pods([pod], [pod], [pod]), tail=2)
    assert lines == ["[a/engine] one", "[a/engine] two"]
    assert two.opened[0][1]["tailLines"] == "2"
    assert two.opened[1][1]["sinceTime"] == "2026-01-01T00:00:01.2Z"
    assert "tailLines" not in two.opened[1][1]


async def test_following_takes_pods_that_come_and_containers_that_start_again(
    session: ClusterSession, two: Any
) -> None:
    two.texts = {PATH.format(pod): f"2026-01-01T00:00:01Z of {pod}\n" for pod in "ab"}
    ended = running()
    ended["containerStatuses"][0]["state"] = {"terminated": {"exitCode": 0}}
    first, again = made.pod("a", ended), made.pod("a", running(1))
    lines = await followed(session, Pods([first], [first], [again, made.pod("b", ended)], []))
    assert lines == ["[a/engine] of a", "[a/engine] of a", "[b/engine] of b"]


async def test_following_ends_when_the_reader_goes_away(session: ClusterSession, two: Any) -> None:
    two.texts = {PATH.format("a"): "2026-01-01T00:00:01Z one\n"}

    def closed(line: str) -> None:
        raise BrokenPipeError

    async def pods() -> list[dict[str, Any]]:
        return [made.pod("a", running())]

    with pytest.raises(BrokenPipeError):
        await LogPrinter(session, LogChoice(follow=True), closed).follow(pods, poll=0.01)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("2h", 7200), ("1h30m", 5400), ("45", 45)]
)
def test_times(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "1d", "-5s", "m", "1.5h"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="write it as 90s, 10m or 1h30m"):
        parse_duration(text)
