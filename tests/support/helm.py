"""Helm, and the sets of values that charts are rendered with."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.binaries import binary
from harness.errors import HarnessError

CHARTS = Path(__file__).parents[2] / "charts"
KUBERNETES = "1.34.0"

NAMESPACE_NAME = "kubernetes.io/metadata.name"

Object = dict[str, Any]

REGISTRY = {"imageRegistry": "registry.example.com/kvasir"}

SETS: dict[str, Object] = {
    "defaults": {"global": REGISTRY},
    "namespaced": {
        "global": REGISTRY | {"imagePullSecrets": [{"name": "pull"}]},
        "watchNamespaces": ["team-a", "team-b"],
        "crds": {"enabled": False},
        "rbac": {"aggregate": False},
        "operator": {"resourceProfiles": {"default": "24Gi", "NVIDIA-L40S": "48Gi"}},
        "networkPolicy": {
            "routerFrom": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}],
            "metricsFrom": [
                {
                    "namespaceSelector": {
                        "matchLabels": {"kubernetes.io/metadata.name": "monitoring"}
                    }
                }
            ],
        },
    },
    "everything": {
        "global": REGISTRY,
        "commonLabels": {"team": "models"},
        "fleetSecret": {"existingSecret": "own-fleet"},
        "apiKeys": {"existingSecret": "own-keys"},
        "accessTokens": {
            "issuers": [
                {
                    "name": "cluster",
                    "issuer": "https://kubernetes.default.svc.cluster.local",
                    "jwks_url": "https://kubernetes.default.svc/openid/v1/jwks",
                    "audiences": ["kvasir"],
                    "tenant_claim": "/kubernetes.io/namespace",
                    "tenants": [{"tenant": "*", "tokens_per_day": 1000000}],
                }
            ]
        },
        "operator": {
            "logLevel": "debug",
            "extraArgs": ["--resync-seconds=60"],
            "extraEnv": [{"name": "A", "value": "b"}],
            "podLabels": {"sidecar.istio.io/inject": "false"},
            "nodeSelector": {"pool": "system"},
            "priorityClassName": "system-cluster-critical",
        },
        "downloads": {
            "env": {"HF_ENDPOINT": "https://hub.example.com", "NO_PROXY": ".svc,10.0.0.1"}
        },
        "engine": {"images": {"cuda": {"registry": "other.example.com", "tag": "2.0"}}},
        "router": {
            "image": {"digest": "sha256:" + "0" * 64},
            "autoscaling": {"enabled": True, "minReplicas": 3, "maxReplicas": 12},
            "service": {
                "type": "LoadBalancer",
                "port": 443,
                "annotations": {"cloud": "internal"},
                "loadBalancerSourceRanges": ["10.0.0.0/8"],
                "externalTrafficPolicy": "Local",
            },
            "ingress": {
                "enabled": True,
                "className": "nginx",
                "hosts": ["models.example.com"],
                "tls": [{"secretName": "models-tls", "hosts": ["models.example.com"]}],
            },
            "httpRoute": {
                "enabled": True,
                "parentRefs": [{"name": "gateway", "namespace": "infra"}],
                "hostnames": ["models.example.com"],
                "matches": [{"path": {"type": "PathPrefix", "value": "/llm/"}}],
                "filters": [
                    {
                        "type": "URLRewrite",
                        "urlRewrite": {
                            "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}
                        },
                    }
                ],
                "timeouts": {"request": "1h"},
            },
            "tls": {"enabled": True, "secretName": "router-tls"},
            "pdb": {"maxUnavailable": "34%"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "accessLog": False,
            "auditLog": False,
            "trustedProxies": ["10.0.0.0/8", "2001:db8::/32"],
            "proxyProtocolFrom": ["192.0.2.0/24"],
            "maxClientConnections": 100,
            "responses": {"urlSecret": "redis", "days": 7},
            "spend": {"urlSecret": "redis"},
        },
        "externalMetrics": {"enabled": True},
        "monitoring": {
            "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "rules": {"enabled": True},
            "dashboards": {"enabled": True},
        },
        "kserveNamespaces": ["kserve-b", "kserve-a"],
        "class": {
            "name": "production",
            "default": False,
            "settings": {
                "defaults": {"caBundle": {"configMapRef": {"name": "corporate-ca"}}},
                "profiles": [{"name": "l4", "resources": {"limits": {"nvidia.com/gpu": 1}}}],
            },
        },
        "test": {"model": "llama", "keySecret": "own-key"},
    },
    "pool": {
        "global": REGISTRY,
        "router": {
            "httpRoute": {
                "enabled": True,
                "parentRefs": [{"name": "gateway", "namespace": "infra"}],
                "backend": "pool",
            },
            "inferencePool": {
                "enabled": True,
                "annotations": {"team": "models"},
                "failureMode": "FailOpen",
                "bodyMode": "buffered",
                "from": [{"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: "infra"}}}],
            },
        },
    },
    "bare": {
        "global": REGISTRY,
        "apiKeys": {"enabled": False},
        "rbac": {"create": False},
        "networkPolicy": {"enabled": False},
        "crds": {"enabled": False},
        "router": {
            "pdb": {"enabled": False},
            "replicas": 1,
            "responses": {"volumeClaim": "responses"},
            "spend": {"volumeClaim": "spend", "days": 400},
        },
    },
}


class HelmError(Exception):
    """Helm refused; what it said."""


class Helm:
    """`helm` with a home of its own, and with a cluster if `kubeconfig` is given."""

    def __init__(self, home: Path, kubeconfig: Path | None = None) -> None:
        self._home = home
        self._kubeconfig = kubeconfig
        self._program = binary("helm")

    def on(self, kubeconfig: Path) -> "Helm":
        """The same with a cluster."""
        return Helm(self._home, kubeconfig)

    def __call__(self, *arguments: str | Path, values: Object | None = None) -> str:
        """Return what `helm ARGUMENTS` printed. Raises HelmError."""
        given = ("--values", "-") if values is not None else ()
        done = subprocess.run(
            [self._program, *map(str, arguments), *given],
            input=yaml.safe_dump(values) if values is not None else None,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self._home),
                "KUBECONFIG": str(self._kubeconfig or self._home / "none"),
            },
        )
        if done.returncode:
            raise HelmError(done.stdout + done.stderr)
        return done.stdout

    def template(
        self,
        values: Object,
        chart: str = "kvasir",
        *,
        release: str = "kvasir",
        api_versions: tuple[str, ...] = (),
    ) -> list[Object]:
        """The chart's objects, on a cluster that has those further APIs. Raises HelmError."""
        text = self(
            *("template", release, CHARTS / chart, "--namespace", "kvasir"),
            *("--kube-version", KUBERNETES),
            *(f"--api-versions={version}" for version in api_versions),
            values=values,
        )
        return [each for each in yaml.safe_load_all(text) if each]


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    try:
        return Helm(tmp_path_factory.mktemp("helm"))
    except HarnessError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def render(helm: Helm) -> Callable[..., list[Object]]:
    """The objects of the chart with one of SETS, and further values of its first level."""
    rendered: dict[str, list[Object]] = {}

    def render(name: str, **more: Object) -> list[Object]:
        if more:
            return helm.template(SETS[name] | more)
        if name not in rendered:
            rendered[name] = helm.template(SETS[name])
        return rendered[name]

    return render


@pytest.fixture(params=list(SETS))
def values_name(request: pytest.FixtureRequest) -> str:
    """Each of SETS."""
    return str(request.param)


@pytest.fixture(scope="session")
def find() -> Callable[[list[Object], str, str], Object]:
    """find(objects, kind, name): that one."""

    def find(objects: list[Object], kind: str, name: str) -> Object:
        [found] = [
            each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)
        ]
        return found

    return find


@pytest.fixture(scope="session")
def charts() -> Path:
    return CHARTS


@pytest.fixture(scope="session")
def helm_error() -> type[HelmError]:
    return HelmError


@pytest.fixture(scope="session")
def value_sets() -> dict[str, Object]:
    return SETS
