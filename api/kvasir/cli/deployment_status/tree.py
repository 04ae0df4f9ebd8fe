"""Deployments as trees in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from kvasir.cli.deployment_status.deployment_view import ConditionView, DeploymentView
from kvasir.cli.deployment_status.pod_view import PodView
from kvasir.cli.deployment_status.workload_view import WorkloadView
from kvasir.cli.printable import printable
from kvasir.quantity import format_bytes
from kvasir.resource import labels

_PHASE_STYLES = {
    "Ready": "bold green",
    "Idle": "bold blue",
    "Degraded": "bold red",
    "Failed": "bold red",
    "Unknown": "bold red",
}
_MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("?", "yellow")}
WIDE_COLUMNS = 400
"""Width of a terminal in which no line of a wide tree is broken."""
_STARTUP = ("scheduleSeconds", "pullSeconds", "loadSeconds", "routeSeconds")


def make_tree(view: DeploymentView, now: datetime | None = None, *, is_wide: bool = False) -> Tree:
    """Return the tree of one deployment: why it is not ready, its conditions, its cache, its
    workloads with their pods, the routers; with image, address and revision of each pod, if it
    `is_wide`."""
    tree = Tree(_title(view), guide_style="dim")
    if view.why is not None:
        tree.add(_text(("why not ready: ", "bold yellow"), (view.why, "yellow")))
    if view.operator is not None and view.operator != view.why:
        tree.add(_text(("operator: ", "bold yellow"), (view.operator, "yellow")))
    if view.stale:
        tree.add(_text(("the status is older than the last change", "yellow")))
    for line in _facts(view):
        tree.add(line)
    if view.conditions:
        tree.add(Text("conditions", "bold")).add(_conditions(view.conditions))
    _add_workloads(tree, view, now or datetime.now(UTC), is_wide)
    return tree


def _add_workloads(tree: Tree, view: DeploymentView, now: datetime, is_wide: bool) -> None:
    """Add the workloads with their pods, the pods that no workload made, and the routers."""
    for workload in view.workloads:
        branch = tree.add(_workload(workload))
        if workload.why is not None:
            branch.add(_text((workload.why, "yellow")))
        _add_pods(branch, [it for it in view.pods if it.workload == workload.name], now, is_wide)
    made = {workload.name for workload in view.workloads}
    others = [pod for pod in view.pods if pod.workload not in made]
    if others or not view.workloads:
        _add_pods(tree.add(_text(("pods", "bold"), *_none(others))), others, now, is_wide)
    if view.routers is not None:
        ready = sum(pod.ready for pod in view.routers)
        count = f"  {ready}/{len(view.routers)} ready" if view.routers else "  none"
        branch = tree.add(_text(("routers", "bold"), (count, "" if ready else "red")))
        _add_pods(branch, view.routers, now, is_wide)


def _add_pods(branch: Tree, pods: Sequence[PodView], now: datetime, is_wide: bool) -> None:
    for pod in pods:
        leaf = branch.add(_pod(pod, now))
        if is_wide:
            told = (pod.ip, pod.image, f"revision {pod.revision}" if pod.revision else None)
            leaf.add(_text(("  ".join(each for each in told if each), "dim")))
        if pod.why is not None:
            leaf.add(_text((pod.why, "yellow")))


def _none(pods: Sequence[PodView]) -> Iterator[tuple[str, str]]:
    if not pods:
        yield "  none", "dim"


def _workload(it: WorkloadView) -> Text:
    counted = "finished" if it.kind == "Job" else "ready"
    old = it.desired - it.updated if it.kind == "Deployment" else 0
    return _text(
        (it.role, "bold"),
        (f"  {it.kind.lower()}/{it.name}", ""),
        (f"  {it.ready}/{it.desired} {counted}", "" if it.ready == it.desired else "yellow"),
        (f"  {old} of an older revision" if old > 0 else "", "yellow"),
    )


def _title(view: DeploymentView) -> Text:
    style = _PHASE_STYLES.get(view.phase, "bold yellow")
    return _text(
        (f"{view.namespace}/{view.name}", "bold"),
        (f"  {view.phase}", style),
        (f"  {view.ready}/{view.desired} ready", ""),
        (f"  {view.url}" if view.url else "", "dim"),
    )


def _facts(view: DeploymentView) -> Iterator[Text]:
    revision = f"@{view.revision}" if view.revision else ""
    yield _text(("model  ", "bold"), (f"{view.model}{revision}", ""))
    if view.names != (view.name,):
        yield _text(("names  ", "bold"), (", ".join(view.names), ""))
    for adapter in view.adapters:
        told = f"{adapter.get('name')} on {adapter.get('readyReplicas', 0)} engines"
        said = f": {adapter['message']}" if adapter.get("message") else ""
        yield _text(("adapter ", "bold"), (told, ""), (said, "yellow"))
    if view.cache:
        yield _text(("cache  ", "bold"), (_cache(view.cache), ""))
    for claim in view.claims:
        modes = ", ".join(claim.access_modes)
        size = f", {claim.capacity}" if claim.capacity else ""
        bound = "" if claim.phase == "Bound" else "yellow"
        yield _text(("volume ", "bold"), (f"{claim.name} {claim.phase}{size}, {modes}", bound))
    if view.rollout:
        yield _text(("canary ", "bold"), (_canary(view.rollout), ""))
    if view.fit:
        yield _text(("fit    ", "bold"), (_fit(view.fit), ""))
    if view.startup:
        yield _text(("start  ", "bold"), (_startup(view.startup), ""))


def _canary(rollout: Mapping[str, Any]) -> str:
    said = f"{rollout.get('phase')} at step {rollout.get('step')} of {rollout.get('steps')}"
    if (split := rollout.get("split")) and split.get("weight") is not None:
        said += f", {split['weight']} % of the requests"
    for name, sample in (rollout.get("samples") or {}).items():
        said += f", {name} {sample.get('requests', 0)} samples"
    return f"{said}: {rollout['message']}" if rollout.get("message") else said


def _cache(cache: Mapping[str, Any]) -> str:
    total, done = cache.get("totalBytes") or 0, cache.get("bytes") or 0
    said = str(cache.get("phase") or "")
    if total:
        said += f" {format_bytes(done)} of {format_bytes(total)} ({100 * done // total} %)"
    if cache.get("etaSeconds") and done < total:
        said += f", {_duration(int(cache['etaSeconds']))} left"
    return said


def _fit(fit: Mapping[str, Any]) -> str:
    parts = []
    if fit.get("weightsGiB") is not None:
        parts.append(f"weights {fit['weightsGiB']:.1f} GiB")
    if fit.get("kvTokens") is not None:
        dtype = f" in {fit['kvCacheDtype']}" if fit.get("kvCacheDtype") else ""
        parts.append(f"KV cache {fit['kvTokens']} tokens{dtype}")
    if fit.get("tensor"):
        gpus = fit["tensor"]
        parts.append("1 GPU a replica" if gpus == 1 else f"{gpus} GPUs a replica")
    return ", ".join(parts)


def _startup(startup: Mapping[str, Any]) -> str:
    told = [(name.removesuffix("Seconds"), startup.get(name)) for name in _STARTUP]
    return ", ".join(f"{name} {seconds} s" for name, seconds in told if seconds is not None)


def _conditions(conditions: tuple[ConditionView, ...]) -> Table:
    table = Table.grid(padding=(0, 2))
    for condition in conditions:
        mark, style = _MARKS[condition.good]
        table.add_row(
            Text(mark, style),
            _text((condition.type, "")),
            _text((condition.reason, "" if condition.good else style)),
            _text((condition.message, "dim")),
        )
    return table


def _pod(pod: PodView, now: datetime) -> Text:
    works = pod.ready or pod.state == "Succeeded"
    mark, style = _MARKS[True if works else None if pod.why is None else False]
    restarts = f"  {pod.restarts} restarts" if pod.restarts else ""
    return _text(
        (f"{mark} ", style),
        (f"{pod.namespace}/{pod.name}" if pod.component == labels.ROUTER else pod.name, ""),
        (f"  {pod.component}  {pod.state}", style),
        (f"  on {pod.node}" if pod.node else "", "dim"),
        (restarts, "yellow"),
        (f"  {_age(pod.created, now)}", "dim"),
    )


def _age(created: str, now: datetime) -> str:
    try:
        since = now - datetime.fromisoformat(created)
    except (ValueError, TypeError):
        return ""
    return _duration(int(since.total_seconds()))


def _duration(seconds: int) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{max(0, seconds)} s"


def _text(*parts: tuple[str, str]) -> Text:
    """Styled parts; what the cluster says must not drive the terminal."""
    return Text.assemble(*((printable(text), style) for text, style in parts))
