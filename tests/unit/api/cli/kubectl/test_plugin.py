"""The plugin itself: what it lists, how it ends, and what kubectl's completion gets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvasir.cli.kubectl.plugin_commands import PLUGIN_COMMANDS

pytestmark = pytest.mark.slow

Run = Callable[..., "subprocess.CompletedProcess[str]"]
BIN = Path(sys.executable).parent


@pytest.fixture
def plugin(tmp_path: Path) -> Run:
    """Run one of the plugin's programs, where there is no cluster."""

    def run(*arguments: str, program: str = "kubectl-kvasir") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / program, *arguments],
            env={**os.environ, "KUBECONFIG": str(tmp_path / "absent")},
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def test_help_lists_every_command_and_teaches(plugin: Run) -> None:
    done = plugin("--help")
    assert done.returncode == 0
    for info in PLUGIN_COMMANDS:
        assert f"  {info.name} " in done.stdout
    assert "kubectl kvasir status -A" in done.stdout
    assert "completion" not in done.stdout
    assert plugin().stdout.rstrip() == done.stdout.rstrip()


@pytest.mark.parametrize("name", [info.name for info in PLUGIN_COMMANDS])
def test_every_command_explains_itself(plugin: Run, name: str) -> None:
    done = plugin(name, "--help")
    assert done.returncode == 0, done.stderr
    assert f"Usage: kubectl kvasir {name} " in done.stdout
    assert f"  kubectl kvasir {name}" in done.stdout.partition("Example")[2]
    assert "--install-completion" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["statsu"], "No such command 'statsu'. Did you mean 'status'?"),
        (["why"], "Missing argument 'name'. (see kubectl kvasir why --help)"),
        (["status", "-o", "xml"], "'xml' is not one of 'json', 'yaml', 'wide'"),
        (["status", "-n", "a", "-A"], "give either --namespace or --all-namespaces"),
        (["why", "m"], "absent does not exist; set KUBECONFIG"),
    ],
)
def test_wrong_use_is_one_sentence_and_2(plugin: Run, arguments: list[str], sentence: str) -> None:
    done = plugin(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def complete(plugin: Run, *words: str) -> list[str]:
    return plugin(*words, program="kubectl_complete-kvasir").stdout.split()


def test_completion_speaks_kubectls_protocol(plugin: Run) -> None:
    names = [info.name for info in PLUGIN_COMMANDS]
    assert complete(plugin, "") == [*names, ":4"]
    assert complete(plugin, "w") == ["why", ":4"]
    assert {"--kubeconfig", "--output", ":4"} <= set(complete(plugin, "why", "--"))
    assert complete(plugin, "why", "--kubeconfig", "")[-1] == ":0"


def test_a_cluster_that_does_not_answer_completes_nothing(plugin: Run) -> None:
    assert complete(plugin, "why", "") == [":4"]
