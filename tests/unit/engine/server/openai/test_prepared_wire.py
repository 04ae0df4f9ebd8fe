"""A prepared request is the same on the other side, but for what only the core needs."""

from __future__ import annotations

import asyncio
from array import array

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.request import EngineRequest, Resume
from kvasir_engine.sampling_params import SamplingParams
from kvasir_engine.server.generation.run import PromptRun
from kvasir_engine.server.openai.prepared_wire import decode_prepared, encode_prepared
from kvasir_engine.server.openai.preparer import PreparedRequest
from kvasir_engine.server.openai.schema import ChatBody, CompletionBody, ResumeBody
from kvasir_engine.text.output_assembler import OutputAssembler


def run(tokenizer: Tokenizer, ids: list[int], text: str | None, first: int = 0) -> PromptRun:
    request = EngineRequest(
        "r",
        0,
        array("i", ids),
        SamplingParams(stop=["x"], logit_bias={5: 1.0}, allowed_token_ids=[5, 6]),
        [257],
        b"h" * 16,
        "salt",
        "sql",
        3,
        Resume([104], 9, 1),
    )
    return PromptRun(request, OutputAssembler(request, tokenizer), text, first, 7, True, 2)


async def test_runs_and_flags_survive(byte_tokenizer: Tokenizer) -> None:
    body = CompletionBody(
        prompt=["a"], echo=True, stream=True, stop="x", resume=ResumeBody(output_token_ids=[104])
    )
    runs = [run(byte_tokenizer, [1, 2, 3], "abc"), run(byte_tokenizer, [258], None, 4)]
    content = encode_prepared(PreparedRequest(body, runs, "mine"))
    made = await decode_prepared(content, CompletionBody, byte_tokenizer)
    assert made.answer_id == "mine"
    assert [each.request for each in made.runs] == [each.request for each in runs]
    assert [each.prompt_text for each in made.runs] == ["abc", None]
    fields = [(r.first_choice, r.sent_chars, r.finish_sent, r.cached_tokens) for r in made.runs]
    assert fields == [(0, 7, True, 2), (4, 7, True, 2)]
    assert isinstance(made.body, CompletionBody)
    assert (made.body.echo, made.body.stream, made.body.prompt) == (True, True, None)
    assert made.body.resume == ResumeBody()


async def test_a_prompts_text_travels_only_to_be_echoed(byte_tokenizer: Tokenizer) -> None:
    body = ChatBody(messages=[{"role": "user", "content": "long"}])
    content = encode_prepared(PreparedRequest(body, [run(byte_tokenizer, [1], "long")]))
    made = await decode_prepared(content, ChatBody, byte_tokenizer)
    assert made.runs[0].prompt_text is None
    assert b"long" not in content


async def test_others_have_their_turn_between_long_prompts(byte_tokenizer: Tokenizer) -> None:
    runs = [run(byte_tokenizer, [1] * 40_000, None) for _ in range(3)]
    content = encode_prepared(PreparedRequest(CompletionBody(), runs))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await decode_prepared(content, CompletionBody, byte_tokenizer)
    task.cancel()
    assert turns >= 3
