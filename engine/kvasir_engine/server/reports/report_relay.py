"""Prompt reports of all API processes, gathered in the first one, which serves gRPC.

The others look at the watch page now and then, report only while somebody watches, and begin anew
with each new watch, since a new watcher knows nothing yet. Which reports a returning watcher missed
is the first process's matter: its watch goes on until nobody is waited for.
"""

from __future__ import annotations

import asyncio

import msgspec
import zmq

from kvasir.wire.prompt_report.report import PromptReport
from kvasir_engine.server.reports.reporter import PromptReporter, Subscription
from kvasir_engine.server.reports.watch_page import WatchPage

LOOK_SECONDS = 0.5
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[tuple[list[int], list[int], bytes]])
"""PromptReport's fields; their sequences may be of any kind before."""


class ReportHub:
    """Hub of the first process: takes the others' reports and gives them to the watchers."""

    def __init__(self, address: str, reporter: PromptReporter) -> None:
        self._reporter = reporter
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.bind(address)
        self._fd = int(self._socket.fd)
        asyncio.get_running_loop().add_reader(self._fd, self._receive)

    def close(self) -> None:
        """Stop listening."""
        asyncio.get_running_loop().remove_reader(self._fd)
        self._context.destroy(linger=0)

    def _receive(self) -> None:
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            for fields in _decoder.decode(frame):
                self._reporter.deliver(PromptReport(*fields))


class ReportRelay:
    """Relay of every other process: sends its reports to the hub while somebody watches."""

    def __init__(self, address: str, page: WatchPage, reporter: PromptReporter) -> None:
        self._page = page
        self._reporter = reporter
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.connect(address)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Send no more."""
        self._task.cancel()
        await asyncio.wait({self._task})
        self._context.destroy(linger=0)

    async def _run(self) -> None:
        while True:
            if self._page.number == 0:
                await asyncio.sleep(LOOK_SECONDS)
                continue
            with self._reporter.subscribe(returns=False) as subscription:
                await self._forward(subscription)

    async def _forward(self, subscription: Subscription) -> None:
        """Send what comes until nobody watches."""
        begun = self._page.number
        while number := self._page.number:
            if number != begun:
                begun = number
                self._reporter.begin_anew()
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    reports, _dropped = await subscription.next_reports()
            except TimeoutError:
                continue
            plain = [(list(r.text_hashes), list(r.kv_blocks), r.kv_hashes) for r in reports]
            try:
                self._socket.send(_encoder.encode(plain), zmq.NOBLOCK)
            except zmq.Again:
                # The hub is behind; a report that is lost only costs a hit.
                self._reporter.count_dropped(len(reports))
