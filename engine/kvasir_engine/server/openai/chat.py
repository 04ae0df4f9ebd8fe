"""Answers of /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from kvasir_engine.server.openai.answer import Answer, Choice, finish_fields
from kvasir_engine.text.sample_state import SampleUpdate


class ChatAnswer(Answer):
    """OpenAI's chat completion, with vLLM's additions where they were asked for."""

    id_prefix = "chatcmpl-"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening_choice(self, choice: Choice) -> dict[str, Any] | None:
        """The role; a resumed answer's client has it already."""
        if self.opened:
            return None
        delta = {"role": "assistant", "content": ""}
        return {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}

    def plain_choice(self, choice: Choice) -> tuple[bytes, bytes]:
        """See Answer."""
        head = b'{"index":%d,"delta":{"content":' % choice.index
        return head, b'},"logprobs":null,"finish_reason":null}'

    def chunk_choice(self, choice: Choice, update: SampleUpdate) -> dict[str, Any]:
        """See Answer."""
        made: dict[str, Any] = {
            "index": choice.index,
            "delta": {"content": update.text},
            "logprobs": None
            if update.logprobs is None
            else self.logprob_format.chat(update.logprobs),
        }
        if self.return_token_ids:
            made["token_ids"] = update.token_ids
        return {**made, **finish_fields(update.finish_reason, update.stop_reason)}

    def body(self) -> dict[str, Any]:
        """See Answer."""
        run = self.generation.runs[0]
        made = {
            **self.envelope,
            "choices": [self._choice(choice) for choice in self.choices.values()],
            "usage": self.usage,
        }
        if run.request.params.prompt_logprobs is not None:
            made["prompt_logprobs"] = self.logprob_format.prompt(run.assembler.prompt_logprobs)
        if self.return_token_ids:
            made["prompt_token_ids"] = run.request.prompt_token_ids
        return made

    def _choice(self, choice: Choice) -> dict[str, Any]:
        sample = choice.sample
        made: dict[str, Any] = {
            "index": choice.index,
            "message": {
                "role": "assistant",
                "content": sample.text[choice.run.sent_chars :],
                "refusal": None,
            },
            "logprobs": None
            if sample.logprobs is None
            else self.logprob_format.chat(sample.logprobs),
        }
        if self.return_token_ids:
            made["token_ids"] = sample.token_ids[choice.run.num_resumed_tokens :]
        return {**made, **finish_fields(sample.finish_reason, sample.stop_reason)}
