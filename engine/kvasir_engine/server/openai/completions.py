"""Answers of /v1/completions."""

from __future__ import annotations

from typing import Any

from kvasir_engine.server.generation.generation import Generation
from kvasir_engine.server.openai.answer import Answer, Choice, finish_fields
from kvasir_engine.server.openai.logprob_format import join_legacy
from kvasir_engine.server.openai.schema import CompletionBody
from kvasir_engine.text.sample_state import SampleUpdate


class CompletionAnswer(Answer):
    """OpenAI's legacy completion, with vLLM's additions where they were asked for."""

    id_prefix = "cmpl-"
    object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, generation: Generation, body: CompletionBody, **options: Any) -> None:
        super().__init__(generation, body, **options)
        self._echo = bool(body.echo)
        resume = body.resume
        # What a resumed answer's client has of the prompt's text is not sent again.
        self._echo_sent = 0 if resume is None else resume.sent_chars

    @property
    def opens_long(self) -> bool:
        """See Answer."""
        return self._echo and self.shows_logprobs and not self.opened

    def opening_choice(self, choice: Choice) -> dict[str, Any] | None:
        """The echoed prompt and, if asked for, its ids."""
        text = self._echoed(choice)[self._echo_sent :]
        show_ids = self.return_token_ids and not self.opened
        if not text and not show_ids:
            return None
        made: dict[str, Any] = {"index": choice.index, "text": text, "logprobs": None}
        if text and self.shows_logprobs and not self.opened:
            made["logprobs"] = self._prompt_logprobs(choice)
        if show_ids:
            made["prompt_token_ids"] = list(choice.run.request.prompt_token_ids)
            made["token_ids"] = []
        return {**made, "finish_reason": None}

    def plain_choice(self, choice: Choice) -> tuple[bytes, bytes]:
        """See Answer."""
        return b'{"index":%d,"text":' % choice.index, b',"logprobs":null,"finish_reason":null}'

    def chunk_choice(
        self, choice: Choice, update: SampleUpdate, delta: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """See Answer."""
        made: dict[str, Any] = {"index": choice.index, "text": update.text, "logprobs": None}
        if update.logprobs is not None:
            shift = len(self._echoed(choice))
            offsets = [shift + offset for offset in update.text_offsets]
            made["logprobs"] = self.logprob_format.legacy(update.logprobs, offsets)
        if self.return_token_ids:
            made["token_ids"] = update.token_ids
        return {**made, **finish_fields(update.finish_reason, update.stop_reason)}

    def body(self) -> dict[str, Any]:
        """See Answer."""
        return {
            **self.envelope,
            "choices": [self._choice(choice) for choice in self.choices.values()],
            "usage": self.usage,
        }

    def _choice(self, choice: Choice) -> dict[str, Any]:
        sample, run = choice.sample, choice.run
        text = (self._echoed(choice) + sample.text)[self._echo_sent :]
        made: dict[str, Any] = {
            "index": choice.index,
            "text": text,
            "logprobs": self._logprobs(choice),
        }
        if run.request.params.prompt_logprobs is not None:
            made["prompt_logprobs"] = self.logprob_format.prompt(run.assembler.prompt_logprobs)
        if self.return_token_ids:
            made["prompt_token_ids"] = list(run.request.prompt_token_ids)
            made["token_ids"] = sample.token_ids[choice.run.num_resumed_tokens :]
        return {**made, **finish_fields(sample.finish_reason, sample.stop_reason)}

    def _logprobs(self, choice: Choice) -> dict[str, Any] | None:
        sample = choice.sample
        if sample.logprobs is None:
            return None
        shift = len(self._echoed(choice))
        offsets = [shift + offset for offset in sample.text_offsets]
        made = self.logprob_format.legacy(sample.logprobs, offsets)
        if self._echo and not self.opened:
            return join_legacy(self._prompt_logprobs(choice), made)
        return made

    def _echoed(self, choice: Choice) -> str:
        if not self._echo:
            return ""
        run = choice.run
        if run.prompt_text is None:
            run.prompt_text = self.logprob_format.decode(run.request.prompt_token_ids)
        return run.prompt_text

    def _prompt_logprobs(self, choice: Choice) -> dict[str, Any]:
        run = choice.run
        return self.logprob_format.in_turns().legacy_prompt(
            run.request.prompt_token_ids, run.assembler.prompt_logprobs
        )
