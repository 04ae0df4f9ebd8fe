"""A router in front of two simulated engines and a provider over TLS, all processes of their own
but the provider, which checks what it is told."""

import json
import ssl

import pytest
from support.certificates import self_signed
from support.routers.failover_fleet import SECRET

from kvasir.cli.local.ports import free_ports
from kvasir_router.admission.keys import ApiKey, KeyFile, dump_keys, hash_key, make_key

pytestmark = pytest.mark.slow

PATHS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
    "/v1/completions": {"prompt": "hi", "max_tokens": 4},
    "/v1/responses": {"input": "hi", "max_output_tokens": 4},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
}


@pytest.fixture(scope="module")
def simulated(engines):
    """Two engines of model m."""
    return engines(2, "--served-model-name", "m", "--device", "sim")


@pytest.fixture
async def provider(start_replica, tmp_path):
    """A provider over TLS that answers only its own key, path and model."""
    cert, key = self_signed(tmp_path, "provider")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)

    async def answer(exchange) -> None:
        request = exchange.request
        right = (
            request.header("authorization") == "Bearer sk-provider"
            and request.target.startswith("/openai/v1/")
            and json.loads(request.body)["model"] == "large-2"
        )
        usage = {"prompt_tokens": 5, "completion_tokens": 7}
        await exchange.json(200 if right else 418, {"model": "large-2", "usage": usage})

    replica = await start_replica(tls=tls, script=answer)
    secret = tmp_path / "provider.key"
    secret.write_text("sk-provider\n")
    return replica, {
        "id": "provider",
        "url": f"{replica.url}/openai/v1",
        "model": "large-2",
        "key_file": str(secret),
        "ca_file": str(cert),
    }


@pytest.mark.parametrize("workers", ["0", "2"])
async def test_a_provider_answers_for_engines_that_are_gone(
    simulated, provider, start_process, write_config, client, tmp_path, monkeypatch, workers
) -> None:
    replica, upstream = provider
    monkeypatch.setenv("KVASIR_FLEET_SECRET", SECRET)
    secret = make_key()
    keys = tmp_path / "keys.yaml"
    key = ApiKey(id="k", hash=hash_key(secret.encode()), tenant="a")
    keys.write_bytes(dump_keys(KeyFile(keys=[key])))
    config = tmp_path / "fleet.yaml"
    own = [
        {"id": f"r{i}", "url": engine.url, "engine": "kvasir"} for i, engine in enumerate(simulated)
    ]
    [nobody] = free_ports(1)
    gone = [{"id": "gone", "url": f"http://127.0.0.1:{nobody}", "engine": "kvasir"}]
    large = {"name": "large", "replicas": [upstream]}
    models = [
        {"name": "m", "fallbacks": ["large"], "replicas": own},
        {"name": "cold", "fallbacks": ["large"], "replicas": gone},
        {"name": "bare", "replicas": gone, "hold": 0},
        large,
    ]
    write_config(config, models)
    flags = ("--keys-file", str(keys), *(("--workers", workers) if workers != "0" else ()))
    router = await start_process(config, *flags)
    headers = {"Authorization": f"Bearer {secret}"}

    async def serves(model: str) -> bool:
        fleet = (await client.get(f"{router.admin_url}/debug/fleet")).json()
        return any(each["name"] == model and each["ready"] for each in fleet["models"])

    while not (await serves("m") and await serves("large")):
        pass
    for path, body in PATHS.items():
        own_answer = await client.post(
            router.url + path, json={"model": "m", **body}, headers=headers
        )
        assert own_answer.status_code == 200, own_answer.text
        assert own_answer.headers["x-kvasir-model"] == "m"
        answer = await client.post(
            router.url + path, json={"model": "cold", **body}, headers=headers
        )
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-kvasir-model"] == "large"
        assert answer.json()["model"] == "large-2"
        bare = await client.post(router.url + path, json={"model": "bare", **body}, headers=headers)
        assert bare.status_code == 503
    sent = repr(replica.requests)
    assert secret not in sent
    assert SECRET not in sent
    metrics = (await client.get(f"{router.admin_url}/metrics")).text
    told = 'fallbacks_total{fallback="large",model="cold",reason="no_replica"} 4.0'
    assert told in metrics
    assert "sk-provider" not in metrics
