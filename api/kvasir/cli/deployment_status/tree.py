"""Deployments as trees in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from kvasir.cli.deployment_status.deployment_view import ConditionView, DeploymentView
from kvasir.cli.deployment_status.pod_view import PodView
from kvasir.cli.printable import printable
from kvasir.quantity import format_bytes

_PHASE_STYLES = {
    "Ready": "bold green",
    "Idle": "bold blue",
    "Degraded": "bold red",
    "Failed": "bold red",
    "Unknown": "bold red",
}
_MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("?", "yellow")}
_STARTUP = ("scheduleSeconds", "pullSeconds", "loadSeconds", "routeSeconds")


def make_tree(view: DeploymentView, now: datetime | None = None) -> Tree:
    """Return the tree of one deployment: why it is not ready, its conditions, its cache, its
    pods."""
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
    pods = tree.add(_text(("pods", "bold"), ("" if view.pods else "  none", "dim")))
    for pod in view.pods:
        branch = pods.add(_pod(pod, now or datetime.now(UTC)))
        if pod.why is not None:
            branch.add(_text((pod.why, "yellow")))
    return tree


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
    if view.cache:
        yield _text(("cache  ", "bold"), (_cache(view.cache), ""))
    for claim in view.claims:
        modes = ", ".join(claim.access_modes)
        size = f", {claim.capacity}" if claim.capacity else ""
        bound = "" if claim.phase == "Bound" else "yellow"
        yield _text(("volume ", "bold"), (f"{claim.name} {claim.phase}{size}, {modes}", bound))
    if view.fit:
        yield _text(("fit    ", "bold"), (_fit(view.fit), ""))
    if view.startup:
        yield _text(("start  ", "bold"), (_startup(view.startup), ""))


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
        (pod.name, ""),
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
