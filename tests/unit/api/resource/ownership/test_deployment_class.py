from __future__ import annotations

from typing import Any

import pytest

from kvasir.resource.ownership.deployment_class import (
    DeploymentClass,
    class_manifest,
    class_of,
    default_class,
    held_by,
    read_class,
    reporting_class,
    unserved,
)

OLD = DeploymentClass("2026-01-01T00:00:00Z", "old", True, ())
NEW = DeploymentClass("2026-01-02T00:00:00Z", "new", True, ())
TEAM = DeploymentClass("2026-01-03T00:00:00Z", "team", True, ("a", "b"))
QUIET = DeploymentClass("2025-01-01T00:00:00Z", "quiet", False, ())


def resource(named: str = "", taken: str = "", namespace: str = "n") -> dict[str, Any]:
    return {
        "metadata": {"name": "m", "namespace": namespace},
        "spec": {"className": named} if named else {},
        **({"status": {"className": taken}} if taken else {}),
    }


@pytest.mark.parametrize(
    ("it", "expected"),
    [
        (resource(), "old"),
        (resource(namespace="a"), "team"),
        (resource("new"), "new"),
        (resource("gone"), "gone"),
        # What was taken stays where it is when another class becomes the default
        (resource(taken="new"), "new"),
        (resource(taken="quiet"), "quiet"),
        (resource(taken="new", namespace="a"), "new"),
        # ... but not with a class that is gone
        (resource(taken="gone"), "old"),
        (resource(taken="zero"), "old"),
        (resource("new", taken="old"), "new"),
    ],
)
def test_which_class_serves(it: dict[str, Any], expected: str) -> None:
    for classes in ([OLD, NEW, TEAM, QUIET], [QUIET, TEAM, NEW, OLD]):
        assert class_of(it, classes) == expected


def test_without_a_default_nobody_serves() -> None:
    assert class_of(resource(), [QUIET]) == ""
    assert default_class("z", [TEAM]) == ""
    assert default_class("b", [TEAM]) == "team"


def test_a_class_reads_as_it_was_written() -> None:
    made = class_manifest("k", "kvasir.dev/ns/lease", ("b", "a"), is_default=True)
    assert read_class(made) == DeploymentClass("", "k", True, ("a", "b"))
    assert made["spec"]["controller"] == "kvasir.dev/ns/lease"
    off = class_manifest("k", "kvasir.dev/ns/lease", (), is_default=False)
    assert read_class(off) == DeploymentClass("", "k", False, ())


def test_only_the_word_true_makes_a_class_the_default() -> None:
    made = class_manifest("k", "kvasir.dev/ns/lease", (), is_default=True)
    [key] = made["metadata"]["annotations"]
    for value in ("false", "yes", "True", ""):
        made["metadata"]["annotations"][key] = value
        assert not read_class(made).is_default


def test_who_has_taken_it() -> None:
    assert held_by(resource(taken="x")) == "x"
    assert held_by(resource("x")) == ""


@pytest.mark.parametrize(
    ("it", "classes", "told"),
    [
        (resource(), [OLD], None),
        (resource("quiet"), [OLD, QUIET], None),
        (resource(taken="new"), [OLD, NEW], None),
        (resource(taken="gone"), [OLD], None),
        (resource(), [], "No LLMDeploymentClass is the default of namespace n; install a release."),
        (
            resource(),
            [QUIET, TEAM],
            "No LLMDeploymentClass is the default of namespace n; set spec.className to quiet.",
        ),
        (
            resource("gone", taken="gone"),
            [OLD, NEW, TEAM],
            "spec.className is gone, and no such LLMDeploymentClass exists; set spec.className to"
            " new or old, or install the release that serves it.",
        ),
        (
            resource("team"),
            [OLD, TEAM],
            "LLMDeploymentClass team is not for namespace n, only for a, b; set spec.className to"
            " old.",
        ),
    ],
)
def test_why_nobody_serves_it(
    it: dict[str, Any], classes: list[DeploymentClass], told: str | None
) -> None:
    assert unserved(it, classes) == told


@pytest.mark.parametrize(
    ("namespace", "classes", "expected"),
    [
        ("n", [NEW, OLD, QUIET], "old"),
        ("a", [NEW, OLD, TEAM], "team"),
        ("n", [QUIET, TEAM], "quiet"),
        ("n", [TEAM], ""),
        ("n", [], ""),
    ],
)
def test_who_tells_that_nobody_serves_it(
    namespace: str, classes: list[DeploymentClass], expected: str
) -> None:
    assert reporting_class(namespace, classes) == expected
