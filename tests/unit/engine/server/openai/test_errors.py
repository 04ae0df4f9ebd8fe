from __future__ import annotations

import openai
import pytest


async def test_the_openai_client_raises_its_own_errors(server):
    async with openai.AsyncOpenAI(
        base_url=server.url + "/v1", api_key="x", max_retries=0
    ) as client:
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="nope", prompt="x")
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model="tiny", prompt="x", top_p=0)
        assert caught.value.param == "top_p"
