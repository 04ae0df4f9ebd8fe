"""Statements of the charts about other parts, against these parts."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

import kvasir
from kvasir_operator.command import app as operator
from kvasir_operator.controller.metrics import Metrics as OperatorMetrics
from kvasir_router.admission.access_tokens.issuers import read_issuers
from kvasir_router.admission.keys import hash_key, read_keys
from kvasir_router.command import app as router
from kvasir_router.telemetry.router_metrics import Metrics

ROOT = Path(__file__).parents[3]
KEPT = ("responses", "spend")
"""Volumes that are a user's own."""


@pytest.mark.parametrize("chart", ["kvasir", "kvasir-models"])
def test_the_charts_version_of_kvasir_is_this_one(charts, chart) -> None:
    about = yaml.safe_load((charts / chart / "Chart.yaml").read_text())
    assert about["appVersion"] == kvasir.__version__


def test_the_values_documentation_is_made_from_the_values() -> None:
    command = [sys.executable, "scripts/chart_docs.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("name", "app"), [("operator", operator), ("router", router)])
def test_every_flag_exists(render, find, values_name, name, app) -> None:
    command = typer.main.get_command(app)
    flags = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
    pod = find(render(values_name), "Deployment", f"kvasir-{name}")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    first, *given = container["args"]
    assert first == name
    assert {each.partition("=")[0] for each in given} <= flags


def test_routers_are_asked_to_stop_within_their_grace(render, find, values_name) -> None:
    pod = find(render(values_name), "Deployment", "kvasir-router")["spec"]["template"]["spec"]
    given = dict(each.partition("=")[::2] for each in pod["containers"][0]["args"])
    needed = int(given["--pre-stop-delay"]) + int(given["--drain-timeout"])
    assert pod["terminationGracePeriodSeconds"] > needed + 5


def test_the_issuers_are_a_file_that_the_router_takes(render, find, tmp_path) -> None:
    path = tmp_path / "issuers.yaml"
    made = find(render("everything"), "ConfigMap", "kvasir-router-issuers")
    path.write_text(made["data"]["issuers.yaml"])
    [issuer] = read_issuers(path).issuers
    assert issuer.tenant_claim == "/kubernetes.io/namespace"


def test_issuers_in_a_secret_are_mounted_whole(helm, find) -> None:
    values = {"global": {"imageRegistry": "r"}, "accessTokens": {"existingSecret": "own"}}
    rendered = helm.template(values | {"apiKeys": {"enabled": False}})
    pod = find(rendered, "Deployment", "kvasir-router")["spec"]["template"]["spec"]
    assert "--issuers-file=/etc/kvasir/issuers/issuers.yaml" in pod["containers"][0]["args"]
    assert {"name": "issuers", "secret": {"secretName": "own"}} in pod["volumes"]
    assert "kvasir-test" not in {each["metadata"]["name"] for each in rendered}


def test_the_first_key_is_one_that_the_router_takes(helm, find, tmp_path) -> None:
    import base64

    values = {"global": {"imageRegistry": "r"}, "apiKeys": {"firstKey": "kv-0123456789abcdef"}}
    data = find(helm.template(values), "Secret", "kvasir-keys")["data"]
    assert base64.b64decode(data["first-key"]) == b"kv-0123456789abcdef"
    path = tmp_path / "keys.yaml"
    path.write_bytes(base64.b64decode(data["keys.yaml"]))
    [key] = read_keys(path).keys
    assert (key.id, key.hash) == ("first", hash_key(b"kv-0123456789abcdef"))


def emitted() -> set[str]:
    """Names of all series that router, engines and operator have, as their sources say."""
    makers = {"counter": ("_total",), "gauge": ("",)}
    makers["histogram"] = makers["_histogram"] = ("_bucket", "_sum", "_count")
    found = set()
    for part, prefix in (("router/kvasir_router", "kvasir_router_"), ("engine", "kvasir_")):
        for path in (ROOT / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call) or not node.args:
                    continue
                maker = getattr(node.func, "attr", getattr(node.func, "id", ""))
                name = getattr(node.args[0], "value", None)
                if maker in makers and isinstance(name, str):
                    found |= {prefix + name + suffix for suffix in makers[maker]}
    # Those that come from a table.
    for family in (*Metrics().collect(), *OperatorMetrics().registry.collect()):
        found |= {family.name + suffix for suffix in makers[family.type]}
    return found


def queries(charts) -> dict[str, list[str]]:
    rules = yaml.safe_load((charts / "kvasir/files/rules.yaml").read_text())
    found = {rule["alert"]: [rule["expr"]] for group in rules["groups"] for rule in group["rules"]}
    for path in (charts / "kvasir/files/dashboards").glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            found[panel["title"]] = [target["expr"] for target in panel["targets"]]
    return found


@pytest.mark.slow
def test_dashboards_and_alerts_ask_for_what_there_is(charts) -> None:
    there = emitted()
    assert "kvasir_router_requests_total" in there
    for title, expressions in queries(charts).items():
        for expression in expressions:
            asked = set(re.findall(r"\bkvasir_[a-z_]+", expression))
            assert asked, title
            assert asked <= there, title


def test_every_panel_shows_the_chosen_model(charts) -> None:
    """Routers label by model, engines by model_name: the same name."""
    dashboard = json.loads((charts / "kvasir/files/dashboards/models.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            asked = re.findall(r"\bkvasir_[a-z_]+(\{[^}]*\})?", target["expr"])
            chosen = [re.search(r'\bmodel(_name)?=~"\$model"', selector) for selector in asked]
            assert chosen, panel["title"]
            assert all(chosen), panel["title"]


@pytest.mark.parametrize("name", ["router", "operator"])
def test_pods_are_as_restricted_as_may_be(render, find, values_name, name) -> None:
    pod = find(render(values_name), "Deployment", f"kvasir-{name}")["spec"]["template"]["spec"]
    security = pod["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"]) == (True, 65532)
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        own = container["securityContext"]
        assert own["readOnlyRootFilesystem"]
        assert not own["allowPrivilegeEscalation"]
        assert own["capabilities"] == {"drop": ["ALL"]}
        writable = [each for each in container["volumeMounts"] if not each.get("readOnly")]
        paths = {each["mountPath"] for each in writable if each["name"] not in KEPT}
        assert paths == {"/tmp"}
