"""The messages of one Generate call, from the updates of its generation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence

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
        last: list[pb.Chunk] = []
        try:
            async for updates in self._generation.updates():
                chunks = self._chunks(updates)
                if self._generation.finished:
                    last = chunks
                elif chunks:
                    yield pb.GenerateResponse(chunks=chunks)
        except GenerationInterruptedError as error:
            if error.reason is not Interruption.DISCONNECT:
                raise
            last = self._chunks(self._abort())
        yield pb.GenerateResponse(chunks=last, usage=self._usage())

    def _chunks(self, updates: Iterable[SampleUpdate]) -> list[pb.Chunk]:
        assembler = self._run.assembler
        chunks = []
        for update in updates:
            prompt_logprobs: Sequence[LogprobEntry] = ()
            if update.index == 0:
                prompt_logprobs = assembler.prompt_logprobs[self._prompt_logprobs_sent :]
                self._prompt_logprobs_sent += len(prompt_logprobs)
            if not (update.text or update.token_ids or update.finish_reason or prompt_logprobs):
                continue
            made = convert.chunk(update, prompt_logprobs, with_token_ids=self._with_token_ids)
            if assembler.seed is not None and update.index not in self._seeded:
                self._seeded.add(update.index)
                made.seed = assembler.seed
            chunks.append(made)
        return chunks

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
