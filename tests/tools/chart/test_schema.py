"""values.schema.json: knows every value, and says what is wrong with a bad one."""

import json

import pytest
import yaml

REF = {"name": "gateway"}


def leaves(tree, path=()):
    """Paths of all mappings' keys."""
    for key, value in tree.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))


def resolved(schema, root):
    while "$ref" in schema:
        schema = root["definitions"][schema["$ref"].rpartition("/")[2]]
    return schema


def known(schema, root, path=()):
    for key, part in resolved(schema, root).get("properties", {}).items():
        yield (*path, key)
        yield from known(part, root, (*path, key))


@pytest.mark.parametrize("chart", ["kvasir", "kvasir-models"])
def test_it_knows_every_value_and_no_other(charts, chart) -> None:
    values = set(leaves(yaml.safe_load((charts / chart / "values.yaml").read_text())))
    schema = json.loads((charts / chart / "values.schema.json").read_text())
    told = set(known(schema, schema))
    open_ended = ("requests", "limits", "labels", "annotations", "podLabels", "resourceProfiles")
    assert {path for path in values - told if path[-2] not in open_ended} == set()
    # What a user may give though values.yaml has no default for it.
    optional = {("operator", "resources", "claims"), ("router", "resources", "claims")}
    security = ("global", "podSecurity")
    optional |= {(*security, field) for field in ("supplementalGroups", "seLinuxOptions")}
    optional |= {("engine", "images", image, "pullPolicy") for image in ("cpu", "cuda", "sim")}
    optional.add(("downloads", "image", "pullPolicy"))
    optional |= {("class", "settings", part) for part in ("defaults", "profiles")}
    assert {path for path in told - values if path != ("global",)} <= optional


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "where", "what"),
    [
        ({"routr": {}}, "''", "'routr' not allowed"),
        ({"router": {"replica": 2}}, "/router", "'replica' not allowed"),
        ({"router": {"replicas": 0}}, "/router/replicas", "got 0, want 1"),
        ({"router": {"replicas": "two"}}, "/router/replicas", "got string, want integer"),
        ({"router": {"policy": "magic"}}, "/router/policy", "'kv_aware'"),
        ({"router": {"drainSeconds": -1}}, "/router/drainSeconds", "got -1, want 0"),
        ({"router": {"service": {"type": "Cluster"}}}, "/router/service/type", "'NodePort'"),
        ({"router": {"service": {"port": 70000}}}, "/router/service/port", "want 65,535"),
        ({"router": {"image": {"tag": "a b"}}}, "/router/image/tag", "does not match"),
        ({"router": {"url": "models.example.com"}}, "/router/url", "does not match"),
        ({"router": {"ingress": {"hosts": ["https://a"]}}}, "/router/ingress/hosts/0", "match"),
        ({"router": {"responses": {"days": 0}}}, "/router/responses/days", "got 0, want 0"),
        ({"router": {"extraArgs": ["policy"]}}, "/router/extraArgs/0", "does not match"),
        ({"watchNamespaces": "team-a"}, "/watchNamespaces", "got string, want array"),
        ({"watchNamespaces": ["Team_A"]}, "/watchNamespaces/0", "does not match"),
        ({"watchNamespaces": ["a", "a"]}, "/watchNamespaces", "equal"),
        ({"kserveNamespaces": ["A"]}, "/kserveNamespaces/0", "does not match"),
        ({"class": {"name": "a.b"}}, "/class/name", "does not match"),
        ({"class": {"default": "yes"}}, "/class/default", "got string, want boolean"),
        ({"apiKeys": {"firstKey": "short"}}, "/apiKeys/firstKey", "does not match"),
        ({"operator": {"logLevel": "loud"}}, "/operator/logLevel", "'debug'"),
        (
            {"operator": {"resourceProfiles": {"default": 24}}},
            "/default",
            "got number, want string",
        ),
        ({"downloads": {"env": {"A": 1}}}, "/downloads/env/A", "got number, want string"),
        ({"downloads": {"env": {"A-B": "x"}}}, "/downloads/env", "'A-B' not allowed"),
        ({"global": {"imagePullSecrets": ["pull"]}}, "/imagePullSecrets/0", "want object"),
        ({"global": {"imageRegistry": "https://r"}}, "/global/imageRegistry", "does not match"),
        ({"networkPolicy": {"routerFrom": [{}]}}, "/networkPolicy/routerFrom/0", "minProperties"),
        ({"commonLabels": {"a": "b c"}}, "/commonLabels/a", "does not match"),
        ({"test": {"device": "cuda"}}, "/test/device", "'cpu', 'sim'"),
        (
            {"router": {"inferencePool": {"failureMode": "Open"}}},
            "/router/inferencePool/failureMode",
            "'FailClose', 'FailOpen'",
        ),
        (
            {"router": {"httpRoute": {"timeouts": {"request": "1 hour"}}}},
            "/router/httpRoute/timeouts/request",
            "does not match",
        ),
    ],
)
def test_bad_values_are_named(helm, helm_error, values, where, what) -> None:
    given = {"global": {"imageRegistry": "registry.example.com"}} | values
    with pytest.raises(helm_error) as refusal:
        helm.template(given)
    assert where in str(refusal.value)
    assert what in str(refusal.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"router": {"tls": {"enabled": True}}}, "router.tls.secretName is empty: name the Secret"),
        ({"router": {"ingress": {"enabled": True}}}, "router.ingress.hosts is empty: name"),
        ({"router": {"httpRoute": {"enabled": True}}}, "parentRefs is empty: name the Gateway"),
        (
            {"router": {"httpRoute": {"enabled": True, "parentRefs": [REF], "backend": "pool"}}},
            "backend is pool, and there is none: set router.inferencePool.enabled",
        ),
        (
            {"watchNamespaces": ["a"], "router": {"inferencePool": {"enabled": True}}},
            "engines of the release's namespace, kvasir, which watchNamespaces lacks: add it there",
        ),
        (
            {"router": {"responses": {"volumeClaim": "c"}}},
            "in a file, which 2 routers cannot share: set router.replicas to 1, or name a Secret",
        ),
        (
            {"router": {"replicas": 1, "responses": {"volumeClaim": "c", "urlSecret": "s"}}},
            "router.responses.volumeClaim and router.responses.urlSecret exclude each other",
        ),
        (
            {
                "accessTokens": {
                    "issuers": [
                        {
                            "name": "a",
                            "issuer": "b",
                            "audiences": ["c"],
                            "tenants": [{"tenant": "d"}],
                        }
                    ],
                    "existingSecret": "s",
                }
            },
            "accessTokens.issuers and accessTokens.existingSecret exclude each other",
        ),
        (
            {"router": {"spend": {"volumeClaim": "c"}}},
            "router.spend.volumeClaim keeps spend in a file, which 2 routers cannot share",
        ),
        (
            {"router": {"replicas": 1, "spend": {"volumeClaim": "c", "urlSecret": "s"}}},
            "router.spend.volumeClaim and router.spend.urlSecret exclude each other",
        ),
        (
            {"watchNamespaces": ["a"], "kserveNamespaces": ["a", "b"]},
            "kserveNamespaces names b, which watchNamespaces lacks: add it there",
        ),
    ],
)
def test_what_belongs_together_is_asked_for(helm, helm_error, values, words) -> None:
    with pytest.raises(helm_error, match=words):
        helm.template({"global": {"imageRegistry": "registry.example.com"}} | values)


@pytest.mark.parametrize(
    ("model", "where", "what"),
    [
        ({"spec": {"model": {"uri": "x"}}}, "/models/0", "missing property 'name'"),
        ({"name": "m"}, "/models/0", "missing property 'spec'"),
        ({"name": "M", "spec": {"model": {"uri": "x"}}}, "/models/0/name", "does not match"),
        ({"name": "m" * 53, "spec": {"model": {"uri": "x"}}}, "/models/0/name", "want 52"),
        ({"name": "m", "spec": {"model": {}}}, "/models/0/spec/model", "missing property 'uri'"),
        ({"name": "m", "uri": "x", "spec": {"model": {"uri": "x"}}}, "/models/0", "'uri' not"),
    ],
)
def test_bad_models_are_named(helm, helm_error, model, where, what) -> None:
    with pytest.raises(helm_error) as refusal:
        helm.template({"models": [model]}, "kvasir-models")
    assert where in str(refusal.value)
    assert what in str(refusal.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("router", "words"),
    [
        (
            {"autoscaling": {"enabled": True, "minReplicas": 9}},
            "minReplicas 9 is above maxReplicas 8",
        ),
        (
            {"autoscaling": {"enabled": True}, "replicas": 1, "responses": {"volumeClaim": "c"}},
            "router.autoscaling.enabled and router.responses.volumeClaim exclude each other",
        ),
    ],
)
def test_routers_that_cannot_be_scaled_so(render, helm_error, router, words) -> None:
    with pytest.raises(helm_error, match=words):
        render("defaults", router=router)
