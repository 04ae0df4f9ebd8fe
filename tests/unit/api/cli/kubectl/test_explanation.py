"""Reasons walked down: condition, workload, pod, container, the last line of its log."""

from __future__ import annotations

from typing import Any

import pytest
from support import recorded_model as made

from kvasir.cli.kubectl.cluster_session import ClusterSession
from kvasir.cli.kubectl.explanation import (
    container_story,
    explain_model,
    last_line,
    last_warning,
)

LOG = "/api/v1/namespaces/ml/pods/qwen-a/log?engine"


async def test_a_crash_is_told_down_to_the_last_line_of_the_run_before(
    session: ClusterSession, recorded: Any
) -> None:
    recorded.texts = {
        f"{LOG}?previous": "loading\nkvasir serve: no CUDA device is visible\x1b[2J\n\n",
        LOG: "loading\n",
    }
    found = await explain_model(session, "chat")
    assert not found.ready
    assert found.paragraph == (
        "qwen in namespace ml is not ready: its condition WorkloadReady is False, Crashing: 0 of 2"
        " engines are up."
        " Its deployment/qwen has 0 of 2 replicas ready."
        " Its pod qwen-a on node n1 is CrashLoopBackOff: Error, exit code 2: boom."
        " Its container engine waits (CrashLoopBackOff); it ended with Error, exit code 2, and was"
        " restarted 4 times."
        " The last line of its log: kvasir serve: no CUDA device is visible."
        " To do: Mend what the last lines of `kubectl kvasir logs qwen --previous` tell;"
        " docs/troubleshooting.md explains the engine's messages."
    )


async def test_a_log_that_may_not_be_read_is_left_out(session: ClusterSession) -> None:
    found = await explain_model(session, "qwen")
    assert found.log_line is None
    assert "restarted 4 times" in found.paragraph


async def test_a_ready_model_is_said_to_be(session: ClusterSession, recorded: Any) -> None:
    ready = made.condition("Ready", "True", "Serving", "2 of 2 serve.")
    recorded.objects["llmdeployments"] = [made.resource(ready)]
    found = await explain_model(session, "qwen")
    assert found.ready
    assert found.paragraph == "qwen in namespace ml is ready: Serving: 2 of 2 serve."


async def test_one_that_no_operator_has_seen(session: ClusterSession, recorded: Any) -> None:
    recorded.objects["llmdeployments"] = [made.resource() | {"status": {}}]
    found = await explain_model(session, "qwen")
    assert "not ready: no operator has looked at it" in found.paragraph


async def test_a_stale_status_and_a_workload_that_makes_no_pods(
    session: ClusterSession, recorded: Any
) -> None:
    quota = made.condition("Degraded", "True", "QuotaExceeded", "Pods cannot be made")
    old = made.resource(quota, observedGeneration=1)
    failure = made.condition("ReplicaFailure", "True", "FailedCreate", "exceeded quota: gpus")
    recorded.objects |= {
        "llmdeployments": [old],
        "pods": [],
        "deployments": [made.workload(conditions=[failure])],
    }
    said = (await explain_model(session, "qwen")).paragraph
    assert "Degraded is True (of an older version of it;" in said
    assert "deployment/qwen has 0 of 2 replicas ready: exceeded quota: gpus." in said
    assert "To do: Raise the quota of the namespace" in said


async def test_a_pod_that_has_not_started_tells_its_last_warning(
    session: ClusterSession, recorded: Any
) -> None:
    creating = {"name": "engine", "state": {"waiting": {"reason": "ContainerCreating"}}}
    recorded.objects["pods"] = [
        made.pod("qwen-a", {"phase": "Pending", "containerStatuses": [creating]})
    ]
    assert "ContainerCreating" not in (await explain_model(session, "qwen")).paragraph
    creating["state"]["waiting"]["message"] = "waits for its volume"
    recorded.objects["events"] = [
        {"metadata": {"namespace": "ml"}, "reason": "Old", "lastTimestamp": "2026-01-01T00:00:00Z"},
        {
            "metadata": {"namespace": "ml"},
            "reason": "FailedMount",
            "message": "no such claim",
            "lastTimestamp": "2026-01-02T00:00:00Z",
        },
    ]
    said = (await explain_model(session, "qwen")).paragraph
    assert "The last warning about it: FailedMount: no such claim." in said


async def test_a_download_is_told_by_its_job(session: ClusterSession, recorded: Any) -> None:
    uncached = made.condition("ModelCached", "False", "DownloadFailed", "401")
    labels = {"kvasir.dev/deployment": "qwen", "kvasir.dev/component": "download"}
    job = {
        "metadata": {"namespace": "ml", "name": "qwen-dl", "labels": labels},
        "spec": {"backoffLimit": 0},
        "status": {"conditions": [made.condition("Failed", "True", "Backoff", "too many")]},
    }
    failed = made.pod(
        "qwen-dl-x",
        {
            "phase": "Failed",
            "containerStatuses": [
                {"name": "download", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
            ],
        },
        **labels,
    )
    failed["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "qwen-dl"}]
    recorded.objects |= {
        "llmdeployments": [made.resource(uncached)],
        "jobs": [job],
        "pods": [made.pod("qwen-a", made.crashing()), failed],
    }
    said = (await explain_model(session, "qwen")).paragraph
    assert "job/qwen-dl, which has not finished: too many." in said
    assert "Its pod qwen-dl-x on node n1 is Failed" in said
    assert "Its container download ended with Error, exit code 1." in said
    assert "qwen-a" not in said


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        ({"name": "e", "ready": True, "state": {"running": {}}}, None),
        ({"name": "e", "state": {"running": {}}}, "Its container e runs, and is not ready"),
        ({"name": "e", "state": {"terminated": {"exitCode": 0}}}, None),
        (
            {"name": "e", "state": {"waiting": {}}},
            "Its container e waits (no reason is told)",
        ),
        (
            {"name": "e", "restartCount": 1, "state": {"running": {}}},
            "Its container e runs, and is not ready, and was restarted once",
        ),
    ],
)
def test_containers(status: dict[str, Any], sentence: str | None) -> None:
    found = container_story({"status": {"containerStatuses": [status]}})
    assert (found and found.sentence) == sentence


def test_the_last_line_that_says_something() -> None:
    assert last_line("a\nb \n---\n\n") == "b"
    assert last_line("\n") is None
    assert len(last_line("x" * 1000) or "") < 420


def test_no_warning() -> None:
    assert last_warning([]) is None
