"""Messages of Generate calls, prepared for the core: small ones here, large by a body worker."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir_engine.server.large_bodies.body_workers import BodyWorkers
from kvasir_engine.server.large_bodies.shared_body import (
    LARGE_BODY_BYTES,
    BudgetExceededError,
    SharedBody,
)
from kvasir_engine.server.large_bodies.worker_messages import Job, Prepared
from kvasir_engine.server.openai.api_error import ApiError, refused
from kvasir_engine.server.openai.intake import Intake
from kvasir_engine.server.openai.prepared_wire import decode_prepared
from kvasir_engine.server.openai.preparer import PreparedRequest
from kvasir_engine.server.openai.schema import CompletionBody
from kvasir_engine.server.rpc.convert import prepare_generate


@dataclass(slots=True)
class GenerateReader:
    """Reads messages for one model."""

    intake: Intake
    workers: BodyWorkers

    async def read(self, raw: bytes) -> PreparedRequest:
        """Return what the message `raw` sends to the core. Raises ApiError."""
        if len(raw) <= LARGE_BODY_BYTES:
            async with self.intake.turns.body():
                return await prepare_generate(raw, self.intake)
        body = SharedBody(self.workers.budget)
        try:
            await body.append_in_thread(raw)
        except BudgetExceededError as error:
            sentence = "the server holds too many large messages already; try again later."
            raise ApiError(503, sentence) from error
        result = await self.workers.read(Job("generate", ""), body)
        if not isinstance(result, Prepared):
            raise refused(result)
        return await decode_prepared(result.content, CompletionBody, self.intake.maker.tokenizer)
