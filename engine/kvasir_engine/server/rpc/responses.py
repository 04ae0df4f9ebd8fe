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
from kvasir_engine.server.loop_turns import LoopTurns
from kvasir_engine.server.rpc import convert
from kvasir_engine.text.sample_state import SampleUpdate

FULL_ENTRIES = 1024
"""Log-probability entries after which a message takes no further chunk: gRPC encodes a message in
one go."""


class ResponseStream:
    """Turn an admitted generation of one run into messages, the last one with the usage."""

    def __init__(self, generation: Generation, turns: LoopTurns, *, with_token_ids: bool) -> None:
        self._generation = generation
        self._turns = turns
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
        try:
            async for updates in self._generation.updates():
                *full, response = await self._responses(updates)
                for each in full:
                    yield each
                if self._generation.finished:
                    last = response
                elif response.chunks:
                    yield response
        except GenerationInterruptedError as error:
            if error.reason is not Interruption.DISCONNECT:
                raise
            *full, last = await self._responses(self._abort())
            for each in full:
                yield each
        last.usage.CopyFrom(self._usage())
        yield last

    async def _responses(self, updates: Iterable[SampleUpdate]) -> list[pb.GenerateResponse]:
        """Return one message with what was added to each sample, or several when that is much."""
        assembler = self._run.assembler
        responses = [pb.GenerateResponse()]
        entries = 0
        for update in updates:
            prompt_logprobs = self._new_prompt_logprobs() if update.index == 0 else ()
            if not (update.text or update.token_ids or update.finish_reason or prompt_logprobs):
                continue
            if entries >= FULL_ENTRIES:
                responses.append(pb.GenerateResponse())
                entries = 0
            entries += len(update.logprobs or ()) + len(prompt_logprobs)
            made = await convert.add_chunk(
                responses[-1],
                update,
                prompt_logprobs,
                self._turns,
                with_token_ids=self._with_token_ids,
            )
            if assembler.seed is not None and update.index not in self._seeded:
                self._seeded.add(update.index)
                made.seed = assembler.seed
        return responses

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
