"""Objects of docs/gateway_api.md and the chart's routes, on an API server that defines them."""

import json

import pytest
import yaml
from support.doc_pages import blocks

from harness.errors import HarnessError
from harness.go_modules import GATEWAY_API, module_directory

pytestmark = pytest.mark.slow

PAGE = "docs/gateway_api.md"
APPLY = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")


@pytest.fixture(scope="module")
def documents():
    texts = [text for language, text in blocks(PAGE) if language == "yaml"]
    return [document for text in texts for document in yaml.safe_load_all(text)]


@pytest.fixture(scope="module")
def with_gateways(defined):
    path = "config/crd/standard/gateway.networking.k8s.io_gateways.yaml"
    try:
        defined.define((module_directory(*GATEWAY_API) / path).read_text())
    except HarnessError as error:
        pytest.fail(str(error), pytrace=False)
    defined.apply("{apiVersion: v1, kind: Namespace, metadata: {name: infra}}")
    return defined


def test_the_page_is_taken(documents, with_gateways) -> None:
    kinds = [document["kind"] for document in documents]
    assert set(kinds) == {"Gateway", "HTTPRoute", "InferencePool", "LLMDeployment"}
    for document in documents:
        said = with_gateways.kubectl(*APPLY, input=json.dumps(document))
        assert "serverside-applied (server dry run)" in said


@pytest.mark.parametrize("values_of", [{"backend": "service"}, {"backend": "pool"}])
def test_the_page_shows_what_the_chart_makes(documents, helm, values_of) -> None:
    values = {
        "global": {"imageRegistry": "registry.example.com/kvasir"},
        "router": {
            "httpRoute": {
                "enabled": True,
                "parentRefs": [{"name": "models", "namespace": "infra"}],
                **values_of,
            },
            "inferencePool": {"enabled": values_of["backend"] == "pool"},
        },
    }
    if values_of["backend"] == "service":
        values["router"]["httpRoute"]["hostnames"] = ["models.example.com"]
    made = {each["kind"]: each.get("spec") for each in helm.template(values)}
    routes = [each["spec"] for each in documents if each["kind"] == "HTTPRoute"]
    assert made["HTTPRoute"] in routes
    if values_of["backend"] == "pool":
        [pool] = [each["spec"] for each in documents if each["kind"] == "InferencePool"]
        assert made["InferencePool"] == pool


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"timeouts": {"request": "1s", "backendRequest": "2s"}}, "backendRequest timeout"),
        ({"matches": [{"path": {"type": "PathPrefix", "value": "llm"}}]}, "must be an absolute"),
    ],
)
def test_a_route_that_gateways_would_not_take_is_refused(
    helm, with_gateways, change, words
) -> None:
    route = {"enabled": True, "parentRefs": [{"name": "models"}], **change}
    values = {"global": {"imageRegistry": "r.example.com"}, "router": {"httpRoute": route}}
    [made] = [each for each in helm.template(values) if each["kind"] == "HTTPRoute"]
    with pytest.raises(HarnessError, match=words):
        with_gateways.kubectl(*APPLY, input=json.dumps(made))
