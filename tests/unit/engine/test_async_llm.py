"""Inference on an event loop: the tiny model in a process of its own."""

from __future__ import annotations

import asyncio

import pytest

from kvasir_engine import AsyncLLM, SamplingParams
from kvasir_engine.core.client import EngineDeadError
from kvasir_engine.sampling_params import ParameterError
from kvasir_engine.settings import SettingsError

pytestmark = pytest.mark.slow

TINY = "builtin://kvasir-tiny"
GREEDY = SamplingParams(temperature=0, max_tokens=12)


async def test_it_streams_and_leaves_nothing() -> None:
    llm = await AsyncLLM.start(TINY, kv_cache_memory_bytes=16 << 20)

    async def last(prompt: str) -> list[int]:
        seen: list[int] = []
        async for output in llm.generate(prompt, GREEDY):
            assert output.outputs[0].token_ids[: len(seen)] == seen
            seen = output.outputs[0].token_ids
        assert output.finished
        return seen

    one, two = await asyncio.gather(last("The quick"), last("The quick"))
    assert one == two
    stream = llm.generate("Hello", SamplingParams(max_tokens=1000, ignore_eos=True))
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    pid = llm._core.process.pid
    await llm.close()
    assert llm._core.process.poll() is not None, pid


async def test_it_says_why_it_cannot_start() -> None:
    with pytest.raises(EngineDeadError, match="--max-model-len 4096 is longer"):
        await AsyncLLM.start(TINY, max_model_len=4096)
    with pytest.raises(SettingsError, match="--reasoning-parser 'nothing' is"):
        await AsyncLLM.start(TINY, device="sim", num_blocks=512, reasoning_parser="nothing")


async def test_leaving_a_stream_early_aborts_it_and_bad_parameters_run_nothing() -> None:
    llm = await AsyncLLM.start(TINY, device="sim", num_blocks=512)
    try:
        async for _ in llm.generate("Hello", SamplingParams(max_tokens=1000, ignore_eos=True)):
            break
        with pytest.raises(ParameterError, match="top_p"):
            await anext(llm.generate("Hello", SamplingParams(top_p=0.0)))
        with pytest.raises(ParameterError, match=r"do not work with AsyncLLM, .*; use LLM"):
            await anext(llm.generate("Hello", SamplingParams(logits_processors=[len])))
        while llm._client.load().running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert llm._client.load().kv_usage == 0
    finally:
        await llm.close()


async def test_a_stop_string_ends_a_sample_and_its_request() -> None:
    llm = await AsyncLLM.start(TINY, kv_cache_memory_bytes=16 << 20)
    try:
        messages = [{"role": "user", "content": "Sort: 7 3 9 1"}]
        template = llm._maker.chat_template
        assert template is not None
        text = template.render(messages, add_generation_prompt=True)
        params = SamplingParams(temperature=0, max_tokens=40, stop="7")
        outputs = [output async for output in llm.generate(text, params)]
        assert outputs[-1].finished
        sample = outputs[-1].outputs[0]
        assert (sample.text, sample.finish_reason, sample.stop_reason) == ("1 3 ", "stop", "7")
    finally:
        await llm.close()


async def test_the_prefix_cache_can_be_reset_and_the_tokenizer_had() -> None:
    llm = await AsyncLLM.start(TINY, device="sim", num_blocks=512)
    ids = llm.get_tokenizer().encode("The quick brown fox jumps over the lazy dog. " * 4)

    async def cached_tokens() -> int | None:
        prompt = {"prompt_token_ids": ids}
        outputs = [each async for each in llm.generate(prompt, SamplingParams(max_tokens=1))]
        return outputs[-1].num_cached_tokens

    try:
        assert await cached_tokens() == 0
        assert await cached_tokens() == (len(ids) - 1) // 16 * 16 > 0
        llm.reset_prefix_cache()
        assert await cached_tokens() == 0
    finally:
        await llm.close()
