"""Reports of prompts to routers: which KV blocks a chain of text blocks stands for.

Made on a worker thread after the prompt was handed to the core, and only while someone watches or
may come again: a router renews its stream now and then, and gets what was made meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from kvasir.text.tokenizer import Tokenizer
from kvasir.wire.prompt_report.prompt_map import Render
from kvasir.wire.prompt_report.report import PromptReport, TokenisedPrompt
from kvasir.wire.text_chain import chat_pieces, completion_pieces
from kvasir_engine.server.reports import report_backlog
from kvasir_engine.server.reports.report_backlog import ReportBacklog
from kvasir_engine.server.reports.report_maker import ReportMaker

_log = logging.getLogger(__name__)
MAX_QUEUED_PROMPTS = 256
MAX_QUEUED_REPORTS = 4096
MAX_MESSAGE_BLOCKS = 32 * 1024
"""Text blocks of the reports that are taken at once: a message is encoded in one go, and a block is
28 bytes of it."""


class Subscription:
    """Reports for one watcher. When it is too slow the oldest are dropped and counted."""

    def __init__(self, count_dropped: Callable[[int], None]) -> None:
        self._count_dropped = count_dropped
        self._reports: deque[PromptReport] = deque()
        self._dropped = 0
        self._arrived = asyncio.Event()

    def put(self, report: PromptReport) -> None:
        """Queue a report."""
        if len(self._reports) >= MAX_QUEUED_REPORTS:
            self._reports.popleft()
            self._dropped += 1
            self._count_dropped(1)
        self._reports.append(report)
        self._arrived.set()

    async def next_reports(self) -> tuple[list[PromptReport], int]:
        """The oldest reports, at least one, and how many were dropped since the last call."""
        await self._arrived.wait()
        taken = [self._reports.popleft()]
        blocks = len(taken[0].text_hashes)
        while self._reports:
            blocks += len(self._reports[0].text_hashes)
            if blocks > MAX_MESSAGE_BLOCKS:
                break
            taken.append(self._reports.popleft())
        else:
            self._arrived.clear()
        dropped, self._dropped = self._dropped, 0
        return taken, dropped


class PromptTaker:
    """Take prompts from the routes."""

    def put(self, prompt: TokenisedPrompt) -> None:
        """Report `prompt`."""
        raise NotImplementedError

    def completion(
        self,
        body: Mapping[str, Any],
        prompt: str,
        token_ids: Sequence[int],
        block_hashes: bytes,
        *,
        add_special_tokens: bool,
        lora: str = "",
    ) -> None:
        """A string prompt of a completion was tokenised. `body` is the parsed JSON."""
        pieces = completion_pieces(body, prompt, lora=lora)
        self.put(
            TokenisedPrompt(pieces, (), prompt, token_ids, block_hashes, add_special_tokens, None)
        )

    def chat(
        self,
        body: Mapping[str, Any],
        rendered: str,
        token_ids: Sequence[int],
        block_hashes: bytes,
        render: Render,
        *,
        add_special_tokens: bool = False,
        lora: str = "",
    ) -> None:
        """A chat was rendered and tokenised. `render` renders other messages in its place, with
        everything else as it was, and is called on another thread."""
        self.put(
            TokenisedPrompt(
                chat_pieces(body, lora=lora),
                body["messages"],
                rendered,
                token_ids,
                block_hashes,
                add_special_tokens,
                render,
            )
        )


class PromptReporter(PromptTaker):
    """Take prompts from the routes and give reports to the watchers. Not thread-safe."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        block_size: int,
        on_watch: Callable[[bool], None] = lambda watched: None,
        count_dropped: Callable[[int], None] = lambda number: None,
    ) -> None:
        """`on_watch` is called with True when a watcher comes and False when none came for a while
        after the last one left, `count_dropped` with how many prompts or reports were just lost."""
        self._maker = ReportMaker(tokenizer, block_size)
        self._on_watch = on_watch
        self.count_dropped = count_dropped
        self._subscriptions: set[Subscription] = set()
        self._backlog = ReportBacklog()
        self._ending: asyncio.TimerHandle | None = None
        """Set after the last watcher left, until another comes or nobody is waited for."""
        self._thread: ThreadPoolExecutor | None = None
        self._queued = 0
        self._watch = 0

    @property
    def watch(self) -> int:
        """Number of the latest watch, under which all is reported anew; 0 = nobody watches."""
        return self._watch if self.watched else 0

    @property
    def watched(self) -> bool:
        """True while reports are wanted; otherwise every call here returns at once."""
        return bool(self._subscriptions) or self._ending is not None

    @contextmanager
    def subscribe(self, *, returns: bool = True) -> Iterator[Subscription]:
        """Reports of prompts of the last seconds and from now on; text that was reported to
        others is reported again. `returns`: the watcher may leave only to come again."""
        subscription = Subscription(self.count_dropped)
        for report in self._backlog.recent():
            subscription.put(report)
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        self.begin_anew()
        self._subscriptions.add(subscription)
        self._on_watch(True)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
            if not self._subscriptions:
                wait = report_backlog.KEPT_SECONDS if returns else 0.0
                self._ending = asyncio.get_running_loop().call_later(wait, self._end_watch)

    def begin_anew(self) -> None:
        """Report text again that was reported before: somebody watches who has not heard it."""
        self._maker = self._maker.fresh()
        self._watch += 1

    def _end_watch(self) -> None:
        self._ending = None
        self._backlog.clear()
        self._on_watch(False)

    def close(self) -> None:
        """End the worker thread."""
        if self._ending is not None:
            self._ending.cancel()
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)

    def put(self, prompt: TokenisedPrompt) -> None:
        """Have the report of `prompt` made; without watchers nothing is."""
        if not self.watched:
            return
        if self._queued >= MAX_QUEUED_PROMPTS:
            self.count_dropped(1)
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="prompt-reports")
        self._queued += 1
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._thread, self._maker.make, prompt)
        future.add_done_callback(self._made)

    def _made(self, future: asyncio.Future[PromptReport | None]) -> None:
        self._queued -= 1
        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            _log.error("a prompt report failed.", exc_info=error)
            return
        report = future.result()
        if report is not None:
            self.deliver(report)

    def deliver(self, report: PromptReport) -> None:
        """Give a report, of this process or another, to every watcher, and to who comes soon."""
        self._backlog.add(report)
        for subscription in self._subscriptions:
            subscription.put(report)
