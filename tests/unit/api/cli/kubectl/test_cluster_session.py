"""What a cluster refuses is a sentence with the verb, the resource and a remedy."""

from __future__ import annotations

from typing import Any

import pytest
from support.recorded_cluster import RecordedCluster

from kvasir.cli.kubectl.cluster_options import ClusterChoice, print_data
from kvasir.cli.kubectl.cluster_session import (
    LLMDEPLOYMENTS,
    PODS,
    ClusterError,
    ClusterSession,
    NotAllowedError,
    explain,
)
from kvasir.kube import ApiError


async def test_a_model_is_found_by_name_and_by_alias(session: ClusterSession) -> None:
    for name in ("qwen", "chat"):
        assert (await session.deployment(name))["metadata"]["name"] == "qwen"


async def test_a_model_that_is_not_there_names_those_that_are(session: ClusterSession) -> None:
    with pytest.raises(ClusterError, match="no LLMDeployment 'gpt' in namespace ml; there is qwen"):
        await session.deployment("gpt")
    nowhere = ClusterSession(RecordedCluster(), "empty")
    with pytest.raises(ClusterError, match="in namespace empty; there is none"):
        await nowhere.deployment("gpt")


async def test_a_right_that_is_missing(session: ClusterSession, recorded: Any) -> None:
    recorded.forbidden = {"pods"}
    with pytest.raises(NotAllowedError, match='you may not list pods in namespace ml: User "u"'):
        await session.find(PODS)
    recorded.forbidden = {"llmdeployments"}
    with pytest.raises(NotAllowedError, match=r"list llmdeployments\.kvasir\.dev in namespace ml"):
        await session.deployments()


async def test_a_cluster_without_kvasir(session: ClusterSession, recorded: Any) -> None:
    recorded.absent = {"llmdeployments"}
    with pytest.raises(ClusterError, match=r"https://recorded has no llmdeployments.*helm install"):
        await session.deployments()


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "does not accept your credentials; log in again"),
        (0, "does not answer: it burns"),
        (500, "get llmdeployments.kvasir.dev in the cluster failed: it burns"),
    ],
)
def test_other_refusals(status: int, said: str, recorded: Any) -> None:
    error = explain(ApiError(status, "", "it burns"), recorded.access, "get", LLMDEPLOYMENTS, None)
    assert said in str(error)


def test_kubectl_is_given_the_same_cluster(tmp_path: Any) -> None:
    choice = ClusterChoice(tmp_path / "c", "ctx", "ns")
    assert choice.kubectl() == [f"--kubeconfig={tmp_path}/c", "--context=ctx"]
    assert choice.environ["KUBECONFIG"] == f"{tmp_path}/c"
    assert ClusterChoice().kubectl() == []


def test_data_is_printed_as_json_and_as_yaml(capsys: Any) -> None:
    print_data({"a": ("x", None)}, "yaml")
    assert capsys.readouterr().out == "a:\n- x\n- null\n"
    print_data([1], "json")
    assert capsys.readouterr().out == "[\n  1\n]\n"
