from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kvasir.resource import DeploymentFileError, load_file, parse_documents
from kvasir.resource.deployment_files import MAX_FILE_BYTES

MANIFESTS = Path(__file__).parents[4] / "manifests"


def document(name: str = "a", spec: str = "", model: str = "{uri: builtin://kvasir-tiny}") -> str:
    return (
        "apiVersion: kvasir.dev/v1alpha1\nkind: LLMDeployment\n"
        f"metadata: {{name: {name}}}\nspec:\n  model: {model}\n{spec}\n"
    )


def problems(text: str) -> list[str]:
    with pytest.raises(DeploymentFileError) as error:
        parse_documents(text, "f.yaml")
    return error.value.problems


@pytest.mark.parametrize("path", sorted(MANIFESTS.glob("*.yaml")), ids=lambda p: p.name)
def test_the_samples_load(path: Path) -> None:
    assert load_file(path)


def test_several_documents_and_defaults() -> None:
    first, second = parse_documents(
        document("a") + "---\n---\n" + document("b", "  replicas: 0"), "f.yaml"
    )
    assert (first.name, first.served_names, first.spec.replicas) == ("a", ["a"], 1)
    assert (second.name, second.spec.replicas) == ("b", 0)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("  engine: {config: {maxModelLn: 1}}", "maxModelLn is not a known field; did you mean"),
        (
            "  resources: {limits: {disk: 1}}",
            "spec.resources.limits: 'disk' is no GPU: limits takes cpu, memory, ephemeral-storage",
        ),
        (
            "  engine: {config: {max_model_len: 1}}",
            "spec.engine.config.max_model_len is not a known field",
        ),
        (
            "  engine: {env: [{name: A, valu: x, value: y}]}",
            "spec.engine.env[0].valu is not a known field; did you mean value?",
        ),
        (
            "  replicas: 65",
            "spec.replicas must be less than or equal to 64, not 65",
        ),
        ("  replicas: '2'", "spec.replicas must be a valid integer, not '2'"),
        ("  replicas: true", "spec.replicas must be a valid integer, not True"),
        (
            "  engine: {config: {gpuMemoryUtilization: .nan}}",
            "gpuMemoryUtilization must be a finite number, not nan",
        ),
        (
            "  engine: {config: {dtype: int8}}",
            "dtype must be 'auto', 'float32', 'bfloat16' or 'float16', not 'int8'",
        ),
        (
            "  engine: {config: {kvCacheMemoryBytes: 3Zi}}",
            "kvCacheMemoryBytes: '3Zi' is not an amount of memory; write for example 80GiB",
        ),
        (
            "  engine: {args: [--port=1]}",
            "spec.engine: --port cannot be an extra argument: it is set by Kvasir",
        ),
        (
            "  engine: {args: [--max-num-seqs, '1']}",
            "--max-num-seqs cannot be an extra argument: use spec.engine.config.maxNumSeqs",
        ),
        (
            "  engine: {env: [{name: A, value: x}, {name: A, value: y}]}",
            "spec.engine: env names A more than once",
        ),
        (
            "  engine: {env: [{name: KVASIR_FLEET_SECRET, value: x}]}",
            "spec.engine.env[0]: KVASIR_FLEET_SECRET is set by Kvasir",
        ),
        ("  engine: [x]", "spec.engine must be a mapping, not ['x']"),
        (
            "  resources: {limits: {nvidia.com/gpu: 2}}",
            "ask for 2 GPUs (nvidia.com/gpu) but parallelism.tensor is 1; set both",
        ),
        ("  engine: {config: {device: cuda}}", "device cuda needs resources.limits nvidia.com/gpu"),
        (
            "  engine: {config: {device: cpu}}\n  resources: {limits: {nvidia.com/gpu: 1}}",
            "engine.config.device cpu uses no GPU",
        ),
        (
            "  engine: {config: {device: sim}}\n  parallelism: {tensor: auto}",
            "parallelism.tensor auto is for device cuda; write a number with sim",
        ),
        ("  engine: {kvCacheDtype: int8}", "spec.engine.kvCacheDtype"),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_remedy(spec: str, sentence: str) -> None:
    (problem,) = problems(document(spec=spec))
    assert problem.startswith("f.yaml: document 1: spec")
    assert sentence in problem
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("{uri: gs://bucket/k}", "scheme 'gs' is not one of hf://"),
        ("{uri: 'http://host/x'}", "http:// cannot be served; use one of hf://, s3://"),
        ("{uri: pvc://c/d, secretRef: {name: x}}", "secretRef is for downloads"),
        ("{uri: builtin://kvasir-tiny, revision: x}", "revision has a meaning only with hf://"),
        ("{uri: hf://a/b@x, revision: y}", "revision 'y' and the uri's 'x' differ; give one"),
        (
            "{uri: hf://a/b, secretRef: {name: x, nam: y}}",
            "spec.model.secretRef.nam is not a known field",
        ),
        ("{uri: hf://a/b, aliases: [c, c]}", "spec.model serves c more than once"),
        ("{uri: hf://a/b, aliases: [a]}", "spec.model serves a more than once"),
        ("{uri: hf://a/b, name: 'a b'}", "spec.model.name must match pattern"),
        ("{}", "spec: model.uri is missing or not alone"),
    ],
)
def test_a_wrong_model(model: str, sentence: str) -> None:
    (problem,) = problems(document(model=model))
    assert sentence in problem


def test_every_problem_of_every_document_is_told_at_once() -> None:
    found = problems(document("A", "  replicas: -1") + "---\nfoo\n---\nkind: Secret\n")
    assert [p.split(": ")[1] for p in found] == ["document 1"] * 2 + ["document 2"] + [
        "document 3"
    ] * 4
    assert "the document must be a mapping, not 'foo'" in found[2]


def test_names_are_unique_in_a_file() -> None:
    text = document("a", model="{uri: hf://x/y, name: m}") + "---\n" + document("a")
    assert problems(text) == [
        "f.yaml: document 2: metadata.name 'a' is already that of f.yaml: document 1; rename one"
    ]
    text = document("a", model="{uri: hf://x/y, aliases: [b]}") + "---\n" + document("b")
    (problem,) = problems(text)
    assert "document 2: model name 'b' is already served by f.yaml: document 1" in problem


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "f.yaml holds no document; write a LLMDeployment"),
        ("a: 1\na: 2", "line 2: key 'a' is given twice"),
        ("{a: {b: 1, b: 2}}", "key 'b' is given twice"),
        ("a: &x 1\nb: *x", "line 2: an alias"),
        ("1: 2", "line 1: a key must be a string"),
        ("[a]: 2", "line 1: a key must be a string"),
        ("a: [", "f.yaml: line 1: not valid YAML"),
        ("a: \x00", "not valid YAML"),
        ("a: !!python/object/apply:os.system [x]", "could not determine a constructor"),
        ("[" * 5000, "nested too deeply"),
        ("d: 2001-99-99", "a value is not valid YAML"),
        ("---\n{}\n" * 65, "more than 64 documents"),
    ],
)
def test_yaml_that_is_refused(text: str, sentence: str) -> None:
    (problem,) = problems(text)
    assert sentence in problem
    assert "\n" not in problem


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DeploymentFileError, match="does not exist; check the path given to -f"):
        load_file(tmp_path / "absent.yaml")
    with pytest.raises(DeploymentFileError, match="cannot be read: Is a directory"):
        load_file(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(DeploymentFileError, match="not a text file in UTF-8"):
        load_file(tmp_path / "binary")
    (tmp_path / "large").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(DeploymentFileError, match="is larger than"):
        load_file(tmp_path / "large")


FIELDS = [
    "apiVersion",
    "kind",
    "metadata",
    "spec",
    "name",
    "model",
    "uri",
    "aliases",
    "engine",
    "args",
    "env",
    "value",
    "config",
    "replicas",
    "resources",
    "limits",
    "nvidia.com/gpu",
    "parallelism",
    "tensor",
    "lifecycle",
    "drainSeconds",
    "device",
]
LEAVES = st.sampled_from(
    [None, True, 0, 1, -1, 0.5, "", "a", "hf://a/b", "kvasir.dev/v1alpha1", "LLMDeployment"]
)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4)
    ),
    max_leaves=12,
)


def _problems_or_none(text: str) -> list[str]:
    try:
        parse_documents(text, "f.yaml")
    except DeploymentFileError as error:
        return error.problems
    return []


@pytest.mark.slow
@given(TREES)
def test_any_tree_is_accepted_or_refused_in_sentences(tree: Any) -> None:
    for problem in _problems_or_none(yaml.safe_dump(tree)):
        assert problem.startswith("f.yaml")
        assert "\n" not in problem


@pytest.mark.slow
@given(st.text(max_size=60))
def test_any_text_is_accepted_or_refused_in_sentences(text: str) -> None:
    for problem in _problems_or_none(text):
        assert problem.startswith("f.yaml")
        assert "\n" not in problem
