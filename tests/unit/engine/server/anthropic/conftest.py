"""A server whose model calls tools and reasons, and Anthropic's client."""

from __future__ import annotations

from typing import Any

import pytest
from support.answer_texts import HARMONY_ANSWERS, REASONING_ANSWERS, Answer
from support.engine_server import EOS

from kvasir.text.chat_template import ChatTemplate
from kvasir_engine.text.parsing.formats import HARMONY_REASONING
from kvasir_engine.text.parsing.message_parser import Parsing

TEMPLATE = """{%- if tools %}{{ '<tools>' }}{{ tools[0].function.name }}{% endif -%}
{%- for m in messages -%}
{{ '<' + m.role + '>' }}{{ m.reasoning_content or '' }}{{ m.content or '' }}
{%- for call in m.tool_calls or [] %}{{ call.function.name }}={{ call.function.arguments.city }}
{%- endfor -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif -%}
{%- if enable_thinking is false %}{{ '<think></think>' }}{% endif -%}"""


@pytest.fixture
async def start(start_server: Any) -> Any:
    async def started(answer: Answer | None = None, **options: Any) -> Any:
        server = await start_server(**options)
        formats = {}
        if answer is not None:
            kind = "reasoning" if answer in REASONING_ANSWERS else "tools"
            formats = {kind: answer.format}
            if answer in HARMONY_ANSWERS:
                formats["reasoning"] = HARMONY_REASONING
            server.core.text = answer.text
            encoded = server.core.tokenizer.encode
            server.core.tokens = lambda seed, sample: [*encoded(answer.text), EOS]
        state = server.app.state.server
        state.model.chat_template = ChatTemplate(TEMPLATE)
        state.model.parsing = state.preparer._parsing = Parsing.choose(
            server.core.tokenizer, None, **{"tools": "hermes", "reasoning": "none", **formats}
        )
        return server

    return started
