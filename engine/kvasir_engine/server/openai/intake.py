"""Intake of a checked body as the runs of a Generation: prompts, limits, resume."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvasir.text.chat_messages import MessageError, normalise_messages
from kvasir.text.chat_template import ChatTemplate, TemplateError
from kvasir_engine.inputs import RequestMaker
from kvasir_engine.request import Resume
from kvasir_engine.sampling_params import ParameterError, SamplingParams
from kvasir_engine.server.generation.run import PromptRun
from kvasir_engine.server.loop_turns import LoopTurns
from kvasir_engine.server.openai.api_error import ApiError, invalid
from kvasir_engine.server.openai.schema import ChatBody, ResumeBody, SamplingBody, TokenizeBody
from kvasir_engine.server.openai.structured import field_that_asks
from kvasir_engine.server.openai.tools.tool_request import template_arguments, template_tools
from kvasir_engine.text.output_assembler import OutputAssembler

INLINE_CHARS = 8192
"""Longer texts are tokenised in a thread, so that they do not hold up the running streams."""
INLINE_MESSAGES = 32
"""Longer conversations are rendered in a thread, for the same reason."""
INLINE_TOOLS = 16
MAX_PROMPTS = 256
MAX_PROMPT_TOKENS = 2**20
"""Tokens of all prompts of one request, where the context is not longer."""
MAX_CHOICES = 1024
MAX_ANSWER_ID_CHARS = 256
MAX_PRIORITY = 2**31 - 1


@dataclass(slots=True)
class TokenPrompt:
    """A prompt as the core takes it, with its text if it was given as text."""

    token_ids: list[int]
    text: str | None


class Intake:
    """Make runs for one model once the core's sizes are known."""

    def __init__(
        self, maker: RequestMaker, max_model_len: int, turns: LoopTurns | None = None
    ) -> None:
        """`turns` are those of the event loop, where it has streams to go on with."""
        self.maker = maker
        self.max_model_len = max_model_len
        self.turns = turns or LoopTurns()

    def for_adapter(self, name: str) -> Intake:
        """The same for a LoRA adapter of the model."""
        return Intake(replace(self.maker, lora=name), self.max_model_len, self.turns)

    def check_text(self, param: str) -> None:
        """Raise a 400 if there is no tokenizer for `param`, which is text."""
        try:
            self.maker.check_text(param)
        except ParameterError as error:
            raise invalid(str(error), param, "no_tokenizer") from error

    async def encode(self, text: str, *, add_special_tokens: bool, param: str) -> list[int]:
        """Token ids of `text`; a 400 when it cannot be valid or cannot fit."""
        self.check_text(param)
        tokenizer = self.maker.tokenizer
        if len(text) > self.max_model_len * tokenizer.longest_token_chars:
            raise invalid(
                f"{param} has {len(text)} characters, which cannot fit the model's context of "
                f"{self.max_model_len} tokens; shorten it.",
                param,
                "context_length_exceeded",
            )
        try:
            if len(text) <= INLINE_CHARS:
                return tokenizer.encode(text, add_special_tokens=add_special_tokens)
            ids = await asyncio.to_thread(
                tokenizer.encode, text, add_special_tokens=add_special_tokens
            )
        except ValueError as error:
            raise invalid(f"{param}: {error}.", param, "invalid_utf8") from error
        await self.turns.enter()
        return ids

    async def chat_text(self, body: ChatBody | TokenizeBody) -> str:
        """The chat template's text for a body's messages."""
        self.check_text("messages")
        template = self.maker.chat_template
        if template is None:
            raise invalid(
                "This model has no chat template; use /v1/completions, or start the server with "
                "--chat-template.",
                "messages",
                "no_chat_template",
            )
        if body.continue_final_message and body.add_generation_prompt:
            raise invalid(
                "continue_final_message and add_generation_prompt exclude each other.",
                "continue_final_message",
            )
        if not body.messages:
            raise invalid("messages must not be empty.", "messages")
        try:
            short = len(body.messages) <= INLINE_MESSAGES and len(body.tools or ()) <= INLINE_TOOLS
            if short and body.documents is None:
                return render_chat(template, body, body.messages)
            text = await asyncio.to_thread(render_chat, template, body, body.messages)
        except MessageError as error:
            raise invalid(str(error), error.param) from error
        except TemplateError as error:
            raise invalid(str(error), "messages", "chat_template_error") from error
        await self.turns.enter()
        return text

    async def prompts(self, given: Any, *, add_special_tokens: bool) -> list[TokenPrompt]:
        """The `prompt` of /v1/completions in its four forms."""
        if given is None:
            raise invalid("prompt is required.", "prompt")
        entries: Sequence[Any] = given if isinstance(given, list) else [given]
        if not entries:
            raise invalid("prompt must not be empty.", "prompt")
        if isinstance(entries[0], int):
            entries = [entries]
        if len(entries) > MAX_PROMPTS:
            raise invalid(f"prompt takes at most {MAX_PROMPTS} prompts.", "prompt")
        most = max(MAX_PROMPT_TOKENS, self.max_model_len)
        made: list[TokenPrompt] = []
        for number, entry in enumerate(entries):
            param = f"prompt[{number}]" if len(entries) > 1 else "prompt"
            if isinstance(entry, str):
                ids = await self.encode(entry, add_special_tokens=add_special_tokens, param=param)
                made.append(TokenPrompt(ids, entry))
            else:
                made.append(TokenPrompt(self._token_ids(entry, param), None))
            await self.turns.pause()
            most -= len(made[-1].token_ids)
            if most < 0:
                raise invalid(
                    f"The prompts have more than {max(MAX_PROMPT_TOKENS, self.max_model_len)} "
                    "tokens together; send fewer at once.",
                    "prompt",
                )
        return made

    def _token_ids(self, entry: Any, param: str) -> list[int]:
        if isinstance(entry, list) and len(entry) > self.max_model_len:
            # Before each is looked at: there may be millions.
            raise too_long(len(entry), None, self.max_model_len)
        if not isinstance(entry, list) or any(type(token) is not int for token in entry):
            raise invalid(
                f"{param} must be a string or a list of token ids, all of one kind.", param
            )
        return entry

    async def runs(
        self,
        prompts: list[TokenPrompt],
        params: SamplingParams,
        body: SamplingBody,
        request_id: str,
        *,
        echo: bool = False,
    ) -> list[PromptRun]:
        """Return one run a prompt; with `resume`, the one it names."""
        if len(prompts) * params.n > MAX_CHOICES:
            raise invalid(
                f"{len(prompts)} prompts with n = {params.n} make more than {MAX_CHOICES} "
                "choices; send fewer at once.",
                "n",
            )
        if body.resume is not None:
            return [self._resumed_run(prompts, params, body, body.resume, request_id, echo)]
        runs = []
        for number, prompt in enumerate(prompts):
            await self.turns.pause()
            runs.append(self._run(prompt, params, body, request_id, first_choice=number * params.n))
        return runs

    def _resumed_run(
        self,
        prompts: list[TokenPrompt],
        params: SamplingParams,
        body: SamplingBody,
        resume: ResumeBody,
        request_id: str,
        echo: bool,
    ) -> PromptRun:
        self._check_resume(resume, len(prompts) * params.n)
        number, sample = divmod(resume.sample_index, params.n)
        prompt = prompts[number]
        echoed = len(prompt.text or "") if echo else 0
        run = self._run(
            prompt,
            params.clone(n=1, seed=params.seed if resume.seed is None else resume.seed),
            body,
            request_id,
            first_choice=number * params.n,
            resume=Resume(resume.output_token_ids, resume.seed, sample),
        )
        run.sent_chars = max(0, resume.sent_chars - echoed)
        run.cached_tokens = resume.cached_tokens
        run.finish_sent = resume.finished
        return run

    def _check_resume(self, resume: ResumeBody, choices: int) -> None:
        if not 0 <= resume.sample_index < choices:
            raise invalid(
                f"resume.sample_index must be 0 to {choices - 1}, got {resume.sample_index}.",
                "resume.sample_index",
            )
        if resume.sent_chars < 0:
            raise invalid("resume.sent_chars must be at least 0.", "resume.sent_chars")
        if len(resume.output_token_ids) > self.max_model_len:
            raise invalid(
                f"resume.output_token_ids has {len(resume.output_token_ids)} tokens, but the "
                f"model's context is {self.max_model_len}.",
                "resume.output_token_ids",
            )
        if resume.id is not None and len(resume.id) > MAX_ANSWER_ID_CHARS:
            raise invalid(f"resume.id has more than {MAX_ANSWER_ID_CHARS} characters.", "resume.id")

    def _run(
        self,
        prompt: TokenPrompt,
        params: SamplingParams,
        body: SamplingBody,
        request_id: str,
        *,
        first_choice: int,
        resume: Resume | None = None,
    ) -> PromptRun:
        priority = body.priority or 0
        if abs(priority) > MAX_PRIORITY:
            raise invalid(f"priority must be within ±{MAX_PRIORITY}.", "priority")
        asked = (body.max_tokens, getattr(body, "max_completion_tokens", None)) != (None, None)
        params = self._fit(params, len(prompt.token_ids), asked=asked)
        try:
            request = self.maker.request(
                request_id,
                prompt.token_ids,
                params,
                priority=priority,
                cache_salt=body.cache_salt or "",
                resume=resume,
            )
        except ParameterError as error:
            raise _named_as_sent(error, body) from error
        assembler = OutputAssembler(request, self.maker.tokenizer, prompt.text)
        return PromptRun(request, assembler, prompt.text, first_choice)

    def _fit(self, params: SamplingParams, prompt_tokens: int, *, asked: bool) -> SamplingParams:
        """Check prompt and output against the context; a default becomes what is left of it."""
        if prompt_tokens == 0:
            raise invalid("The prompt has no tokens; give at least one.", "prompt")
        left = self.max_model_len - prompt_tokens
        wanted = params.max_tokens if asked else None
        if left < 1 or (wanted is not None and wanted > left):
            raise too_long(prompt_tokens, wanted, self.max_model_len)
        most = left if params.max_tokens is None else params.max_tokens
        return params.clone(max_tokens=min(left, most))


def render_chat(
    template: ChatTemplate, body: ChatBody | TokenizeBody, messages: Sequence[Any]
) -> str:
    """The prompt's text for `messages` with a body's flags. Raises MessageError, TemplateError."""
    continued = bool(body.continue_final_message)
    prompt = body.add_generation_prompt
    return template.render(
        normalise_messages(messages, template.content_format),
        add_generation_prompt=not continued if prompt is None else prompt,
        continue_final_message=continued,
        tools=template_tools(body),
        documents=body.documents,
        template_kwargs=template_arguments(body),
    )


def too_long(prompt_tokens: int, max_tokens: int | None, max_model_len: int) -> ApiError:
    """400 for a request beyond the context, with all the numbers."""
    asked = f"{prompt_tokens} in the prompt"
    if max_tokens is not None:
        asked += f", {max_tokens} in the completion (max_tokens)"
    return invalid(
        f"This model's maximum context length is {max_model_len} tokens, but the request asks for "
        f"{prompt_tokens + (max_tokens or 1)} tokens: {asked}. Shorten the prompt or the "
        "completion.",
        "max_tokens" if prompt_tokens < max_model_len else "prompt",
        "context_length_exceeded",
    )


_SENT_AS: Mapping[str, str] = {
    "logprobs": "top_logprobs",
    "max_tokens": "max_completion_tokens",
    "prompt": "messages",
}


def _named_as_sent(error: ParameterError, body: SamplingBody) -> ApiError:
    """A chat body has other names for some parameters."""
    param, asked = error.param, "structured_outputs"
    if param != asked and asked in str(error):
        return invalid(str(error).replace(asked, field_that_asks(body), 1), param)
    other = _SENT_AS.get(param, param)
    if param == "structured_outputs":
        other = field_that_asks(body)
        return invalid(str(error).replace(param, other, 1), other)
    if isinstance(body, ChatBody) and getattr(body, other, None) is not None:
        # Not in the name of a flag
        return invalid(re.sub(rf"(?<!-){param}", other, str(error), count=1), other)
    return invalid(str(error), param)
