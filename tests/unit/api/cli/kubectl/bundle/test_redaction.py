"""Secrets, keys and prompts that stand where they should not are left out; the rest stays."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.cli.kubectl.bundle.redaction import (
    REDACTED,
    is_secret_name,
    redact_log,
    redact_object,
    redact_secrets,
)

PLANTED = "pl4nted-V4lue"
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{PLANTED}\nabc\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {PLANTED}",
        f"curl -H 'authorization: basic {PLANTED}'",
        f"https://user:{PLANTED}@example.com/x",
        f"https://{PLANTED}@example.com/x",
        f"GET /m?X-Amz-Signature={PLANTED}&x=1",
        f"GET /m?access_token={PLANTED}",
        f"password={PLANTED}",
        f'{{"apiKey": "{PLANTED}", "x": 1}}',
        f"HF_TOKEN={PLANTED}",
        f"AWS_SECRET_ACCESS_KEY: '{PLANTED}'",
        f"kvasir serve --api-key {PLANTED} --port 1",
        f"--some-token={PLANTED}",
        PEM,
        f"x -----BEGIN PRIVATE KEY-----\n{PLANTED} and no end",
    ],
)
def test_secrets_in_texts(text: str) -> None:
    assert PLANTED not in redact_secrets(text)
    assert PLANTED not in redact_log(text)


@pytest.mark.parametrize(
    "key",
    [
        "hf_AbCdEfGhIjKlMnOp",
        "sk-proj-abcdefgh12345678",
        "kv-Zm9vYmFyYmF6cXV4Zm9vYmFy",
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_abcdefghijklmnop1234",
        "github_pat_11ABCDEFG0abcdefghij",
        "glpat-abcdefghijkl",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
    ],
)
def test_keys_that_are_known_by_their_form(key: str) -> None:
    for text in (f"said {key}.", f"[{key}]", json.dumps({"event": f"got {key}"})):
        assert key not in redact_log(text)
        assert REDACTED in redact_log(text)


@pytest.mark.parametrize(
    "line",
    [
        f"INFO Received request cmpl-1: prompt: '{PLANTED} and more', params: SamplingParams(n=1)",
        f"body={{'messages': [{{'role': 'user', 'content': '{PLANTED}'}}]}}",
        f"pydantic: Input should be a string [type=string_type, input_value='{PLANTED}']",
        json.dumps({"event": "request", "prompt": PLANTED, "level": "info"}),
        json.dumps({"event": "r", "request": {"messages": [{"content": PLANTED}]}}),
        json.dumps({"event": f"failed on prompt: {PLANTED}"}),
        json.dumps({"event": "x", "api_key": PLANTED}),
        '{"event": "cut", "prompt": "' + PLANTED + "x" * 9000,
    ],
)
def test_prompts_in_logs(line: str) -> None:
    assert PLANTED not in redact_log(f"before\n{line}\nafter")
    assert redact_log(f"before\n{line}\nafter").splitlines()[::2] == ["before", "after"]


@pytest.mark.parametrize(
    "line",
    [
        "INFO: Avg prompt throughput: 12.0 tokens/s, Running: 3 reqs, GPU KV cache usage: 4.2%",
        '{"event": "ready", "kv_tokens": 210000, "max_tokens": 16}',
        "kvasir serve: no CUDA device is visible; use --device cpu",
        "Pod m-1 cannot be scheduled: 0/2 nodes are available: Insufficient nvidia.com/gpu",
        'kvasir_prompt_tokens_total{model="m"} 5.0',
        "",
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    assert redact_log(line) == line


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        *((name, True) for name in ("password", "apiKey", "api_key", "--api-key", "hfToken")),
        *((name, True) for name in ("AWS_SECRET_ACCESS_KEY", "privateKey", "clientSecret")),
        *((name, False) for name in ("secretName", "tokenizer", "maxTokens", "secretRef", "key")),
        *((name, False) for name in ("keyId", "--fleet-secret-file", "imagePullSecrets", "")),
    ],
)
def test_names_of_secrets(name: str, is_secret: bool) -> None:
    assert is_secret_name(name) is is_secret


def test_objects() -> None:
    last = "kubectl.kubernetes.io/last-applied-configuration"
    pod: dict[str, Any] = {
        "kind": "Pod",
        "metadata": {
            "name": "m-1",
            "managedFields": [{"manager": PLANTED}],
            "annotations": {last: PLANTED, "note": f"token={PLANTED}", "plain": "stays"},
        },
        "spec": {
            "containers": [
                {
                    "name": "engine",
                    "args": ["serve", "--api-key", PLANTED, f"--token={PLANTED}", "--port", "1"],
                    "command": [f"HF_TOKEN={PLANTED}"],
                    "env": [
                        {"name": "INNOCENT", "value": PLANTED},
                        {"name": "HF_HOME", "value": "/models"},
                        {"name": "T", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "t"}}},
                    ],
                    "readinessProbe": {
                        "httpGet": {"httpHeaders": [{"name": "X", "value": PLANTED}]}
                    },
                }
            ],
            "imagePullSecrets": [{"name": "pull"}],
            "tokenizer": "Qwen/Qwen3-8B",
            "external": {"urls": [{"url": f"https://u:{PLANTED}@x/v1", "password": PLANTED}]},
        },
    }
    told = redact_object(pod)
    assert PLANTED not in json.dumps(told)
    [container] = told["spec"]["containers"]
    assert container["args"] == [
        "serve",
        "--api-key",
        REDACTED,
        f"--token={REDACTED}",
        "--port",
        "1",
    ]
    assert container["env"][1:] == pod["spec"]["containers"][0]["env"][1:]
    assert told["metadata"]["annotations"]["plain"] == "stays"
    assert told["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert told["spec"]["tokenizer"] == "Qwen/Qwen3-8B"


def test_a_secret_that_gets_in_has_no_data() -> None:
    secret = {"kind": "Secret", "data": {"a": PLANTED}, "stringData": {"b": PLANTED}}
    assert PLANTED not in json.dumps(redact_object(secret))


@given(st.text(max_size=200))
def test_any_text_keeps_its_lines(text: str) -> None:
    """And what is redacted twice is as redacted once, so nothing hides behind a replacement."""
    once = redact_log(text)
    assert redact_log(once) == once


def test_hostile_lines_are_redacted_in_linear_time() -> None:
    """Patterns that go back over the line would not end within the test's timeout."""
    assert redact_secrets("a-" * 20_000) == "a-" * 20_000
    assert len(redact_log("token" * 20_000)) < 10_000
