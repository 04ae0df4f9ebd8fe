"""The Kubernetes API over httpx: where a cluster is, and requests to it.

The official client would bring 126 MB and a second HTTP stack for the handful of requests that are
made.
"""

from kvasir.kube.cluster_access import AccessError, ClusterAccess, load_access
from kvasir.kube.kube_client import ApiError, Cluster, Kind, read_body

__all__ = [
    "AccessError",
    "ApiError",
    "Cluster",
    "ClusterAccess",
    "Kind",
    "load_access",
    "read_body",
]
