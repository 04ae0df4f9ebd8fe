"""The API over TLS with client certificates, as the API server's proxy asks it."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from harness.pki import Authority
from kvasir_operator.external_metrics.certificate import make_certificate
from kvasir_operator.external_metrics.front_proxy import FrontProxy
from kvasir_operator.external_metrics.metrics_api import MetricsApi
from kvasir_operator.external_metrics.router_reports import RouterReports

pytestmark = pytest.mark.slow

BASE = "/apis/external.metrics.k8s.io/v1beta1"
HOST = "kvasir-operator.kvasir.svc"
USER = {"X-Remote-User": "system:serviceaccount:kube-system:horizontal-pod-autoscaler"}


def report(concurrency: int) -> dict[str, Any]:
    return {"concurrency": concurrency, "queue": 0, "held": 0}


def authority(directory: Path) -> Authority:
    """One that has signed a client's certificate."""
    made = Authority(directory)
    made.create()
    made.issue("front-proxy", "/CN=front-proxy")
    return made


@pytest.fixture
async def api(routers, settings, deployment, tmp_path) -> AsyncIterator[Any]:
    """api(path, user=..., client=...): the answer to the front proxy, or to another client."""
    front, stranger = authority(tmp_path / "front"), authority(tmp_path / "stranger")
    own = make_certificate((HOST,))
    served = [
        deployment("a", labels={"tier": "gold"}),
        deployment("b"),
        deployment("a", "other"),
        deployment("refused") | {"status": {}},
    ]
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cafile=front.certificate)
    own.load_into(context)
    proxy = FrontProxy("", frozenset({"front-proxy"}), ("X-Remote-User",))
    async with RouterReports(routers.pods, settings) as reports:
        runner = web.AppRunner(MetricsApi(lambda: served, reports, proxy).application())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        port = runner.addresses[0][1]

        async def ask(
            path: str,
            user: dict[str, str] = USER,
            client: Authority | None = front,
            method: str = "GET",
        ) -> httpx.Response:
            trust = ssl.create_default_context(cadata=own.authority.decode())
            if client is not None:
                trust.load_cert_chain(
                    client.path("front-proxy.crt"), client.path("front-proxy.key")
                )
            async with httpx.AsyncClient(verify=trust, trust_env=False, timeout=60) as http:
                url = f"https://127.0.0.1:{port}{path}"
                extensions = {"sni_hostname": HOST}
                return await http.request(method, url, headers=user, extensions=extensions)

        ask.stranger = stranger  # type: ignore[attr-defined]
        yield ask
        await runner.cleanup()


async def test_discovery(api) -> None:
    listed = (await api(BASE)).json()["resources"]
    assert {"kvasir_concurrency", "kvasir_queue"} <= {each["name"] for each in listed}
    assert (await api("/apis/external.metrics.k8s.io")).json()["kind"] == "APIGroup"
    assert (await api("/apis")).json()["groups"][0]["name"] == "external.metrics.k8s.io"


async def test_values_are_of_the_namespace_and_the_selector(api, routers) -> None:
    routers.reports = {
        "a-model": [report(5), report(7)],
        "b-model": [report(1), report(0)],
    }
    metric = f"{BASE}/namespaces/ns/kvasir_concurrency"

    async def values(selector: str) -> dict[str, str]:
        answer = await api(f"{metric}?labelSelector={selector}")
        assert answer.status_code == 200, answer.text
        items = answer.json()["items"]
        return {item["metricLabels"]["deployment"]: item["value"] for item in items}

    assert await values("") == {"a": "12", "b": "1"}
    assert await values("deployment%3Da") == {"a": "12"}
    assert await values("model%20in%20(b-model)") == {"b": "1"}
    assert await values("tier=gold") == {"a": "12"}
    assert await values("deployment=refused") == {}
    assert routers.asked.count("a-model") == 2  # of each router once, though it was asked often


async def test_a_part_is_no_sum(api, routers) -> None:
    metric = f"{BASE}/namespaces/ns/kvasir_concurrency?labelSelector=deployment%3D"
    routers.reports = {"a-model": [report(5), report(7)]}
    routers.broken = {"127.0.0.2"}
    answer = await api(f"{metric}a")
    assert (answer.status_code, answer.json()["kind"]) == (503, "Status")
    assert answer.json()["message"] == "router router-127.0.0.2 answers 500"
    routers.broken = set()
    assert "no router knows the model b-model" in (await api(f"{metric}b")).json()["message"]


async def test_without_routers_there_is_no_number(api, routers) -> None:
    routers.running = ()
    answer = await api(f"{BASE}/namespaces/ns/kvasir_queue?labelSelector=deployment%3Da")
    assert (answer.status_code, answer.json()["message"]) == (503, "no router is Ready")


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/namespaces/ns/cpu", 404, "there is no metric 'cpu'"),
        ("/namespaces/ns/kvasir_queue?labelSelector=a%3E1", 400, "no part of a label selector"),
        ("/nodes", 404, "Not Found"),
    ],
)
async def test_a_wrong_question_is_a_status(api, path, status, message) -> None:
    answer = await api(BASE + path)
    assert (answer.status_code, answer.json()["kind"]) == (status, "Status")
    assert message in answer.json()["message"]
    assert (await api(BASE, method="POST")).status_code == 405


async def test_nobody_else_is_answered(api) -> None:
    assert (await api(BASE, client=None)).status_code == 401
    assert (await api(BASE, user={})).status_code == 401
    with pytest.raises(httpx.HTTPError):
        await api(BASE, client=api.stranger)


def test_a_certificate_is_of_its_names_and_its_key_stays_off_the_disk(tmp_path: Path) -> None:
    made = make_certificate((HOST, "other.svc"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_into(context)
    assert b"PRIVATE KEY" in made.key
    trust = ssl.create_default_context(cadata=made.authority.decode())
    [authority] = trust.get_ca_certs()
    assert (("commonName", f"authority of {HOST}"),) in authority["subject"]
