"""Generation of one HTTP request: admitted to the core, streamed, ended or broken off."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import TypeVar

from kvasir_engine.core.client import CoreClient
from kvasir_engine.request import FinishReason, SampleDelta
from kvasir_engine.server.generation.api_metrics import ApiMetrics
from kvasir_engine.server.generation.delta_portions import portions, text_portions
from kvasir_engine.server.generation.run import PromptRun
from kvasir_engine.server.loop_turns import LoopTurns
from kvasir_engine.text.sample_state import SampleUpdate

INLINE_TOKENS = 512
"""More resumed tokens are detokenised in a thread, so that they do not hold up the other streams:
with stop strings each takes 15 µs."""
_MERGE_QUEUE_ITEMS = 256
_T = TypeVar("_T")


class Interruption(StrEnum):
    """Reason for which a generation was broken off."""

    DISCONNECT = "disconnect"
    HANDOVER = "handover"


class GenerationInterruptedError(Exception):
    """The generation was broken off; its requests are aborted."""

    def __init__(self, reason: Interruption) -> None:
        super().__init__(reason.value)
        self.reason = reason


class GenerationFailedError(Exception):
    """The core ended a sample with an error; carries its sentence."""


_News = tuple[PromptRun, list[SampleDelta]]


@dataclass(eq=False, slots=True)
class Generation:
    """The runs of one HTTP request, and the one place where they are ended."""

    client: CoreClient
    metrics: ApiMetrics
    runs: list[PromptRun]
    turns: LoopTurns
    interrupted: Interruption | None = None
    _task: asyncio.Task[object] | None = None
    _waiting: bool = False
    _open_samples: int = 0
    _arrival: float = field(default_factory=time.monotonic)

    @property
    def finished(self) -> bool:
        """True once every sample has ended."""
        return all(run.assembler.finished for run in self.runs)

    def hand_over(self) -> None:
        """Break off between two events, so that everything taken from the core was sent."""
        self.interrupt(Interruption.HANDOVER)

    def interrupt(self, reason: Interruption) -> None:
        """Break off now if it waits for the core, else before it waits again."""
        if self.interrupted is None:
            self.interrupted = reason
            if self._waiting and self._task is not None:
                self._task.cancel()

    async def admit(self) -> None:
        """Bring every run into the core; when one is refused, all are taken back.

        Raises RequestRejectedError, EngineDeadError, or GenerationInterruptedError.
        """
        self._task = asyncio.current_task()
        try:
            for run in self.runs:
                if run.request.resume is not None:
                    run.resumed = await _replayed(run)
                if not (run.finish_sent or run.assembler.finished):
                    self._check_interrupted()
                    run.stream = await self._wait(self.client.submit(run.request))
        except BaseException:
            await self.close()
            raise

    async def updates(self) -> AsyncGenerator[list[SampleUpdate], None]:
        """Yield what was added, one update a choice and batch; `index` is the choice's.

        What arrived while nobody read is taken in portions, in turns of the loop.

        Raises GenerationFailedError, GenerationInterruptedError or EngineDeadError. Whoever does
        not read to the end calls `close`.
        """
        resumed = [run.resumed for run in self.runs if run.resumed and not run.finish_sent]
        for part in chain.from_iterable(map(text_portions, resumed)):
            self._check_interrupted()
            yield [part]
            await self.turns.pause()
        samples = [sample for run in self.runs for sample in run.assembler.samples]
        self._open_samples = sum(not sample.finished for sample in samples)
        if len(self.runs) == 1:
            [run] = self.runs
            while self._open_samples and run.stream is not None:
                self._check_interrupted()
                deltas = await self._wait(anext(run.stream))
                for portion in self._portions(run, deltas):
                    yield self._apply_deltas(run, portion)
                    if portion is not deltas and not await self._goes_on():
                        break
            return
        async with contextlib.aclosing(self._merged()) as merged:
            while self._open_samples:
                self._check_interrupted()
                run, deltas = await self._wait(anext(merged))
                for portion in self._portions(run, deltas):
                    yield self._apply_deltas(run, portion)
                    if not await self._goes_on():
                        break

    def _portions(self, run: PromptRun, deltas: list[SampleDelta]) -> Iterable[list[SampleDelta]]:
        if deltas[-1].token_ids:
            self._time(run)
        return portions(deltas)

    async def _goes_on(self) -> bool:
        """Let others have a turn between two portions; return whether a sample is still open."""
        if not self._open_samples:
            return False
        await self.turns.pause()
        self._check_interrupted()
        return True

    async def close(self) -> None:
        """Abort what still runs and count the request; safe to call twice."""
        now = time.monotonic()
        for run in self.runs:
            stream, run.stream = run.stream, None
            if stream is None:
                continue
            await stream.aclose()  # type: ignore[attr-defined]
            self._count(run, now)

    def _check_interrupted(self) -> None:
        if self.interrupted is not None:
            raise GenerationInterruptedError(self.interrupted)

    async def _wait(self, news: Awaitable[_T]) -> _T:
        """Await the core in a way that `interrupt` can end."""
        self._waiting = True
        try:
            return await news
        except asyncio.CancelledError:
            if self.interrupted is None or self._task is None:
                raise
            self._task.uncancel()
            raise GenerationInterruptedError(self.interrupted) from None
        except StopAsyncIteration:
            raise GenerationFailedError("The engine left this request unfinished.") from None
        finally:
            self._waiting = False

    async def _merged(self) -> AsyncGenerator[_News, None]:
        """Several prompts' streams in the order of arrival."""
        queue: asyncio.Queue[_News | Exception] = asyncio.Queue(_MERGE_QUEUE_ITEMS)

        async def read(run: PromptRun, stream: AsyncIterator[list[SampleDelta]]) -> None:
            try:
                async for deltas in stream:
                    await queue.put((run, deltas))
            except Exception as error:
                await queue.put(error)

        readers = [
            asyncio.create_task(read(run, run.stream))
            for run in self.runs
            if run.stream is not None
        ]
        try:
            while True:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    def _apply_deltas(self, run: PromptRun, deltas: list[SampleDelta]) -> list[SampleUpdate]:
        if len(deltas) == 1:
            return [self._push(run, deltas[0])]
        merged: dict[int, SampleUpdate] = {}
        for delta in deltas:
            update = self._push(run, delta)
            if update.index in merged:
                _extend(merged[update.index], update)
            else:
                merged[update.index] = update
        return list(merged.values())

    def _push(self, run: PromptRun, delta: SampleDelta) -> SampleUpdate:
        update = run.assembler.push(delta)
        if update.finish_reason is not None:
            self._open_samples -= 1
            self.metrics.sample_finished(update.finish_reason)
            if update.stopped_by_string:
                self.client.finish_sample(run.request, delta.handle - run.request.handle)
            if update.finish_reason is FinishReason.ERROR:
                raise GenerationFailedError(update.error or "The engine failed on this request.")
        update.index += run.first_choice
        return update

    def _time(self, run: PromptRun) -> None:
        now = time.monotonic()
        if run.first_token_time:
            self.metrics.inter_token_latency.observe(now - run.last_token_time)
        else:
            run.first_token_time = now
            self.metrics.first_token(now - self._arrival, run.request.num_prompt_tokens)
        run.last_token_time = now

    def _count(self, run: PromptRun, now: float) -> None:
        for sample in run.assembler.samples:
            if not sample.finished:
                self.metrics.sample_finished(FinishReason.ABORT)
        self.metrics.request_finished(
            run.request.params,
            prompt_tokens=run.request.num_prompt_tokens,
            output_tokens=max(0, run.assembler.num_output_tokens - run.num_resumed_tokens),
            seconds=now - self._arrival,
            decode_seconds=run.last_token_time - run.first_token_time,
        )


async def _replayed(run: PromptRun) -> SampleUpdate:
    """Return what the client lacks of a resumed sample's output."""
    replay = run.assembler.resume
    if run.num_resumed_tokens <= INLINE_TOKENS:
        update = replay(run.sent_chars)
    else:
        update = await asyncio.to_thread(replay, run.sent_chars)
    update.index += run.first_choice
    return update


def _extend(update: SampleUpdate, more: SampleUpdate) -> None:
    """Several deltas of a sample that arrived together are one event."""
    update.text += more.text
    update.token_ids = update.token_ids + more.token_ids
    update.text_offsets = update.text_offsets + more.text_offsets
    if more.logprobs is not None:
        update.logprobs = (update.logprobs or []) + more.logprobs
    if more.finish_reason is not None:
        update.finish_reason = more.finish_reason
        update.stop_reason = more.stop_reason
