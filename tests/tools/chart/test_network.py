"""Connections that the chart's and the operator's NetworkPolicies together allow."""

from datetime import UTC, datetime

import pytest

from harness.network_policy import End, allows
from kvasir.resource import labels
from kvasir.wire.fleet_secret_file import FleetSecretFile
from kvasir_operator.plan import plan
from kvasir_operator.plan.observed import Observed, parse_resource
from kvasir_operator.settings import Images, OperatorSettings

OUTSIDE = End(ip="203.0.113.7")
METADATA = End(ip="169.254.169.254")
STRANGER = End("default", {"app": "stranger"}, "10.0.9.1")
NEIGHBOUR = End("kvasir", {"app": "neighbour"}, "10.0.9.2")
PROMETHEUS = End("monitoring", {"app": "prometheus"}, "10.0.9.3")
TEAM = End("apps", {"app": "chat"}, "10.0.9.4", namespace_labels={"team": "a"})
PRETENDER = End("default", {labels.COMPONENT: labels.ROUTER}, "10.0.9.5")

ENGINE_PORTS = (labels.HTTP_PORT, labels.GRPC_PORT, labels.EVENTS_PORT, labels.REPLAY_PORT)


def pod(objects, name) -> End:
    """A pod of the chart's Deployment."""
    [template] = [
        each["spec"]["template"]
        for each in objects
        if each["kind"] == "Deployment" and each["metadata"]["name"] == f"kvasir-{name}"
    ]
    ports = {
        port["name"]: port["containerPort"]
        for container in template["spec"]["containers"]
        for port in container["ports"]
    }
    return End("kvasir", template["metadata"]["labels"], "10.0.0.1", ports)


def engine(component=labels.ENGINE) -> End:
    return End("models", labels.common_labels("tiny", component), "10.0.1.1")


def engine_policies(download_metadata=False, **network_policy):
    """Return the NetworkPolicies that the operator makes for a deployment."""
    resource = {
        "apiVersion": "kvasir.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "tiny", "namespace": "models", "uid": "u", "generation": 1},
        "spec": {"model": {"uri": "hf://org/tiny"}, "networkPolicy": network_policy},
    }
    settings = OperatorSettings(
        namespace="kvasir",
        router_namespace="kvasir",
        images=Images(cpu="x"),
        fleet_secret=FleetSecretFile("s"),
        download_metadata=download_metadata,
    )
    observed = Observed(resource, datetime(2026, 1, 1, tzinfo=UTC))
    made = plan(parse_resource(resource), observed, settings)
    return [each for each in made.manifests if each["kind"] == "NetworkPolicy"]


@pytest.fixture
def policies(render):
    """policies(values_name, **spec.networkPolicy): the chart's and the operator's."""

    def policies(name, **network_policy):
        chart = [each for each in render(name) if each["kind"] == "NetworkPolicy"]
        return chart + engine_policies(**network_policy)

    return policies


def test_each_flow_that_is_needed_is_allowed(render, policies) -> None:
    there = policies("defaults")
    router, operator = pod(render("defaults"), "router"), pod(render("defaults"), "operator")
    flows = [
        *((router, engine(), port) for port in ENGINE_PORTS),
        (operator, engine(labels.DOWNLOAD), labels.HTTP_PORT),
        (operator, router, labels.ROUTER_ADMIN_PORT),
        *((client, router, labels.ROUTER_PORT) for client in (OUTSIDE, STRANGER, NEIGHBOUR)),
        *((each, OUTSIDE, 443) for each in (router, operator, engine(labels.DOWNLOAD))),
    ]
    refused = [flow for flow in flows if not allows(there, *flow)]
    assert refused == []


def test_no_other_pod_gets_in(render, policies) -> None:
    there = policies("defaults")
    router, operator = pod(render("defaults"), "router"), pod(render("defaults"), "operator")
    strangers = (STRANGER, NEIGHBOUR, PROMETHEUS, PRETENDER, OUTSIDE)
    flows = [
        *((each, engine(), port) for each in (*strangers, engine()) for port in ENGINE_PORTS),
        *((each, engine(labels.DOWNLOAD), labels.HTTP_PORT) for each in strangers),
        *((each, router, labels.ROUTER_ADMIN_PORT) for each in (*strangers, engine())),
        *((each, operator, 8080) for each in (*strangers, engine(), router)),
        (operator, router, 22),
        (router, engine(), 22),
    ]
    allowed = [flow for flow in flows if allows(there, *flow)]
    assert allowed == []


def test_engines_reach_nobody_and_downloads_all_but_metadata_services(policies) -> None:
    there = policies("defaults")
    others = (OUTSIDE, STRANGER, METADATA, engine())
    assert not any(allows(there, engine(), other, 443) for other in others)
    assert not allows(there, engine(), OUTSIDE, 53, "UDP")
    download = engine(labels.DOWNLOAD)
    assert all(allows(there, download, other, 9000) for other in (OUTSIDE, STRANGER))
    names = End("kube-system", {"k8s-app": "kube-dns"}, "169.254.20.10")
    assert all(allows(there, download, names, 53, protocol) for protocol in ("UDP", "TCP"))
    for address in ("169.254.169.254", "169.254.170.23", "fd00:ec2::254"):
        assert not allows(there, download, End(ip=address), 80)
    assert allows(there, download, End(ip="2001:db8::1"), 443)
    assert allows(engine_policies(download_metadata=True), download, METADATA, 80)


def test_who_may_not_reach_downloads(render, policies) -> None:
    there = policies("defaults", allowedNamespaces=["monitoring"])
    router = pod(render("defaults"), "router")
    download = engine(labels.DOWNLOAD)
    assert not any(
        allows(there, each, download, port)
        for each in (router, PROMETHEUS)
        for port in ENGINE_PORTS
    )


def test_where_engines_may_go_can_be_said(policies) -> None:
    there = policies("defaults", egressNamespaces=["apps"], egressCidrs=["203.0.113.0/24"])
    assert allows(there, engine(), TEAM, 4317)
    assert allows(there, engine(), OUTSIDE, 443)
    assert allows(there, engine(), NEIGHBOUR, 53, "UDP")
    assert not allows(there, engine(), STRANGER, 4317)
    assert not allows(there, engine(), METADATA, 80)


def test_who_may_be_a_client_and_who_may_read_metrics_can_be_said(render, policies) -> None:
    name = "namespaced"
    there = policies(name, allowedNamespaces=["monitoring"])
    router, operator = pod(render(name), "router"), pod(render(name), "operator")
    assert allows(there, TEAM, router, labels.ROUTER_PORT)
    assert not allows(there, STRANGER, router, labels.ROUTER_PORT)
    for target, port in ((router, 8081), (operator, 8080), (engine(), labels.HTTP_PORT)):
        assert allows(there, PROMETHEUS, target, port)
        assert not allows(there, TEAM, target, port)
    assert not allows(there, PROMETHEUS, engine(), labels.GRPC_PORT)


def test_the_charts_test_reaches_the_router_whoever_else_may_not(render, policies) -> None:
    [test] = [each for each in render("namespaced") if each["kind"] == "Pod"]
    chat = End("kvasir", test["metadata"]["labels"], "10.0.9.9")
    router = pod(render("namespaced"), "router")
    assert allows(policies("namespaced"), chat, router, labels.ROUTER_PORT)


def test_gateways_reach_the_endpoint_picker_and_engines(render, policies) -> None:
    there = policies("pool", allowedNamespaces=["infra"])
    router, gateway = pod(render("pool"), "router"), End("infra", {"app": "gateway"}, "10.0.9.7")
    assert allows(there, gateway, router, 9002)
    assert allows(there, gateway, engine(), labels.HTTP_PORT)
    assert not allows(there, gateway, engine(), labels.GRPC_PORT)
    for stranger in (STRANGER, NEIGHBOUR, PRETENDER):
        assert not allows(there, stranger, router, 9002)


def test_the_pool_is_of_the_pods_that_the_operator_makes(render) -> None:
    [pool] = [each for each in render("pool") if each["kind"] == "InferencePool"]
    selected = pool["spec"]["selector"]["matchLabels"].items()
    assert selected <= engine().labels.items()
    for component in (labels.DOWNLOAD, labels.ROUTER, labels.OPERATOR):
        assert not selected <= engine(component).labels.items()
    assert pool["spec"]["targetPorts"] == [{"number": labels.HTTP_PORT}]


def test_api_servers_reach_the_external_metrics(render, policies) -> None:
    operator = pod(render("everything"), "operator")
    there = policies("everything")
    assert allows(there, OUTSIDE, operator, operator.ports["metrics-api"])
    assert not allows(there, STRANGER, operator, operator.ports["metrics"])


def test_without_policies_nothing_is_refused(render, policies) -> None:
    there = policies("bare", enabled=False)
    assert there == []
