"""Part of a Kubernetes cluster that a router serves."""

from dataclasses import dataclass

from kvasir.cli.flags import flag
from kvasir_router.options import option_values as parse
from kvasir_router.options.router_panels import ROUTING


@dataclass(frozen=True, slots=True)
class ClusterScope:
    """LLMDeployments and KServe pods to serve, by class and namespace."""

    namespaces: tuple[str, ...] = flag(
        (),
        "Kubernetes namespace to serve; several times for several. Without it, all.",
        ROUTING,
        "watch_namespace",
        type=list[str] | None,
        parse=parse.namespaces,
    )
    """Empty = all."""
    class_name: str = flag(
        "kvasir",
        "LLMDeploymentClass whose model names are served: that of the release's operator.",
        ROUTING,
    )
    kserve_namespaces: tuple[str, ...] = flag(
        (),
        "Kubernetes namespace whose KServe pods are served; several times for several. A name that "
        "two of them have is that of the first one given. Without it, none.",
        ROUTING,
        "kserve_namespace",
        type=list[str] | None,
        parse=parse.kserve_namespaces,
    )
    """Empty = none."""
