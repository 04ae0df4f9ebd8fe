"""A real control plane, the operator as a process with the rights of the chart's rules, and what
stands in for nodes and routers: pods become what a test says, routers serve what it says."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.operators.operator_site import ACCOUNT, CHART, RIGHTS, Operator, Routers, Site
from support.web_server import server

from harness.binaries import binary
from kvasir.cli.local.ports import free_ports
from kvasir.kube.client import Cluster
from kvasir.kube.config import load_access
from kvasir.resource.crd_writer import as_yaml

__all__ = ["server"]


@pytest.fixture(scope="session")
def plane(control_plane: Any) -> Any:
    """The control plane with the definition, and the operator's account with the chart's rights."""
    control_plane.define(as_yaml())
    name, _, _ = ACCOUNT.partition("/")
    control_plane.apply(f"{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}}}}}")
    command = [binary("helm"), "template", "kvasir", CHART, "--namespace", name]
    command += ["--kube-version", "1.34.0", "--set", "global.imageRegistry=x"]
    command += ["--set", "operator.readableSecrets={hub,s}"]
    rendered = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rights = [
        each
        for each in yaml.safe_load_all(rendered)
        if each is not None and each["kind"] in RIGHTS and "operator" in each["metadata"]["name"]
    ]
    for rule in (rule for each in rights for rule in each.get("rules", ())):
        if rule["resources"] == ["leases"]:
            rule.pop("resourceNames", None)  # a release has one Lease, and here each test has
    control_plane.apply("---\n".join(map(yaml.safe_dump, rights)))
    control_plane.account = control_plane.kubeconfig_for(ACCOUNT)
    return control_plane


@pytest.fixture
def operators(plane: Any, tmp_path: Path) -> Iterator[Callable[..., Operator]]:
    """operators(*flags): a process that is not started yet; all are gone at the end.

    So are their classes: they are no namespace's, and one that is the default would be that of the
    next test's namespace, too.
    """
    made: list[Operator] = []

    def make(*flags: str) -> Operator:
        log = tmp_path / f"operator-{len(made)}.log"
        made.append(Operator(plane.account, log, free_ports(1)[0], *flags))
        return made[-1]

    yield make
    for each in made:
        if each.process is not None:
            each.kill()
            print(each.log)
    plane.kubectl("delete", "llmdeploymentclasses", "--all")


@pytest.fixture
def router() -> Iterator[Routers]:
    routers = Routers()
    yield routers
    routers.close()


@pytest.fixture
async def cluster(plane: Any) -> AsyncIterator[Cluster]:
    access = await load_access(environ={"KUBECONFIG": str(plane.kubeconfig)})
    async with Cluster(access, timeout=60) as found:
        yield found


@pytest.fixture
async def site(plane: Any, cluster: Cluster, router: Routers) -> Site:
    """A fresh namespace with a router in it."""
    made = Site(cluster, plane.namespace("operator"), router)
    await made.start_router()
    return made


@pytest.fixture
def start(site: Site, operators: Callable[..., Operator]) -> Callable[..., Operator]:
    """start(*flags): an operator that serves the site's namespace alone, at work."""

    def begin(*flags: str) -> Operator:
        made = operators(
            *("--watch-namespace", site.namespace, "--router-namespace", site.namespace),
            *("--router-admin-port", str(site.router.port), "--lease-name", site.namespace),
            *("--class-name", site.namespace),
            *flags,
        )
        made.start()
        return made

    return begin
