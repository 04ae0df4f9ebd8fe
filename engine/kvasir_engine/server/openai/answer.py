"""Common parts of streamed and unary answers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from kvasir_engine.request import FinishReason
from kvasir_engine.server.generation.generation import Generation
from kvasir_engine.server.generation.run import PromptRun
from kvasir_engine.server.openai.logprob_format import LogprobFormat, is_long
from kvasir_engine.server.openai.schema import SamplingBody
from kvasir_engine.text.sample_state import SampleState, SampleUpdate


@dataclass(slots=True)
class Choice:
    """Choice of an answer and what of it was sent."""

    index: int
    run: PromptRun
    sample: SampleState
    head: bytes = b""
    """The rendered beginning of its plain events."""
    started: bool = False


class Answer:
    """An answer in the making: its envelope, its choices and what the body asked to see."""

    def __init__(
        self,
        generation: Generation,
        body: SamplingBody,
        *,
        request_id: str,
        model: str,
        logprob_format: LogprobFormat,
        fleet: bool,
    ) -> None:
        resume = body.resume
        self.generation = generation
        self.logprob_format = logprob_format
        self.fleet = fleet
        self.opened = resume is not None and resume.opened
        self.stream = bool(body.stream)
        self.return_token_ids = bool(body.return_token_ids)
        options = body.stream_options
        self.include_usage = bool(options and options.include_usage)
        self.usage_in_each = self.include_usage and bool(options and options.continuous_usage_stats)
        self.envelope: dict[str, Any] = {
            "id": (resume and resume.id) or self.id_prefix + request_id,
            "object": self.chunk_object if self.stream else self.object,
            "created": (resume and resume.created) or int(time.time()),
            "model": model,
        }
        self.choices = {
            choice.index: choice
            for choice in (
                Choice(run.first_choice + sample.index, run, sample)
                for run in generation.runs
                for sample in run.assembler.samples
            )
        }

    id_prefix = ""
    object = ""
    chunk_object = ""

    @property
    def usage(self) -> dict[str, Any]:
        """Token counts so far."""
        return usage_of(self.generation)

    @property
    def shows_logprobs(self) -> bool:
        """True when the events carry log-probabilities."""
        return self.generation.runs[0].request.params.logprobs is not None

    @property
    def is_wide(self) -> bool:
        """True when a token's log-probabilities are so many that they need `encode_in_turns`."""
        return is_long(self.generation.runs[0].request.params.logprobs or 0)

    @property
    def opens_long(self) -> bool:
        """True when opening choices have lists for `encode_in_turns`."""
        return False

    def delta(self, choice: Choice, update: SampleUpdate) -> dict[str, Any]:
        """Return the fields that an update adds to a choice; called once an update."""
        return {"content": update.text}

    def chunk_choice(
        self, choice: Choice, update: SampleUpdate, delta: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """A chunk's choice, with its end (`finish_fields`) if it has one; `delta` was made of the
        same update."""
        raise NotImplementedError

    def opening_choice(self, choice: Choice) -> dict[str, Any] | None:
        """A chunk's choice that comes before any text; None when there is nothing to say."""
        raise NotImplementedError

    def plain_choice(self, choice: Choice) -> tuple[bytes, bytes]:
        """Return what stands before and after the JSON string in a chunk that only adds text."""
        raise NotImplementedError

    def take(self, updates: list[SampleUpdate]) -> None:
        """Note what was added to an answer that is not streamed."""

    def body(self) -> dict[str, Any]:
        """The unary answer, after the generation has ended."""
        raise NotImplementedError


def finish_fields(reason: FinishReason | None, stop_reason: int | str | None) -> dict[str, Any]:
    """Return the fields that say how a choice ended; `stop_reason` is vLLM's addition."""
    if reason is None:
        return {"finish_reason": None}
    return {"finish_reason": reason.value, "stop_reason": stop_reason}


def usage_of(generation: Generation) -> dict[str, Any]:
    """Return the usage of what the client has received so far, over all prompts and choices."""
    prompt = sum(run.request.num_prompt_tokens for run in generation.runs)
    output = sum(run.assembler.num_output_tokens for run in generation.runs)
    cached = sum(run.num_cached_tokens for run in generation.runs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
