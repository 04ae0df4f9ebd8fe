"""The one Kubernetes client of operator, router discovery and CLI, on the official `kubernetes`.

Only what costs nothing to import is here. `kvasir.kube.config` and `kvasir.kube.client` import the
official package, half a second: commands import them once they really speak to a cluster.
"""

from kvasir.kube.api import AccessError, ApiError, Kind

__all__ = ["AccessError", "ApiError", "Kind"]
