"""The configuration files of one node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness import cgroups, network

PAUSE_IMAGE = "localhost/kvasir/pause:1"
CNI_BINARIES = "/usr/lib/cni"
"""Directory in which Debian's containernetworking-plugins puts its binaries."""
_UNUSED_PLUGINS = [
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.tracing.processor.v1.otlp",
    "io.containerd.internal.v1.tracing",
]


def write(directory: Path, name: str, index: int, pki: Path) -> None:
    """containerd.toml, cni/, kubelet.yaml, kube-proxy.yaml and resolv.conf of a node."""
    (directory / "cni").mkdir(parents=True, exist_ok=True)
    # Empty: an image that is not there fails at once, and no name leaves the machine.
    (directory / "resolv.conf").write_text("")
    (directory / "containerd.toml").write_text(_containerd(directory))
    files = {
        "cni/10-kvasir.conflist": _cni(index),
        "kubelet.yaml": _kubelet(directory, name, index, pki),
        "kube-proxy.yaml": _kube_proxy(name, pki),
    }
    for path, content in files.items():
        (directory / path).write_text(json.dumps(content, indent=1))


def _containerd(directory: Path) -> str:
    # Without CAP_SYS_RESOURCE nothing may lower an OOM score: neither containerd its own
    # (oom_score) nor a sandbox its pause process (restrict_oom_score_adj).
    return f"""version = 2
root = "{directory}/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = {json.dumps(_UNUSED_PLUGINS)}

[grpc]
address = "/run/containerd/containerd.sock"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true
disable_apparmor = true
disable_hugetlb_controller = true
tolerate_missing_hugetlb_controller = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{CNI_BINARIES}"
conf_dir = "{directory}/cni"

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"""


def _cni(index: int) -> dict[str, Any]:
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": network.pod_cidr(index)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "kvasir", "plugins": [bridge, ports]}


def _kubelet(directory: Path, name: str, index: int, pki: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": network.node_address(index),
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroups.name_of(name)}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "enforceNodeAllocatable": ["pods"],
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "clusterDomain": "cluster.local",
        "clusterDNS": [network.HOST],
        "resolvConf": str(directory / "resolv.conf"),
        "volumePluginDir": str(directory / "volumeplugins"),
        "nodeStatusUpdateFrequency": "2s",
        "nodeStatusReportFrequency": "10s",
        "nodeLeaseDurationSeconds": 12,
        "syncFrequency": "10s",
        "serializeImagePulls": False,
        # Images that were imported cannot be pulled again: never collect them.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
    }


def _kube_proxy(name: str, pki: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "hostnameOverride": name,
        "clientConnection": {"kubeconfig": str(pki / "proxy.kubeconfig")},
        "clusterCIDR": network.PODS,
        "oomScoreAdj": 0,
        # Conntrack's limits are the whole machine's; leave them alone.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        "iptables": {"minSyncPeriod": "0s"},
    }
