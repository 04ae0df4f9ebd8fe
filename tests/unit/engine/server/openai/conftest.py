"""The engine contract as a router reads it, and servers whose models say what a test wants."""

from __future__ import annotations

from typing import Any

import pytest
from support.answer_texts import HARMONY_ANSWERS, REASONING_ANSWERS, Answer
from support.engine_server import EOS
from support.engines.router_side import RouterSide

from kvasir.text.chat_template import ChatTemplate
from kvasir_engine.text.parsing.message_parser import Parsing

TEMPLATE = """{%- if tools %}{{ '<tools>' }}
{{- tools | tojson if tools | length == 1 else tools[0].function.name }}
{%- endif -%}
{%- for m in messages -%}
{{ '<' + m.role + '>' }}{{ m.content or '' }}
{%- for call in m.tool_calls or [] %}{{ call.function.name }}={{ call.function.arguments.city }}
{%- endfor -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif -%}
{%- if reasoning_effort %}{{ '~' + reasoning_effort }}{% endif -%}
{%- if enable_thinking is false %}{{ '<think></think>' }}{% endif -%}
{%- if open_thinking %}{{ '<think>\n' }}{% endif -%}"""


@pytest.fixture
def router() -> type[RouterSide]:
    """Read the engine contract."""
    return RouterSide


@pytest.fixture
def start(start_server: Any) -> Any:
    """start(answer, tools=..., reasoning=...): a server whose model gives that answer."""

    async def started(answer: Any, *, large: bool = False, **formats: str) -> Any:
        # What a body worker reads by itself
        flags = {"tool_call_parser": formats_of(answer).get("tools", "none")} if large else {}
        template = {"chat_template": TEMPLATE} if large else {}
        server = await start_server(fleet_secret="fleet", **template, **flags)
        encoded = server.core.tokenizer.encode
        if isinstance(answer, Answer):
            server.core.text = answer.text
            formats = formats or formats_of(answer)
        else:
            server.core.text = answer
        server.core.tokens = lambda seed, sample: [
            *encoded(server.core.text),
            EOS,
        ]
        model = server.app.state.server.model
        model.chat_template = ChatTemplate(TEMPLATE)
        model.parsing = Parsing.choose(
            server.core.tokenizer,
            None,
            **{"tools": "none", "reasoning": "none", **formats},
        )
        server.app.state.server.preparer._parsing = model.parsing
        return server

    return started


def formats_of(answer: Answer) -> dict[str, str]:
    if answer in HARMONY_ANSWERS:
        return {"tools": "openai", "reasoning": "openai_gptoss"}
    return {"reasoning" if answer in REASONING_ANSWERS else "tools": answer.format}
