"""etcd, the API server and the controller manager as processes of this machine."""

from __future__ import annotations

import json
import os
import signal
import ssl
import urllib.error
import urllib.request
import uuid
from functools import partial
from pathlib import Path
from typing import Any

from harness.binaries import binary
from harness.commands import wait_for
from harness.errors import HarnessError
from harness.kubectl import Kubectl
from harness.pki import Authority
from harness.processes import ProcessTable
from kvasir.cli.local.ports import free_ports

SERVICE_CIDR = "10.96.0.0/16"
VERSION = "KVASIR_KUBERNETES"
"""Environment variable: oldest or newest, for control planes without nodes of that version."""
READY_SECONDS = 120
"""Generous: it is 5 s on an idle machine."""
GO = {"GOGC": "400"}
"""Garbage is collected when the heap is five times what is in use, not twice: API servers with few
objects take a third less CPU so, and 100 MB more."""


class ControlPlane:
    """A control plane of its own, all state in one directory.

    `host` is the address that it serves on; nodes need one that they can reach. Authorisation is
    RBAC (and the node authorizer); the admin's `kubeconfig` may do everything.
    """

    def __init__(self, directory: Path, *, host: str = "127.0.0.1", port: int = 0) -> None:
        etcd, peer, own = _remembered_ports(directory)
        self.directory = directory
        self.host = host
        self.url = f"https://{host}:{port or own}"
        self.authority = Authority(directory / "pki")
        self.kubeconfig = self.authority.path("admin.kubeconfig")
        self.kubectl = Kubectl(self.kubeconfig)
        self.processes = ProcessTable(directory)
        self._port = port or own
        # Nodes are of one version, and so is the control plane that they belong to
        self._version = os.environ.get(VERSION, "") if host == "127.0.0.1" else ""
        self._etcd = f"http://127.0.0.1:{etcd}"
        self._peer = f"http://127.0.0.1:{peer}"

    def start(self) -> None:
        """Start everything; returns when the API server is ready. Raises HarnessError."""
        self._make_certificates()
        self._start_etcd()
        self.start_apiserver()
        # It ends itself when its roles are not there yet, so only now.
        self._start_controller_manager()

    def stop(self) -> None:
        """End everything at once: the API server's own way takes 8 s."""
        self.processes.kill_all()

    def start_apiserver(self) -> None:
        """Start the API server; returns when it is ready."""
        pki = self.authority.path
        loopback = ("--endpoint-reconciler-type=none",) if self.host == "127.0.0.1" else ()
        self.processes.spawn(
            *("apiserver", self._server(), "kube-apiserver", f"--etcd-servers={self._etcd}"),
            *(f"--bind-address={self.host}", f"--advertise-address={self.host}"),
            *(f"--secure-port={self._port}", f"--service-cluster-ip-range={SERVICE_CIDR}"),
            *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
            *("--allow-privileged=true", f"--client-ca-file={self.authority.certificate}"),
            f"--tls-cert-file={pki('apiserver.crt')}",
            f"--tls-private-key-file={pki('apiserver.key')}",
            f"--kubelet-client-certificate={pki('apiserver-kubelet.crt')}",
            f"--kubelet-client-key={pki('apiserver-kubelet.key')}",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={pki('sa.pub')}",
            f"--service-account-signing-key-file={pki('sa.key')}",
            # The aggregation layer, for API servers of our own.
            f"--requestheader-client-ca-file={self.authority.certificate}",
            "--requestheader-allowed-names=front-proxy",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            f"--proxy-client-cert-file={pki('front-proxy.crt')}",
            f"--proxy-client-key-file={pki('front-proxy.key')}",
            "--enable-aggregator-routing=true",
            # A node that is lost is given up after 10 s, not after five minutes.
            "--default-not-ready-toleration-seconds=10",
            "--default-unreachable-toleration-seconds=10",
            *loopback,
            env=GO,
        )
        wait_for("a ready API server", self._ready_or_fail, READY_SECONDS)

    def start_scheduler(self) -> None:
        """Start the scheduler, which only nodes need."""
        kubeconfig = self.add_client("scheduler", "/CN=system:kube-scheduler")
        self.processes.spawn(
            *("scheduler", binary("kube"), "kube-scheduler", f"--kubeconfig={kubeconfig}"),
            *("--secure-port=0", "--leader-elect=false"),
            *("--kube-api-qps=500", "--kube-api-burst=1000"),
            env=GO,
        )

    def stop_apiserver(self) -> None:
        """Kill the API server; its data stay. `start_apiserver` brings it back."""
        self.processes.kill("apiserver")

    def restart_apiserver(self) -> None:
        """Kill the API server and start it again; every watch breaks."""
        self.stop_apiserver()
        self.start_apiserver()

    def pause_apiserver(self) -> None:
        """Stop the API server in place (SIGSTOP): connections stay open and get no answer."""
        self._signal_apiserver(signal.SIGSTOP)

    def resume_apiserver(self) -> None:
        """Let a paused API server go on."""
        self._signal_apiserver(signal.SIGCONT)

    def apply(self, text: str) -> str:
        """Server-side apply of YAML or JSON documents, as admin."""
        return self.kubectl.apply(text)

    def define(self, text: str) -> None:
        """Server-side apply of CustomResourceDefinitions; returns when they are served."""
        self.apply(text)

        def established() -> bool:
            # Not `kubectl wait`, which fails on a definition that has no conditions yet.
            found = json.loads(self.kubectl("get", "-f", "-", "-o", "json", input=text))
            return all(_is_established(each) for each in found.get("items", [found]))

        wait_for("the definitions' kinds", established, READY_SECONDS)

    def undefine(self, *names: str) -> None:
        """Delete the definitions of these names that are there, and all objects of their kinds;
        returns when they are gone.

        Each kind is listed first. The API server makes a kind's storage when the kind is first
        asked for; a deletion that asks first fails ("storage is (re)initializing") and was seen to
        take minutes.
        """
        found = self.kubectl("get", "crd", "--ignore-not-found", "-o", "name", *names).split()
        for name in found:
            wait_for(f"the objects of {name}", partial(self._lists, name), READY_SECONDS)
        if found:
            self.kubectl("delete", *found)

    def _lists(self, definition: str) -> bool:
        spec = self.kubectl.json("get", definition)["spec"]
        version = next(each["name"] for each in spec["versions"] if each["served"])
        path = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
        try:
            self.kubectl("get", "--raw", path)
        except HarnessError:
            return False
        return True

    def namespace(self, prefix: str = "test") -> str:
        """A fresh namespace whose default service account is there."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        self.kubectl("create", "namespace", name)

        def has_account() -> bool:
            found = self.kubectl("-n", name, "get", "sa", "default", "--ignore-not-found")
            return bool(found)

        wait_for(f"the default service account of {name}", has_account, READY_SECONDS)
        return name

    def token_for(self, service_account: str) -> str:
        """A token of a service account, given as NAMESPACE/NAME; it must exist."""
        namespace, separator, name = service_account.partition("/")
        if not separator:
            raise HarnessError(f"{service_account!r} is no service account; write NAMESPACE/NAME")
        return self.kubectl("-n", namespace, "create", "token", name).strip()

    def kubeconfig_for(self, service_account: str) -> Path:
        """A kubeconfig that authenticates as the service account NAMESPACE/NAME: what it may do is
        what RBAC says."""
        token = self.token_for(service_account)
        file = service_account.replace("/", "-")
        return self.authority.kubeconfig(file, self.url, token=token)

    def is_ready(self) -> bool:
        """Return True if the API server answers that it is ready."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        pki = self.authority.path
        context.load_cert_chain(pki("admin.crt"), pki("admin.key"))
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", context=context, timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _make_certificates(self) -> None:
        authority = self.authority
        authority.create()
        service = "kubernetes.default.svc"
        names = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            service,
            f"{service}.cluster.local",
        ]
        addresses = {"127.0.0.1", self.host, "10.96.0.1"}
        authority.issue(
            "apiserver",
            "/CN=kube-apiserver",
            [*(f"DNS:{name}" for name in names), *(f"IP:{each}" for each in sorted(addresses))],
        )
        authority.issue("apiserver-kubelet", "/O=system:masters/CN=apiserver-kubelet")
        authority.issue("front-proxy", "/CN=front-proxy")
        self.add_client("admin", "/O=system:masters/CN=admin")
        self.add_client("controller-manager", "/CN=system:kube-controller-manager")

    def add_client(self, name: str, subject: str) -> Path:
        """A kubeconfig with a certificate for `subject` (/O=GROUP/CN=USER)."""
        self.authority.issue(name, subject)
        return self.authority.kubeconfig(name, self.url)

    def _server(self) -> Path:
        """The binary of the API server and the controller manager."""
        return binary(f"apiserver-{self._version}" if self._version else "kube")

    def _start_etcd(self) -> None:
        self.processes.spawn(
            *("etcd", binary("kube"), "etcd", "--data-dir", self.directory / "etcd"),
            *("--unsafe-no-fsync", "--log-level", "warn"),
            *("--listen-client-urls", self._etcd, "--advertise-client-urls", self._etcd),
            *("--listen-peer-urls", self._peer, "--initial-advertise-peer-urls", self._peer),
            *("--initial-cluster", f"default={self._peer}"),
            env=GO,
        )

    def _start_controller_manager(self) -> None:
        kubeconfig = self.authority.path("controller-manager.kubeconfig")
        pki = self.authority.path
        self.processes.spawn(
            *("controller-manager", self._server(), "kube-controller-manager"),
            *(f"--kubeconfig={kubeconfig}", "--secure-port=0", "--leader-elect=false"),
            *("--use-service-account-credentials=true", f"--root-ca-file={pki('ca.crt')}"),
            f"--service-account-private-key-file={pki('sa.key')}",
            f"--cluster-signing-cert-file={pki('ca.crt')}",
            f"--cluster-signing-key-file={pki('ca.key')}",
            # With the default of 20 requests a second namespaces wait 5 s for their account.
            *("--kube-api-qps=500", "--kube-api-burst=1000"),
            "--enable-hostpath-provisioner=true",
            *("--node-monitor-period=2s", "--node-monitor-grace-period=16s"),
            "--horizontal-pod-autoscaler-sync-period=2s",
            env=GO,
        )

    def _signal_apiserver(self, number: int) -> None:
        process = self.processes.find("apiserver")
        if process is None:
            raise HarnessError("the API server does not run; start_apiserver() starts it")
        process.signal(number)

    def _ready_or_fail(self) -> bool:
        if self.processes.find("apiserver") is None:
            said = self.processes.log("apiserver")
            raise HarnessError(f"the API server ended before it was ready:\n{said}")
        return self.is_ready()


def _is_established(definition: dict[str, Any]) -> bool:
    conditions = definition.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def _remembered_ports(directory: Path) -> list[int]:
    """Ports of etcd, its peers and the API server, the same for everyone who opens `directory`.
    They are reserved while the process that chose them runs: whoever stops a server finds its port
    free when it starts it again."""
    file = directory / "ports"
    if not file.exists():
        directory.mkdir(parents=True, exist_ok=True)
        file.write_text(" ".join(map(str, free_ports(3))))
    return [int(port) for port in file.read_text().split()]
