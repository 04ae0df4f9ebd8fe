"""The server over the real core in its own process, with the simulated runner."""

from __future__ import annotations

import asyncio
import json

import pytest

pytestmark = pytest.mark.slow

SECRET = {"x-kvasir-fleet-secret": "fleet"}


async def text_of(stream) -> str:
    return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])


async def test_streams_answers_and_resumes(start_real):
    async with start_real(secret="fleet", max_num_seqs=8, num_blocks=200) as server:
        client = server.openai()
        body = {"model": "tiny", "prompt": "hello there", "max_tokens": 40, "seed": 7}
        unary = await client.completions.create(**body, n=2)
        assert unary.usage.completion_tokens == 80
        assert await text_of(await client.completions.create(**body, stream=True)) == (
            unary.choices[0].text
        )
        ids = (await server.post("/v1/completions", {**body, "return_token_ids": True})).json()[
            "choices"
        ][0]["token_ids"]
        for at in (0, 1, 17, 39, 40):
            resume = {"output_token_ids": ids[:at], "seed": 7, "sent_chars": 0}
            again = await server.post("/v1/completions", {**body, "resume": resume}, headers=SECRET)
            assert again.json()["choices"][0]["text"] == unary.choices[0].text
            assert again.json()["usage"]["completion_tokens"] == 40
            assert again.headers["x-kvasir-seed"] == "7"


async def test_the_card_says_what_a_stream_may_move_to(start_real):
    async with start_real() as server:
        card = (await server.openai().models.list()).data[0].to_dict()
        assert (card["dtype"], card["quantization"], card["revision"]) == ("float32", None, None)
        assert card["kv_cache_dtype"] == "float32"
    async with start_real(dtype="float16") as server:
        assert (await server.openai().models.list()).data[0].to_dict()["dtype"] == "float16"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "an <image>"}, "prompt"),
        ({"prompt": ["fine", "an <image>"]}, "prompt"),
        ({"prompt": [1, 258]}, "prompt"),
        ({"messages": [{"role": "user", "content": "<image>"}]}, "messages"),
        ({"prompt": "x", "resume": {"output_token_ids": [258]}}, "resume.output_token_ids"),
        ({"prompt": "x", "bad_words": ["<image>"]}, "bad_words"),
        ({"prompt": "x", "logit_bias": {"258": 1}}, "logit_bias"),
        ({"prompt": "x", "stop_token_ids": [258]}, "stop_token_ids"),
        ({"prompt": "x", "allowed_token_ids": [258]}, "allowed_token_ids"),
    ],
)
async def test_a_token_that_the_model_lacks_is_named(start_real, fields, param):
    path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
    async with start_real(secret="fleet", num_blocks=100) as server:
        answer = await server.post(path, {**fields, "max_tokens": 2}, headers=SECRET)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param)
        named = "token 258 ('<image>')"
        assert error["message"] == f"{param} names {named}, but the vocabulary is 0 to 257."
        good = await server.post("/v1/completions", {"prompt": "x", "max_tokens": 2})
        assert good.status_code == 200


async def test_a_left_request_frees_the_core(start_real):
    async with start_real(max_num_seqs=4, num_blocks=100) as server:
        body = {"prompt": "x", "max_tokens": 400, "stream": True, "ignore_eos": True}
        async with server.http.stream("POST", "/v1/completions", json=body) as answer:
            await anext(answer.aiter_text())
        async with asyncio.timeout(10):
            while (await server.get("/load")).json()["kv_usage"] > 0:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (await server.get("/load")).json()["running"] == 0


async def test_a_left_search_frees_the_core(start_real, model_dir):
    slow = json.loads(INSTANT) | {"name": "slow", "overhead_ms": 20.0}
    (model_dir / "slow.json").write_text(json.dumps(slow))
    profile = str(model_dir / "slow.json")
    async with start_real(max_num_seqs=4, num_blocks=100, speed_profile=profile) as server:

        async def until(running: bool) -> None:
            async with asyncio.timeout(10):
                while (await server.get("/load")).json()["running"] != 4 * running:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

        body = {"prompt": "x", "max_tokens": 400, "n": 4, "use_beam_search": True}
        asked = asyncio.create_task(server.post("/v1/completions", {**body, "ignore_eos": True}))
        await until(running=True)
        asked.cancel()
        await until(running=False)
        assert (await server.get("/load")).json()["waiting"] == 0
        # Rows for all: none is left behind.
        answer = await server.post("/v1/completions", {**body, "max_tokens": 3})
        assert len(answer.json()["choices"]) == 4


async def test_a_full_queue_is_429_before_any_head(start_real, model_dir):
    slow = json.loads(INSTANT) | {"name": "slow", "overhead_ms": 50.0}
    (model_dir / "slow.json").write_text(json.dumps(slow))
    profile = str(model_dir / "slow.json")
    async with start_real(
        max_num_seqs=1, max_queued_requests=1, num_blocks=100, speed_profile=profile
    ) as server:
        body = {"prompt": "x", "max_tokens": 16, "ignore_eos": True, "stream": True}
        answers = await asyncio.gather(
            *(server.post("/v1/completions", {**body, "prompt": f"{i}"}) for i in range(6))
        )
        statuses = sorted(answer.status_code for answer in answers)
        assert statuses[0] == 200
        assert statuses[-1] == 429
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"


async def test_a_drain_ends_with_the_last_request(start_real):
    async with start_real(max_num_seqs=4, num_blocks=100) as server:
        body = {"prompt": "x", "max_tokens": 300, "ignore_eos": True, "stream": True}
        body["stream_options"] = {"include_usage": True}
        async with server.http.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            await server.lifecycle.drain(30.0)
            assert (await server.get("/load")).json()["running"] == 0
            events = [line async for line in lines if line.startswith("data: {")]
        usage = json.loads(events[-1].removeprefix("data: "))["usage"]
        assert usage["completion_tokens"] == 300


INSTANT = """{"name": "instant", "source": "test", "date": "2026-01-01", "gemm_points": [[1, 0.0]],
"kv_bytes_per_token": 0.0, "kv_bandwidth_bytes_s": 1.0, "attention_flops_per_pair": 0.0,
"attention_flops_s": 1.0, "overhead_ms": 0.0, "small_us_per_token": 0.0, "num_kv_blocks": 1000}"""


async def test_usage_and_seed_of_beams_are_of_all_beams(start_real):
    async with start_real(secret="fleet", max_num_seqs=8, num_blocks=200) as server:
        body = {"prompt": "a prompt of more than two blocks of text", "max_tokens": 9, "seed": 7}
        body |= {"use_beam_search": True, "ignore_eos": True, "return_token_ids": True}
        for width in (1, 2, 3, 4):
            answer = await server.post("/v1/completions", {**body, "n": width}, headers=SECRET)
            beams = {tuple(choice["token_ids"]) for choice in answer.json()["choices"]}
            assert len(beams) == width
            usage = answer.json()["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (40, 9 * width)
            assert usage["prompt_tokens_details"]["cached_tokens"] == (0 if width == 1 else 32)
            assert json.loads(answer.headers["x-kvasir-usage"]) == usage
            assert answer.headers["x-kvasir-seed"] == "7"


async def test_the_prefix_cache_can_be_reset(start_real):
    async with start_real(num_blocks=200) as server:

        async def cached_tokens() -> int:
            body = {"prompt": list(range(40)), "max_tokens": 1}
            usage = (await server.post("/v1/completions", body)).json()["usage"]
            return usage["prompt_tokens_details"]["cached_tokens"]

        assert [await cached_tokens(), await cached_tokens()] == [0, 32]
        assert (await server.post("/reset_prefix_cache")).status_code == 200
        assert await cached_tokens() == 0
