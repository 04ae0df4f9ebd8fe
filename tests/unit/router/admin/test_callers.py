"""Who may change something on the admin port, and under which name the audit log has it."""

import json

import pytest

SECRET = "a-secret-of-a-fleet-0123456789abcdef"
CHANGE = {"policy": "round_robin"}
PERMISSIONS = [{"value": "llm"}, {"claim": "roles", "value": "llm-admin", "admin": True}]


@pytest.fixture
async def put(start_replica, start_with_tokens, model_entry, client, tmp_path, eventually, request):
    """Change a policy with these headers; the router's audit log has what came of it."""
    audit = tmp_path / "audit.jsonl"
    options = {"audit_log": str(audit), "fleet_secret": getattr(request, "param", SECRET)}
    models = [model_entry("m", await start_replica())]
    router = await start_with_tokens(models, {"permissions": PERMISSIONS}, **options)

    async def put(**headers: str):
        answer = await client.put(f"{router.admin_url}/policy/m", json=CHANGE, headers=headers)
        await eventually(lambda: audit.read_bytes().endswith(b"\n"))
        [record] = [json.loads(line) for line in audit.read_text().splitlines()]
        return answer, record

    return put


async def test_a_token_with_the_permission_may(put, token_issuer) -> None:
    token = token_issuer.token(roles=["llm-admin"])
    answer, record = await put(Authorization=f"Bearer {token}")
    assert answer.status_code == 200
    assert record["who"].startswith("token:sso:team-a:")
    assert token not in json.dumps(record)


async def test_one_without_may_not_and_is_named(put, token_issuer) -> None:
    token = token_issuer.token(scope="llm", roles=["other"])
    answer, record = await put(Authorization=f"Bearer {token}")
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "insufficient_scope"
    assert record["who"].startswith("token:sso:team-a:")
    assert (record["result"], "`admin`" in record["reason"]) == ("refused", True)


async def test_a_token_that_is_not_good_is_nobody(put, token_issuer) -> None:
    token = token_issuer.token(exp=1, roles=["llm-admin"])
    answer, record = await put(Authorization=f"Bearer {token}")
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_token"
    assert "who" not in record


async def test_without_either_both_ways_are_told(put) -> None:
    answer, _ = await put(Authorization="Bearer kv-a")
    assert answer.status_code == 401
    message = answer.json()["error"]["message"]
    assert "x-kvasir-fleet-secret" in message
    assert "`Authorization: Bearer TOKEN`" in message


async def test_the_secret_goes_on_to_be_enough(put) -> None:
    answer, record = await put(**{"x-kvasir-fleet-secret": SECRET})
    assert answer.status_code == 200
    assert record["who"].startswith("secret:")


@pytest.mark.parametrize("put", [None], indirect=True)
async def test_a_router_without_a_secret_asks_for_none(put) -> None:
    answer, _ = await put(Authorization="Bearer kv-a")
    assert answer.status_code == 401
    assert answer.json()["error"]["message"] == (
        "send an access token whose permissions give it `admin` as `Authorization: Bearer TOKEN`"
    )
