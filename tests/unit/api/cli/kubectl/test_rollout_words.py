"""Words about a canary: when they have an effect, and what is said of what follows."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.cli.kubectl.cluster_session import ClusterError, ClusterSession
from kvasir.cli.kubectl.rollout_words import act, check, describe
from kvasir.resource.rollout.rollout_status import RolloutCommand


def canary(phase: str, step: int = 1, **more: Any) -> dict[str, Any]:
    return {"phase": phase, "id": f"rev.1.{step}", "step": step, "steps": 2, **more}


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("Starting", {"promote", "promote-all", "abort"}),
        ("Analysing", {"promote", "promote-all", "abort"}),
        ("Paused", {"promote", "promote-all", "abort"}),
        ("Promoting", set()),
        ("Promoted", set()),
        ("RolledBack", {"retry"}),
    ],
)
def test_words_that_have_an_effect(phase: str, words: set[str]) -> None:
    for command in RolloutCommand:
        if command.value in words:
            check("qwen", canary(phase), command)
        else:
            with pytest.raises(ClusterError, match=f"no effect on qwen: its canary is {phase}"):
                check("qwen", canary(phase), command)


def test_no_canary_is_told_with_the_way_to_one() -> None:
    with pytest.raises(ClusterError, match=r"qwen has no canary; spec\.rollout\.canary makes one"):
        check("qwen", {}, RolloutCommand.PROMOTE)


def test_a_verdict_is_told() -> None:
    with pytest.raises(ClusterError, match=r"RolledBack \(TTFTIncreased\), not Starting or"):
        check("q", canary("RolledBack", reason="TTFTIncreased"), RolloutCommand.ABORT)


async def test_the_annotation_names_the_step_and_nothing_is_waited_for(
    session: ClusterSession, recorded: Any
) -> None:
    [resource] = recorded.objects["llmdeployments"]
    resource["status"]["rollout"] = canary("Paused")
    resource["metadata"]["annotations"] = {"other": "stays"}
    said = await act(session, "chat", "promote", 0)
    assert said == "qwen: said promote rev.1.1"
    annotations = {"other": "stays", "kvasir.dev/rollout": "promote rev.1.1"}
    assert resource["metadata"]["annotations"] == annotations


async def test_an_operator_that_does_not_follow(session: ClusterSession, recorded: Any) -> None:
    [resource] = recorded.objects["llmdeployments"]
    resource["status"]["rollout"] = canary("Paused")
    with pytest.raises(
        ClusterError, match=r"has not followed in 0\.01 s; see kubectl kvasir status"
    ):
        await act(session, "qwen", "abort", 0.01)


def test_where_the_canary_is() -> None:
    assert describe(canary("Starting", 2)) == "the canary is Starting at step 2 of 2"
    assert describe({}) == "there is no canary any more"
