"""Names that are not models, from the file to the engine."""

import json

import yaml


async def test_a_canary_and_an_adapter(
    start_replica, start_router, model_entry, client, eventually
) -> None:
    replica = await start_replica()
    router = await start_router([model_entry("m", replica, aliases=["a"])])
    model = model_entry("m", replica, aliases=["a"]) | {"adapters": ["sql"]}
    canary = {"name": "chat", "split": {"m": 1}}
    router.config.write_text(yaml.safe_dump({"models": [model], "canaries": [canary]}))
    await eventually(lambda: router.server.fleet.find("chat") is not None)
    for name in ("chat", "sql", "a"):
        body = {"model": name, "user": "u1"}
        assert (await client.post(f"{router.url}/score", json=body)).status_code == 200
    seen = [json.loads(request.body) for request in replica.requests]
    assert [body["model"] for body in seen] == ["m", "sql", "a"], "only a canary is not known there"
    assert {body["user"] for body in seen} == {"u1"}
    listed = (await client.get(f"{router.url}/v1/models")).json()["data"]
    assert [(card["id"], card["root"]) for card in listed] == [
        (name, root) for name, root in (("m", "m"), ("a", "m"), ("sql", "sql"), ("chat", "m"))
    ]
    card = await client.get(f"{router.url}/v1/models/chat")
    assert card.json()["max_model_len"] == 4096
