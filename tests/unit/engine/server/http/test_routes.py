from __future__ import annotations

import asyncio


async def test_tokens_and_back(server):
    tokenizer = server.core.tokenizer
    answer = await server.post("/tokenize", {"prompt": "hé", "return_token_strs": True})
    assert answer.json() == {
        "count": 3,
        "max_model_len": 512,
        "tokens": tokenizer.encode("hé"),
        "token_strs": ["h", "\ufffd", "\ufffd"],
    }
    chat = {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": True}
    tokens = (await server.post("/tokenize", chat)).json()["tokens"]
    assert tokenizer.decode(tokens) == "<user>hi<assistant>"
    assert (await server.post("/detokenize", {"tokens": tokens})).json() == {
        "prompt": "<user>hi<assistant>"
    }
    assert (await server.post("/tokenize", {})).status_code == 400
    unknown = await server.post("/detokenize", {"tokens": [999]})
    assert unknown.status_code == 400
    assert unknown.json()["error"]["param"] == "tokens"
    assert unknown.json()["error"]["message"].startswith("tokens names token 999, but")
    assert (await server.post("/detokenize", {})).json()["error"]["param"] == "tokens"


async def test_a_client_that_leaves_within_its_body_is_counted_as_gone(server):
    host, port = server.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n"
    writer.write(head + b'{"prompt":')
    await writer.drain()
    writer.close()
    text = ""
    async with asyncio.timeout(30):
        while 'handler="/v1/completions"' not in text:
            text = (await server.get("/metrics")).text
    assert 'status="499"' in text
    assert 'status="400"' not in text


async def test_models_were_created_when_the_engine_was(start_server):
    server = await start_server(created=1_700_000_000)
    models = (await server.get("/v1/models")).json()["data"]
    assert [model["created"] for model in models] == [1_700_000_000] * 2
    assert (await server.get("/v1/models/alias")).json() == models[1]
