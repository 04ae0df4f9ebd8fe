"""The messages of one Generate call, from the updates of its generation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence

from kvasir.wire.proto.engine.v1 import engine_pb2 as pb
from kvasir_engine.request import FinishReason, LogprobEntry, SampleDelta
from kvasir_engine.server.generation.generation import (
    Generation,
    GenerationInterruptedError,
    Interruption,
)
from kvasir_engine.server.generation.run import PromptRun
from kvasir_engine.server.rpc import convert
from kvasir_engine.text.sample_state import SampleUpdate

FULL_VALUES = 16 * 1024
"""Log-probabilities of a message: gRPC encodes one in one go, and clients take in 4 MiB by default.
A token that has more by itself is not divided."""


class ResponseStream:
    """Turn an admitted generation of one run into messages, the last one with the usage."""

    def __init__(self, generation: Generation, *, with_token_ids: bool) -> None:
        self._generation = generation
        self._with_token_ids = with_token_ids
        self._seeded: set[int] = set()
        self._prompt_logprobs_sent = 0

    @property
    def _run(self) -> PromptRun:
        return self._generation.runs[0]

    async def messages(self) -> AsyncGenerator[pb.GenerateResponse, None]:
        """Messages until every sample has ended; an aborted one ends with "abort".

        Raises what Generation.updates raises, but for an abort.
        """
        last = pb.GenerateResponse()
        async for response in self._responses():
            if not self._generation.finished:
                yield response
                continue
            if last.chunks:
                yield last
            last = response
        last.usage.CopyFrom(self._usage())
        yield last

    async def _responses(self) -> AsyncGenerator[pb.GenerateResponse, None]:
        """Yield messages with what was added, without the usage."""
        try:
            async for updates in self._generation.updates():
                async for response in self._filled(updates):
                    yield response
        except GenerationInterruptedError as error:
            if error.reason is not Interruption.DISCONNECT:
                raise
            async for response in self._filled(self._abort()):
                yield response

    async def _filled(
        self, updates: Iterable[SampleUpdate]
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        """Yield one message with what was added to each sample, or several when that is much."""
        response = pb.GenerateResponse()
        values = 0
        for update in updates:
            for part, prompt_logprobs in self._parts(update):
                more = _values(part.logprobs or ()) + _values(prompt_logprobs)
                if response.chunks and values + more > FULL_VALUES:
                    yield response
                    response, values = pb.GenerateResponse(), 0
                values += more
                await self._add_chunk(response, part, prompt_logprobs)
        if response.chunks:
            yield response

    def _parts(self, update: SampleUpdate) -> Iterator[tuple[SampleUpdate, list[LogprobEntry]]]:
        """Yield an update and the prompt's log-probabilities that come with it, those that are too
        many for one message before it; nothing where there is nothing to say."""
        entries: list[LogprobEntry] = []
        values = 0
        for entry in self._new_prompt_logprobs() if update.index == 0 else ():
            values += _values((entry,))
            if entries and values > FULL_VALUES:
                yield SampleUpdate(update.index, "", []), entries
                entries, values = [], _values((entry,))
            entries.append(entry)
        if update.text or update.token_ids or update.finish_reason or entries:
            yield update, entries

    async def _add_chunk(
        self,
        response: pb.GenerateResponse,
        update: SampleUpdate,
        prompt_logprobs: Sequence[LogprobEntry],
    ) -> None:
        made = await convert.add_chunk(
            response,
            update,
            prompt_logprobs,
            self._generation.turns,
            with_token_ids=self._with_token_ids,
        )
        seed = self._run.assembler.seed
        if seed is not None and update.index not in self._seeded:
            self._seeded.add(update.index)
            made.seed = seed

    def _new_prompt_logprobs(self) -> Sequence[LogprobEntry]:
        new = self._run.assembler.prompt_logprobs[self._prompt_logprobs_sent :]
        self._prompt_logprobs_sent += len(new)
        return new

    def _abort(self) -> list[SampleUpdate]:
        run = self._run
        return [
            run.assembler.push(SampleDelta(run.request.handle + at, [], FinishReason.ABORT))
            for at, sample in enumerate(run.assembler.samples)
            if not sample.finished
        ]

    def _usage(self) -> pb.Usage:
        return pb.Usage(
            prompt_tokens=self._run.request.num_prompt_tokens,
            completion_tokens=self._run.assembler.num_output_tokens,
            cached_tokens=self._run.assembler.num_cached_tokens or 0,
        )


def _values(entries: Iterable[LogprobEntry]) -> int:
    return sum(2 + len(entry.top_ids) for entry in entries)
