"""Signs that a node will leave: its taints and conditions, as cordons, autoscalers, handlers of
spot notices and detectors of faults set them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LEAVES: Final = (
    "node.kubernetes.io/unschedulable",
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "aws-node-termination-handler/rebalance-recommendation",
    "aws-node-termination-handler/scheduled-maintenance",
    "VMEventScheduled=True",
    "GPUMissing=True",
    "XIDErrors=True",
    "AcceleratedHardwareReady=False",
)
"""Signs of a node that is drained, pod by pod, or should be: taints' keys, and conditions as
TYPE=STATUS. The conditions are those of AKS (its scheduled events and GPUs' faults) and EKS.
https://learn.microsoft.com/azure/aks/node-problem-detector
https://docs.aws.amazon.com/eks/latest/userguide/node-health.html"""

ENDS: Final = (
    "node.kubernetes.io/out-of-service",
    "node.cloudprovider.kubernetes.io/shutdown",
    "cloud.google.com/impending-node-termination",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/asg-lifecycle-termination",
)
"""Signs of a node that ends within seconds or minutes, whatever runs on it.
https://github.com/aws/aws-node-termination-handler
https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms"""


@dataclass(frozen=True, slots=True)
class NodeSignals:
    """Signs to heed: taints' keys, and conditions as TYPE=STATUS."""

    leaves: frozenset[str] = frozenset(LEAVES)
    ends: frozenset[str] = frozenset(ENDS)
    """One that is in both ends."""
