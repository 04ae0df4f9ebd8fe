from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.llama_config import LLAMA_8B
from typer.testing import CliRunner, Result

from kvasir.cli.plan import app

MANIFESTS = Path(__file__).parents[4] / "manifests"
API = MANIFESTS.parent / "api"


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "model" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(LLAMA_8B))
    return str(path)


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


def plan_json(*arguments: str) -> Any:
    return json.loads(plan(*arguments, "--json").stdout)


def deployment(path: Path, model: str, spec: str = "") -> str:
    file = path / "it.yaml"
    file.write_text(
        "apiVersion: kvasir.dev/v1alpha1\nkind: LLMDeployment\nmetadata: {name: it}\n"
        f"spec:\n  model: {{uri: {model}}}\n{spec}"
    )
    return str(file)


def test_a_sample_on_a_gpu(config: str) -> None:
    result = plan("-f", str(MANIFESTS / "llama-8b.yaml"), "--config", config, "--gpu", "L40S")
    assert result.exit_code == 0
    assert "llama-8b: LlamaForCausalLM, 8.03 billion parameters, bfloat16" in result.stdout
    assert "l40s" in result.stdout
    assert "15.0 GiB" in result.stdout


def test_json_of_a_model_on_every_known_gpu(config: str) -> None:
    (found,) = plan_json("--model", str(Path(config).parent))
    assert found["parameters"] == 8_030_261_248
    assert found["fits"]
    options = {option["device"]: option for option in found["options"]}
    assert options["h100"]["tensorParallel"] == options["h100"]["suggestedTensorParallel"] == 1
    assert options["l4"]["suggestedTensorParallel"] == 2
    assert options["h100"]["longestContext"] == 131072
    assert options["h100"]["kvBytesPerToken"] == 131072


def test_overrides_of_the_config_count(config: str, tmp_path: Path) -> None:
    given = json.dumps({"num_hidden_layers": 1, "max_position_embeddings": 512})
    (found,) = plan_json("--model", str(Path(config).parent), "--hf-overrides", given)
    engine = f"  engine: {{args: [--hf-overrides, '{given}']}}\n"
    file = deployment(tmp_path, "hf://a/b", engine)
    (stated,) = plan_json("-f", file, "--config", config, "--gpu", "h100")
    for each in (found, stated):
        assert each["parameters"] < 1_300_000_000
        assert each["options"][-1]["longestContext"] == 512


def test_the_format_of_the_weights_is_told(config: str, tmp_path: Path) -> None:
    def weights(*arguments: str) -> int:
        return int(plan_json(*arguments)[0]["options"][-1]["weightBytes"])

    asked = ("--model", config, "--gpu", "h100", "--quantization", "fp8")
    assert "bfloat16, fp8 (a scale a channel, made at load), context" in plan(*asked).stdout
    (found,) = plan_json(*asked)
    assert found["quantization"] == "fp8"
    assert weights(*asked) < 0.6 * weights(*asked[:4])
    file = deployment(tmp_path, "hf://a/b, quantization: fp8")
    assert weights("-f", file, "--config", config, "--gpu", "h100") == weights(*asked)


def test_a_kv_cache_in_fp8(config: str, tmp_path: Path) -> None:
    asked = ("--model", config, "--gpu", "h100", "--kv-cache-dtype", "fp8")
    (option,) = plan_json(*asked)[0]["options"]
    (plain,) = plan_json(*asked[:4])[0]["options"]
    assert (plain["kvCacheDtype"], option["kvCacheDtype"]) == ("bfloat16", "fp8")
    assert option["kvBytesPerToken"] * 2 == plain["kvBytesPerToken"]
    header, row = plan(*asked).stdout.splitlines()[1:3]
    assert "KV type" in header
    assert " fp8 " in row
    file = deployment(tmp_path, "hf://a/b", "  engine: {kvCacheDtype: fp8}\n")
    (stated,) = plan_json("-f", file, "--config", config, "--gpu", "h100")[0]["options"]
    assert stated == option
    refused = plan("--model", config, "--kv-cache-dtype", "int8")
    assert refused.exit_code == 2


def test_what_does_not_fit_ends_with_1_and_the_remedy(config: str) -> None:
    result = plan("--model", config, "--gpu", "t4", "--tensor-parallel-size", "1")
    assert result.exit_code == 1
    assert "are needed of 13.5 GiB on each device; use 4 GPUs with" in result.stdout
    result = plan("--model", config, "--gpu-memory", "24GiB", "--max-model-len", "200000")
    assert result.exit_code == 1
    assert "200000 tokens are more than the model's own 131072; lower" in result.stdout
    result = plan("--model", config, "--gpu", "h100", "--tensor-parallel-size", "3")
    assert result.exit_code == 1
    assert "tensor parallel size 3 does not divide the 32 attention heads" in result.stdout


def test_a_deployment_that_asks_for_too_long_a_context(config: str, tmp_path: Path) -> None:
    spec = (
        "  resources: {limits: {nvidia.com/gpu: 1}}\n"
        "  engine: {config: {maxModelLen: 100000, gpuMemoryUtilization: 0.95}}\n"
    )
    file = deployment(tmp_path, str(Path(config).parent), spec)
    (found,) = plan_json("-f", file, "--gpu", "l4")
    (option,) = found["options"]
    assert option["problem"].endswith(
        f"the KV cache holds a sequence of {option['longestContext']} tokens, not of 100000;"
        " use 2 GPUs with parallelism.tensor 2"
    )


def test_of_another_engine_it_is_said_whose_memory_is_counted(config: str, tmp_path: Path) -> None:
    vllm = deployment(tmp_path, str(Path(config).parent), "  engine: {type: vllm}\n")
    result = plan("-f", vllm, "--gpu", "h100", "--json")
    assert json.loads(result.stdout)[0]["fits"]
    assert "it: an estimate by the memory that Kvasir's engine needs, not vllm's" in result.stderr
    custom = deployment(tmp_path, "hf://a/b", "  engine: {type: custom, image: x}\n")
    refused = plan("-f", custom)
    assert refused.exit_code == 2
    assert "it: spec.engine.type custom: the memory that it needs is not known" in refused.stderr


def test_a_deployment_without_a_gpu_runs_on_the_cpu(config: str, tmp_path: Path) -> None:
    (found,) = plan_json("-f", deployment(tmp_path, str(Path(config).parent)))
    (option,) = found["options"]
    assert option["device"] == "cpu"
    assert option["weightBytes"] == 4 * 8_030_261_248
    assert option["kvBytes"] == 2**30


@pytest.mark.slow
def test_a_profile_is_the_clusters(config: str, tmp_path: Path) -> None:
    file = deployment(tmp_path, "./model", "  profile: h100\n")
    result = plan("-f", file, "--config", config)
    assert result.exit_code == 2
    assert "spec.profile h100 is of an LLMDeploymentClass" in result.output
    assert "say with --gpu what GPUs it is for" in result.output
    assert plan_json("-f", file, "--config", config, "--gpu", "h100")


def test_a_config_in_the_hugging_face_cache(kvasir: Any, tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--org--name"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    (snapshot / "config.json").write_text(json.dumps(LLAMA_8B))
    done = kvasir("plan", "--model", "hf://org/name", "--gpu", "h100", "--json")
    assert json.loads(done.stdout)[0]["parameters"] == 8_030_261_248
    done = kvasir("plan", "--model", "org/other", "--gpu", "h100")
    assert done.returncode == 2
    assert done.stderr == (
        "kvasir: the config of hf://org/other is not on this machine; download its config.json and"
        " pass it with --config\n"
    )


@pytest.mark.slow
def test_the_model_that_comes_with_the_engine(kvasir: Any, tmp_path: Path) -> None:
    assets = tmp_path / "kvasir_engine" / "assets" / "tiny"
    assets.mkdir(parents=True)
    (tmp_path / "kvasir_engine" / "__init__.py").write_text("raise ImportError('it is not needed')")
    (assets / "config.json").write_text(json.dumps({**LLAMA_8B, "num_hidden_layers": 1}))
    done = kvasir(
        "plan", "-f", str(MANIFESTS / "tiny.yaml"), "--json", PYTHONPATH=f"{tmp_path}:{API}"
    )
    (found,) = json.loads(done.stdout)
    assert (found["name"], found["replicas"], found["fits"]) == ("kvasir-tiny", 2, True)
    done = kvasir("plan", "--model", "builtin://other")
    assert "builtin://other is not installed; the model that comes with Kvasir is" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give either -f FILE or --model MODEL"),
        (["-f", "a", "--model", "b"], "give either -f FILE or --model MODEL"),
        (["-f", "a", "--dtype", "float32"], "with -f the file says how the model is run"),
        (["-f", "absent.yaml"], "absent.yaml does not exist"),
        (["-f", str(MANIFESTS / "two-models.yaml"), "--config", "c"], "--config is of one model"),
        (["--model", "/absent"], "/absent does not exist; name a Hugging Face model directory"),
        (["--model", "s3://b/k"], "the config of s3://b/k is not on this machine"),
        (["--model", "x://y"], "scheme 'x' is not one of"),
        (["--model", "m", "--hf-overrides", "["], "--hf-overrides takes a JSON object"),
        (["-f", "a", "--hf-overrides", "{}"], "with -f the file says how the model is run"),
        (["-f", "a", "--kv-cache-dtype", "fp8"], "with -f the file says how the model is run"),
        (["-f", "a", "--quantization", "fp8"], "with -f the file says how the model is run"),
        (["--model", "m", "--gpu", "h10"], "GPU 'h10' is not known: did you mean h100?"),
        (["--model", "m", "--gpu-memory", "big"], "--gpu-memory: 'big' is not an amount"),
    ],
)
def test_bad_usage(arguments: list[str], sentence: str) -> None:
    result = plan(*arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stdout == ""


def test_no_gpu_to_plan_for(config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    spec = "  resources: {limits: {nvidia.com/gpu: 1}}\n"
    result = plan("-f", deployment(tmp_path, str(Path(config).parent), spec))
    assert result.exit_code == 2
    assert "this machine has no GPU; say for which to plan with --gpu NAME" in result.stderr
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 81559, 9.0'\n")
    tool.chmod(0o755)
    (found,) = plan_json("-f", str(tmp_path / "it.yaml"))
    assert found["options"][0]["device"] == "NVIDIA H100 80GB HBM3"
    assert found["options"][0]["memoryBytes"] == 81559 * 2**20
