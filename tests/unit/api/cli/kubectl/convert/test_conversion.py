"""Documents that are converted, and those that are not; and the command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kvasir.cli.kubectl.convert.conversion import as_yaml, convert_text, convert_words
from kvasir.cli.kubectl.convert.draft import ConvertError, Source
from kvasir.resource.deployment_files import parse_documents

PLUGIN = Path(sys.executable).parent / "kubectl-kvasir"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "f holds nothing to convert; write an InferenceService"),
        ("- 1", "f: a document is no mapping"),
        ("kind: Pod\napiVersion: v1", "f: Pod of v1 cannot be converted"),
        ("a: 1", "f: it has no kind cannot be converted"),
        ("a: [", "f: line"),
        ("kind: Model\napiVersion: kubeai.org/v1\nspec: {url: a/b, env: 3}", "has a wrong type"),
    ],
)
def test_what_is_no_source(text: str, problem: str) -> None:
    with pytest.raises(ConvertError, match=problem):
        convert_text(text, "f", "vllm")


def test_what_is_written_is_read_again() -> None:
    drafts = [convert_words(["vllm", "serve", f"a/{name}"], "kvasir") for name in "bc"]
    assert [each.name for each in parse_documents(as_yaml(drafts), "made")] == ["b", "c"]


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", min_size=1), inner),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "url",
                "args",
                "env",
                "minReplicas",
                "maxReplicas",
                "resourceProfile",
                "loadBalancing",
                "files",
            ]
        ),
        _VALUES,
    )
)
def test_any_fields_give_a_valid_resource_or_a_sentence(spec: dict[str, object]) -> None:
    document = {
        "apiVersion": "kubeai.org/v1",
        "kind": "Model",
        "metadata": {"name": "m"},
        "spec": {"url": "hf://a/b", **spec},
    }
    try:
        drafts = convert_text(yaml.safe_dump(document), "f", "vllm")
    except ConvertError:
        return
    assert parse_documents(as_yaml(drafts), "made")


def test_what_is_not_taken_is_left() -> None:
    source = Source({"a": {"b": 1, "c": {}, "d": [0]}, "e": "", "f": False, "g": 0}, "x")
    assert source.take("a", "b") == 1
    assert list(source.rest()) == ["x.a.d"]


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PLUGIN, "convert", *arguments], input=stdin, capture_output=True, text=True, timeout=60
        )

    done = run("--strict", "--", "vllm", "serve", "a/b", "--api-key", "k")
    assert done.returncode == 1
    assert yaml.safe_load(done.stdout)["metadata"]["name"] == "b"
    lost, note = done.stderr.splitlines()
    assert lost.startswith("b: not converted: --api-key: routers bring no key")
    assert note.startswith("b: no image of vLLM is given")
    values = "servingEngineSpec: {modelSpec: [{name: m, modelURL: a/b, requestGPU: 1}]}"
    assert yaml.safe_load(run("-f", "-", stdin=values).stdout)["metadata"]["name"] == "m"
    for arguments, said in (
        ([], "give either -f FILE or a command line"),
        (["-f", str(tmp_path / "absent")], "cannot be read"),
    ):
        done = run(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
