"""A request that the router relays and one that a gateway carries leave the same behind."""

import json

import pytest
from support.routers.gateway_stream import CHAT

from kvasir_router.admission.keys import ApiKey, KeyFile, dump_keys, hash_key

pytestmark = pytest.mark.slow

KEY = "kv-0123456789abcdef"
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
ANSWER = {"choices": [], "usage": USAGE}
BODY = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": "hello " * 200}]}
).encode()
COUNTED = (
    "requests_total",
    "tokens_total",
    "replica_requests_total",
    "replica_failures_total",
    "replica_in_flight",
    "request_duration_seconds_count",
    "time_to_first_byte_seconds_count",
    "tenant_requests_total",
    "tenant_tokens_total",
)


class Notes:
    """Wraps a policy, and keeps what it is told."""

    def __init__(self, policy) -> None:
        self.policy = policy
        self.told = []

    def __getattr__(self, name):
        return getattr(self.policy, name)

    def sent(self, query, choice) -> None:
        self.told.append(("sent", query.key_id, choice.replica.id, list(query.chain)))
        self.policy.sent(query, choice)

    def ended(self, query, choice, usage) -> None:
        self.told.append(("ended", query.key_id, choice.replica.id, usage))
        self.policy.ended(query, choice, usage)


async def relay(router, client, gateway, status) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    answer = await client.post(f"{router.url}{CHAT}", content=BODY, headers=headers)
    assert answer.status_code == status


async def carry(router, client, gateway, status) -> None:
    stream = await gateway(router)
    await stream.ask(BODY, headers={"authorization": f"Bearer {KEY}"})
    await stream.given_back()
    await stream.answer(status)
    await stream.answer_body(json.dumps(ANSWER).encode())
    await stream.end()
    assert await stream.receive() is None


@pytest.mark.parametrize("status", [200, 400, 500])
async def test_they_leave_the_same(
    start_replica, start_picker, model_entry, gateway, client, eventually, tmp_path, status
) -> None:
    keys = tmp_path / "keys.yaml"
    key = ApiKey(
        id="k", hash=hash_key(KEY.encode()), models=["*"], tenant="team", tokens_per_minute=10_000
    )
    keys.write_bytes(dump_keys(KeyFile(keys=[key])))

    async def answer(exchange) -> None:
        await exchange.json(status, ANSWER)

    left = []
    for way in (relay, carry):
        replica = await start_replica(script=answer)
        models = [model_entry("m", replica)]
        router, _ = await start_picker(0, models=models, keys_file=keys, shared_prompts=True)
        model = router.server.fleet.models["m"]
        model.policy = notes = Notes(model.policy)
        await way(router, client, gateway, status)
        await eventually(lambda notes=notes: len(notes.told) == 2)
        holder = router.server.gateway.admission.holder(f"Bearer {KEY}".encode())
        counts = {name: await router.metric(name) for name in COUNTED}
        excess = holder.limits.admit(10_000 - 12, 0.0, 0.0) if status == 200 else None
        left.append((notes.told, counts, excess is None))
    assert left[0] == left[1]
    told, counts, _ = left[0]
    assert [each[0] for each in told] == ["sent", "ended"]
    assert counts["requests_total"] == 1
    assert counts["replica_in_flight"] == 0
