"""Settings of an operator: the table of the flags of `kvasir operator`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvasir.cli.flags import Flag, flag, group
from kvasir.wire.fleet_secret_file import FleetSecretFile
from kvasir_operator import flag_values as parse
from kvasir_operator.departures.signs import NodeSignals
from kvasir_operator.flag_values import DEFAULT_POD_SECURITY

PANELS = CLUSTER, ROUTERS, ENGINES, PORTS, LEASE = "Cluster", "Routers", "Engines", "Ports", "Lease"
"""Groups of the flags in --help, in their order."""


@dataclass(frozen=True, slots=True)
class Images:
    """Engine images by the device they run on, and the downloads'; "" = none is set."""

    cpu: str = ""
    cuda: str = ""
    sim: str = ""
    download: str = ""


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Settings in one immutable object; a flag's help says what each one does."""

    namespace: str = flag("default", "Namespace of the operator.", CLUSTER)
    watch_namespaces: tuple[str, ...] = flag(
        (),
        "Namespace of LLMDeployments to serve; repeatable.",
        CLUSTER,
        "watch_namespace",
        type=list[str] | None,
        parse=parse.several,
        show_default="all",
    )
    kserve_namespaces: tuple[str, ...] = flag(
        (),
        "Namespace whose KServe pods routers serve, so that fallbacks may name them; repeatable.",
        CLUSTER,
        "kserve_namespace",
        type=list[str] | None,
        parse=parse.several,
        show_default="none",
    )
    class_name: str = flag(
        "kvasir",
        "LLMDeploymentClass of the LLMDeployments to serve; it is made if it does not exist.",
        CLUSTER,
    )
    default_class: bool = flag(
        True,
        "Make it the default class: for LLMDeployments that name none.",
        CLUSTER,
        switch="--default-class/--no-default-class",
    )
    class_settings: Mapping[str, Any] | None = flag(
        None,
        "defaults and profiles of the class, as JSON; what is not in it is left to users.",
        CLUSTER,
        type=str | None,
        parse=parse.class_settings,
        metavar="JSON",
        show_default="none",
    )
    class_owner: str = flag(
        "",
        "ClusterRole with which the class is deleted, as when a release is uninstalled.",
        CLUSTER,
        show_default="none",
    )
    restore_seconds: float = flag(
        60.0,
        "How long a new claim to a model name waits for its LLMDeployment, as when a backup brings"
        " the claim first.",
        CLUSTER,
        min=0,
    )
    node_reads: bool = flag(
        True,
        "Read GPU memory from nodes' labels.",
        CLUSTER,
        switch="--node-reads/--no-node-reads",
    )
    node_drain: bool = flag(
        False,
        "Watch nodes, and have requests and streams leave pods before their node does.",
        CLUSTER,
        switch="--node-drain/--no-node-drain",
    )
    node_signals: NodeSignals = group(
        NodeSignals,
        leaves=Flag(
            "Sign of a node that is drained: a taint's key, or a condition as TYPE=STATUS;"
            " repeatable, `none` = no sign; by default cordons, autoscalers' and GPU detectors'.",
            CLUSTER,
            "node_leaves",
            type=list[str] | None,
            parse=parse.leaving_signs,
        ),
        ends=Flag(
            "Sign of a node that ends at once, as on a spot notice; as above.",
            CLUSTER,
            "node_ends",
            type=list[str] | None,
            parse=parse.ending_signs,
        ),
    )
    optional_kinds: tuple[str, ...] = flag(
        parse.OPTIONAL_KINDS,
        "Plural of a kind that may be made for LLMDeployments beside what engines need"
        f" ({', '.join(parse.OPTIONAL_KINDS)}); repeatable, none = no such kind; by default all.",
        CLUSTER,
        "optional_kind",
        type=list[str] | None,
        parse=parse.optional_kinds,
        shown=False,
    )
    """Plurals of the kinds that may be made; what is left out needs no rights."""
    resync_seconds: float = flag(
        300.0, "Each LLMDeployment is checked again after this time.", CLUSTER, min=1
    )

    router_namespace: str = flag(
        "", "Namespace of the routers.", ROUTERS, show_default="--namespace"
    )
    router_url: str = flag("", "URL of the routers for clients, shown in each status.", ROUTERS)
    router_admin_port: int = flag(
        8081, "Port on which routers say whom they serve.", ROUTERS, min=1, max=65535
    )
    router_gate: bool = flag(
        True,
        "Engine pods are Ready only when every router serves them; without it, as where engines are"
        " used without Kvasir's routers, as soon as they can serve.",
        ROUTERS,
        switch="--router-gate/--no-router-gate",
    )
    router_admin_service: str = flag(
        "kvasir-router-admin",
        "Service of that port, in --router-namespace, by which KEDA finds the routers.",
        ROUTERS,
    )
    router_deployment: str = flag(
        "",
        "Deployment of the routers, in --router-namespace, to scale by what they carry.",
        ROUTERS,
        show_default="none",
    )
    router_min_replicas: int = flag(2, "Routers at least, when they are scaled.", ROUTERS, min=1)
    router_max_replicas: int = flag(
        8, "Routers at most, when they are scaled.", ROUTERS, min=1, max=64
    )
    router_in_flight: int = flag(
        1000, "Requests that one router is meant to carry at once, streams too.", ROUTERS, min=1
    )
    router_requests_per_second: int = flag(
        500, "Requests a second that one router is meant to take.", ROUTERS, min=1
    )
    fleet_secret: FleetSecretFile = flag(
        FleetSecretFile(),
        "File with the secret that routers and engines share, read again when it changes.",
        ROUTERS,
        "fleet_secret_file",
        type=Path | None,
        parse=parse.secret,
        shown=False,
        dir_okay=False,
    )
    """The secrets in it now, which may change; without one they do not know each other."""
    fleet_secret_copy: str = flag(
        "kvasir-fleet", "Secret in each namespace by which engines know the routers.", ROUTERS
    )

    images: Images = group(
        Images,
        cpu=Flag("Engine image for CPUs.", ENGINES, "image_cpu"),
        cuda=Flag("Engine image for NVIDIA GPUs.", ENGINES, "image_cuda"),
        sim=Flag("Engine image for simulated devices.", ENGINES, "image_sim"),
        download=Flag(
            "Image that downloads models; by default each engine's.", ENGINES, "image_download"
        ),
    )
    image_pull_secrets: tuple[str, ...] = flag(
        (),
        "Secret, in the LLMDeployments' namespaces, that engine pods pull images with; repeatable.",
        ENGINES,
        "image_pull_secret",
        type=list[str] | None,
        parse=parse.several,
    )
    resource_profiles: Mapping[str, int] = flag(
        {},
        "Memory of a GPU product, such as NVIDIA-L40S=48Gi or default=24Gi; repeatable.",
        ENGINES,
        "resource_profile",
        type=list[str] | None,
        parse=parse.profiles,
        metavar="PRODUCT=MEMORY",
    )
    """Bytes of memory of each GPU by the product that a nodeSelector asks for; `default` is for
    those that ask for none."""
    download_env: Mapping[str, str] = flag(
        {},
        "Environment variable of downloads, such as HTTPS_PROXY; repeatable.",
        ENGINES,
        type=list[str] | None,
        parse=parse.variables,
        metavar="NAME=VALUE",
    )

    pod_security: Mapping[str, Any] = flag(
        DEFAULT_POD_SECURITY,
        "securityContext of engine and download pods, as JSON; runAsNonRoot is always true.",
        ENGINES,
        type=str | None,
        parse=parse.pod_security,
        metavar="JSON",
        show_default="user, group and fsGroup 65532, seccomp RuntimeDefault",
    )
    download_metadata: bool = flag(
        False,
        "Let downloads reach the nodes' metadata service, where their rights come from it.",
        ENGINES,
        switch="--download-metadata/--no-download-metadata",
    )

    host: str = flag("0.0.0.0", "Address that the ports below listen on.", PORTS)
    metrics_port: int = flag(
        8080, "Port of /metrics, /healthz and /readyz.", PORTS, min=0, max=65535
    )
    external_metrics_port: int = flag(
        0, "Serve external.metrics.k8s.io over TLS here; 0 = do not.", PORTS, min=0, max=65535
    )
    external_metrics_service: str = flag(
        "kvasir-operator",
        "Service, in --namespace, by which the API server reaches that port.",
        PORTS,
    )

    lease_name: str = flag(
        "kvasir-operator", "Lease that only one operator at a time holds.", LEASE
    )
    lease_seconds: float = flag(15.0, "How long an operator that died keeps it.", LEASE, min=2)

    @property
    def controller(self) -> str:
        """Name of this operator in its LLMDeploymentClass: one Lease, one operator."""
        from kvasir.resource import labels  # brings pydantic, which --help does without

        return f"{labels.GROUP}/{self.namespace}/{self.lease_name}"

    def __post_init__(self) -> None:
        """Look for the routers in the operator's namespace if no other is given."""
        if not self.router_namespace:
            object.__setattr__(self, "router_namespace", self.namespace)
