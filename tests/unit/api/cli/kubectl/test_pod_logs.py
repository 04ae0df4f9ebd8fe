"""Lines of a log, however the bytes come."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest

from kvasir.cli.kubectl.cluster_session import ClusterError, ClusterSession
from kvasir.cli.kubectl.pod_logs import LogQuery, read_log, stream_log

PATH = "/api/v1/namespaces/ml/pods/a/log?e"


async def lines(session: ClusterSession) -> list[str]:
    async with aclosing(stream_log(session, "ml", "a", "e", LogQuery())) as stream:
        return [line async for line in stream]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
async def test_lines_are_whole(session: ClusterSession, recorded: Any, size: int) -> None:
    recorded.part_size = size
    recorded.texts = {PATH: "ä\n\nlast"}
    assert await lines(session) == ["ä", "", "last"]


async def test_a_line_without_end_is_bounded(session: ClusterSession, recorded: Any) -> None:
    recorded.part_size = 1 << 19
    recorded.texts = {PATH: "x" * (3 << 20)}
    assert max(map(len, await lines(session))) <= (1 << 20) + (1 << 19)


async def test_a_log_is_read_up_to_its_limit(session: ClusterSession, recorded: Any) -> None:
    recorded.texts = {PATH: "x" * 100}
    assert len(await read_log(session, "ml", "a", "e", LogQuery(), 100)) == 100
    with pytest.raises(ClusterError, match="larger than 99 bytes"):
        await read_log(session, "ml", "a", "e", LogQuery(), 99)


async def test_a_refusal_names_the_right(session: ClusterSession, recorded: Any) -> None:
    recorded.texts = {PATH: 403}
    with pytest.raises(ClusterError, match="you may not get pods/log in namespace ml"):
        await lines(session)
