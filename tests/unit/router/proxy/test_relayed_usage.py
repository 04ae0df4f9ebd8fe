"""Usage that engines tell of the answers that are relayed."""

import json
from typing import Any

import pytest

BODY = b'{ "model": "m",  "prompt": "\\u00e9" }'
EVENTS = [b"data: {}\n\n", b": comment\n\n", b'data: {"a": "\xc3\xa9"}\n\n', b"data: [DONE]\n\n"]


async def stream_events(exchange: Any) -> None:
    await exchange.start_events()
    for event in EVENTS:
        await exchange.chunk(event)
    await exchange.end()


async def break_stream(exchange: Any) -> None:
    await exchange.start_events()
    await exchange.chunk(EVENTS[0] + b"data: half an ev")
    exchange.reset()


class TestUsage:
    """Where it is read, and where a client does not see that it was asked for."""

    KVASIR = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}

    async def used(self, router) -> list[float]:
        """Prompt, output and cached tokens, as they are accounted for."""
        kinds = "prompt", "completion", "cached"
        return [await router.metric("tokens_total", kind=kind) for kind in kinds]

    async def test_of_a_kvasir_engine_in_the_header(self, one, client) -> None:
        async def answer(exchange: Any) -> None:
            await exchange.json(200, {}, b"x-kvasir-usage: " + json.dumps(self.KVASIR).encode())

        router, _ = await one(answer, fleet_secret="s")
        response = await client.post(f"{router.url}/v1/completions", content=BODY)
        assert "x-kvasir-usage" not in response.headers
        assert await self.used(router) == [5, 2, 0]

    async def test_of_another_engine_in_the_body(self, one, client) -> None:
        async def answer(exchange: Any) -> None:
            await exchange.json(200, {"choices": [], "usage": self.KVASIR})

        router, _ = await one(answer)
        await client.post(f"{router.url}/v1/completions", content=BODY)
        assert await self.used(router) == [5, 2, 0]

    @pytest.mark.parametrize("asks", [False, True])
    async def test_of_another_engines_stream(self, one, client, asks: bool) -> None:
        last = b'data: {"choices":[],"usage":%b}\n\n' % json.dumps(self.KVASIR).encode()

        async def answer(exchange: Any) -> None:
            body = json.loads(exchange.request.body)
            assert body["stream_options"] == {"include_usage": True}
            await exchange.start_events()
            await exchange.chunk(EVENTS[0])
            await exchange.chunk(last + b"data: [DONE]\n\n")
            await exchange.end()

        router, _ = await one(answer)
        body = {"model": "m", "prompt": "a", "stream": True}
        if asks:
            body["stream_options"] = {"include_usage": True}
        response = await client.post(f"{router.url}/v1/completions", json=body)
        assert (b'"usage"' in response.content) is asks
        assert response.text.endswith("data: [DONE]\n\n")
        assert await self.used(router) == [5, 2, 0]
