"""Settings of an operator, in one immutable object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Images:
    """Engine images by the device they run on; "" = none is set."""

    cpu: str = ""
    cuda: str = ""
    sim: str = ""


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """See the flags of `kvasir operator` for what each one does."""

    namespace: str = "default"
    """Namespace in which the operator runs and holds its Lease."""

    watch_namespaces: tuple[str, ...] = ()
    """Namespaces whose LLMDeployments it serves; none = all."""

    router_namespace: str = "default"
    """Namespace in which the routers run."""

    router_url: str = ""
    """URL at which clients reach the routers: `status.url`."""

    router_admin_port: int = 8081

    router_admin_service: str = "kvasir-router-admin"
    """The Service, in `router_namespace`, that leads to that port: KEDA asks all behind it."""

    images: Images = Images()

    image_pull_secrets: tuple[str, ...] = ()
    """Names of Secrets in the namespaces of the LLMDeployments."""

    fleet_secret: str = ""
    """Shared by routers and engines; "" = they do not know each other."""

    resync_seconds: float = 300.0
    """Each LLMDeployment is looked at again after this time even if nothing happened."""

    node_reads: bool = True
    """True if nodes may be read: their labels tell the GPUs' memory."""

    resource_profiles: Mapping[str, int] = field(default_factory=dict)
    """Bytes of memory of each GPU by the product that a nodeSelector asks for; `default` is for
    those that ask for none."""

    download_env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the Jobs that download models."""

    host: str = "0.0.0.0"
    """Address that the ports listen on."""

    metrics_port: int = 8080
    """/metrics, /healthz and /readyz."""

    external_metrics_port: int = 0
    """external.metrics.k8s.io over TLS; 0 = not served."""

    external_metrics_service: str = "kvasir-operator"
    """The Service, in `namespace`, that leads the API server to that port."""

    lease_name: str = "kvasir-operator"

    lease_seconds: float = 15.0
    """Seconds for which an operator that died keeps its Lease."""
