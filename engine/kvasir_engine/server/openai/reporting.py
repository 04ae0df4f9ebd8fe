"""Give the prompts of HTTP requests to the reporter, when a router watches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from kvasir.text.chat_template import ChatTemplate
from kvasir_engine.server.generation.run import PromptRun
from kvasir_engine.server.openai.intake import render_chat
from kvasir_engine.server.openai.schema import ChatBody, CompletionBody
from kvasir_engine.server.reports.reporter import PromptTaker


def report_runs(
    reporter: PromptTaker,
    template: ChatTemplate | None,
    body: ChatBody | CompletionBody,
    runs: Sequence[PromptRun],
) -> None:
    """Have each run reported whose prompt was text."""
    fields = msgspec.structs.asdict(body)
    for run in runs:
        request, text = run.request, run.prompt_text
        if text is None:
            continue
        if not isinstance(body, ChatBody):
            reporter.completion(
                fields,
                text,
                request.prompt_token_ids,
                request.block_hashes,
                add_special_tokens=body.add_special_tokens is not False,
                lora=request.lora,
            )
        elif template is not None:
            reporter.chat(
                fields,
                text,
                request.prompt_token_ids,
                request.block_hashes,
                partial(render_chat, template, body),
                add_special_tokens=bool(body.add_special_tokens),
                lora=request.lora,
            )
