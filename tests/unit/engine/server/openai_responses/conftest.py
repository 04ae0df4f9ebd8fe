"""A server whose model calls tools and reasons, and OpenAI's client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.answer_texts import REASONING_ANSWERS, Answer
from support.engine_server import EOS

from kvasir.text.chat_template import ChatTemplate
from kvasir_engine.text.parsing.message_parser import Parsing

TEMPLATE = """{%- if tools %}{{ '<tools>' }}{% for t in tools %}{{ t.function.name }}{% endfor -%}
{%- endif -%}
{%- for m in messages -%}
{{ '<' + m.role + '>' }}{{ m.reasoning_content or '' }}{{ m.content or '' }}
{%- for call in m.tool_calls or [] %}{{ call.function.name }}={{ call.function.arguments.city }}
{%- endfor -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif -%}
{%- if enable_thinking is false %}{{ '<think></think>' }}{% endif -%}
{%- if reasoning_effort %}{{ reasoning_effort }}{% endif -%}"""


@pytest.fixture
async def start(start_server: Any) -> Any:
    async def started(answer: Answer | None = None, **options: Any) -> Any:
        server = await start_server(**options)
        formats = {}
        if answer is not None:
            kind = "reasoning" if answer in REASONING_ANSWERS else "tools"
            formats = {kind: answer.format}
            say(server, answer.text)
        state = server.app.state.server
        state.model.chat_template = ChatTemplate(TEMPLATE)
        state.model.parsing = state.preparer._parsing = Parsing.choose(
            server.core.tokenizer, None, **{"tools": "hermes", "reasoning": "none", **formats}
        )
        return server

    return started


def say(server: Any, text: str) -> None:
    """Let every answer be `text`."""
    server.core.text = text
    tokens = [*server.core.tokenizer.encode(text), EOS]
    server.core.tokens = lambda seed, sample: tokens


@pytest.fixture
def prompt_of() -> Callable[[Any], str]:
    def read(server: Any) -> str:
        ids = server.core.requests[-1].prompt_token_ids
        return str(server.core.tokenizer.decode(ids))

    return read
