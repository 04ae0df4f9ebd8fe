"""A Kvasir engine's prompt reports: which text stands for which KV blocks."""

import asyncio
from typing import TYPE_CHECKING, Any

import structlog

from kvasir_router.fleet.replica import Replica
from kvasir_router.index.block_sink import BlockSink, PromptReport, apply_report

if TYPE_CHECKING:
    from kvasir_router.feeds import rpc

_log = structlog.get_logger("kvasir_router.feeds")

_RETRY_SECONDS = 5.0
_REPORTS_PER_TURN = 8
"""Each may be of 2,048 blocks."""


async def follow_prompt_reports(
    channel: "rpc.EngineChannel", sink: BlockSink, replica: Replica
) -> None:
    """Give every report to `sink`, for as long as the channel lives. An engine that has no such
    reports is asked again now and then."""
    from kvasir_router.feeds import rpc

    while True:
        try:
            async for message in channel.watch_prompts():
                replica.feeds["prompt_reports"] += len(message.reports)
                replica.feeds["prompt_reports_dropped"] += message.dropped
                await _give(message.reports, sink)
        except rpc.StreamError as error:
            _log.info("no prompt reports", replica=replica.id, reason=rpc.why(error))
        await asyncio.sleep(_RETRY_SECONDS)


async def _give(reports: Any, sink: BlockSink) -> None:
    for number, report in enumerate(reports, 1):
        hashes = list(report.text_hashes)
        apply_report(sink, PromptReport(hashes, list(report.kv_blocks), report.kv_hashes))
        if number % _REPORTS_PER_TURN == 0:
            await asyncio.sleep(0)
