"""Access tokens beside keys, from a client's side."""

import json
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from kvasir_router.admission.keys import ApiKey, KeyFile, dump_keys, hash_key

BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 100}


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


@pytest.fixture
async def start(start_replica, start_with_tokens, model_entry, tmp_path):
    """A router whose issuer's keys have come, and with an API key `kv-a` of team-a."""

    async def start(*, keys: bool = True, fields: dict | None = None, **options):
        tenants = [
            {"tenant": "team-a", "tokens_per_day": 1000},
            {"tenant": "team-n", "models": ["n"]},
            {"tenant": "none", "models": []},
        ]
        if keys:
            options["keys_file"] = tmp_path / "keys.yaml"
            key = ApiKey(id="a", hash=hash_key(b"kv-a"), tenant="team-a")
            options["keys_file"].write_bytes(dump_keys(KeyFile(keys=(key,))))
        replica = await start_replica()
        models = [model_entry("m", replica), model_entry("n", replica)]
        router = await start_with_tokens(models, {"tenants": tenants, **(fields or {})}, **options)
        router.engine = replica
        return router

    return start


async def test_a_token_and_a_key_of_a_tenant_are_that_tenants(start, client, token_issuer) -> None:
    router = await start()
    token = token_issuer.token()
    for credential in (token, "kv-a"):
        answer = await client.post(
            f"{router.url}/v1/chat/completions", json=BODY, headers=bearer(credential)
        )
        assert answer.status_code == 200
    one, two = router.engine.requests
    assert json.loads(one.body)["cache_salt"] == json.loads(two.body)["cache_salt"]
    assert one.header("authorization") is None
    assert token not in str(one)
    assert await router.metric("tenant_requests_total", tenant="team-a", code="200") == 2


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_refusals_have_the_form_of_the_protocol(start, client, token_issuer, path) -> None:
    router = await start()
    cases = {
        "expired": (token_issuer.token(exp=1), 401, "has expired; get a new one"),
        "audience": (token_issuer.token(aud="x"), 401, "the audience kvasir"),
        "tenant": (token_issuer.token(tenant="team-x"), 403, "`team-x` of the access token"),
        "model": (token_issuer.token(tenant="team-n"), 403, "The tenant `team-n` may not use"),
        "models": (token_issuer.token(tenant="none"), 403, "The tenant `none` may use no model"),
    }
    for name, (token, status, said) in cases.items():
        answer = await client.post(router.url + path, json=BODY, headers=bearer(token))
        assert answer.status_code == status, name
        error = answer.json()["error"]
        assert said in error["message"]
        assert ("code" in error) == (path != "/v1/messages")
        challenge = answer.headers.get("www-authenticate", "")
        assert challenge.startswith('Bearer error="invalid_token"') == (status == 401)
        assert token not in answer.text
    assert router.engine.requests == []
    for reason in ("expired", "audience", "tenant"):
        assert await router.metric("token_refusals_total", reason=reason) == 1


async def test_scopes_permit_models(start, client, token_issuer) -> None:
    permissions = [{"claim": "scp", "value": "chat", "models": ["m"]}]
    router = await start(fields={"permissions": permissions})
    chats = bearer(token_issuer.token(scp=["openid", "chat"]))
    listed = await client.get(f"{router.url}/v1/models", headers=chats)
    assert [card["id"] for card in listed.json()["data"]] == ["m"]
    url = f"{router.url}/v1/chat/completions"
    assert (await client.post(url, json=BODY, headers=chats)).status_code == 200
    other = await client.post(url, json={**BODY, "model": "n"}, headers=chats)
    assert other.status_code == 403
    assert (
        "The tenant `team-a` may not use model `n` with this access token's permissions"
        in other.json()["error"]["message"]
    )
    without = await client.post(url, json=BODY, headers=bearer(token_issuer.token(scp=["openid"])))
    assert without.status_code == 403
    assert without.json()["error"]["code"] == "insufficient_scope"
    assert without.headers["www-authenticate"].startswith('Bearer error="insufficient_scope"')
    assert await router.metric("token_refusals_total", reason="scope") == 1


async def test_claims_that_are_required(start, client, token_issuer) -> None:
    router = await start(fields={"required_claims": {"hd": "example.com"}})
    url = f"{router.url}/v1/models"
    answer = await client.get(url, headers=bearer(token_issuer.token(hd="evil.example")))
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "claim_forbidden"
    good = bearer(token_issuer.token(hd="example.com"))
    assert (await client.get(url, headers=good)).status_code == 200


async def test_with_issuers_alone_other_credentials_are_401(start, client, token_issuer) -> None:
    router = await start(keys=False)
    url = f"{router.url}/v1/models"
    for headers in ({}, bearer("kv-a"), bearer("eyJh.eyJh")):
        answer = await client.get(url, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
    listed = await client.get(url, headers=bearer(token_issuer.token()))
    assert [card["id"] for card in listed.json()["data"]] == ["m", "n"]
    assert (await client.get(f"{router.url}/metrics")).status_code == 404
    assert "kvasir_router_issuer_keys" in (await client.get(f"{router.admin_url}/metrics")).text


async def test_a_token_is_never_looked_for_among_the_keys(start, client, token_issuer) -> None:
    router = await start()
    forged = token_issuer.token(key=ec.generate_private_key(ec.SECP256R1()))
    keyring = router.server.gateway.admission.keyring
    holder = keyring.find(b"Bearer kv-a")
    keyring._holders[hash_key(forged.encode())] = holder
    answer = await client.get(f"{router.url}/v1/models", headers=bearer(forged))
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_token"


async def test_limits_are_of_all_tokens_of_a_tenant(start, client, token_issuer) -> None:
    router = await start()

    async def answer(exchange) -> None:
        await exchange.json(200, {"usage": {"prompt_tokens": 200, "completion_tokens": 300}})

    router.engine.script = answer
    url = f"{router.url}/v1/chat/completions"
    answers = [
        await client.post(url, json=BODY, headers=bearer(token_issuer.token(sub=str(at))))
        for at in range(3)
    ]
    assert [each.status_code for each in answers] == [200, 200, 429]
    error = answers[-1].json()["error"]
    assert error["code"] == "insufficient_quota"
    assert "The tenant `team-a` may use 1000 tokens a day" in error["message"]


async def test_keys_that_are_not_there_yet_are_503_and_told_at_ready(
    start, client, token_issuer, eventually
) -> None:
    router = await start()
    tokens = router.server.gateway.admission.tokens
    schedule = tokens.schedules["sso"]
    schedule._fetched -= 1e6
    token_issuer.discovery = {"issuer": "https://evil.example"}
    answer = await client.get(f"{router.url}/v1/models", headers=bearer(token_issuer.token()))
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    schedule.due = 0.0
    await eventually(lambda: tokens.fetches["sso", "failed"] >= 1)
    ready = await client.get(f"{router.url}/ready")
    assert ready.json()["warnings"] == [
        "keys of issuer sso: what is there now cannot be used, see the log"
    ]


async def test_no_log_has_a_token(start, client, token_issuer, capfd, monkeypatch) -> None:
    router = await start()
    written = []
    monkeypatch.setattr(router.server.gateway, "access_log", SimpleNamespace(write=written.append))
    accounting = router.server.gateway._relay_services.accounting
    monkeypatch.setattr(accounting, "_access_log", SimpleNamespace(write=written.append))
    tokens = [token_issuer.token(), token_issuer.token(exp=1)]
    for token in tokens:
        await client.post(f"{router.url}/v1/chat/completions", json=BODY, headers=bearer(token))
    text = repr(written) + "".join(capfd.readouterr())
    assert [record.key for record in written] == ["sso:team-a", ""]
    assert not any(token.split(".")[2] in text for token in tokens)
