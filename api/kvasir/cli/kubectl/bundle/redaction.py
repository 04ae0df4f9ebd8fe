"""Redaction of secrets, keys and prompts in objects, logs and metrics.

It errs on the side of leaving out. Secrets are never read at all; this is for what stands where it
should not: values of variables, arguments, URLs, and texts that an engine logged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

REDACTED = "REDACTED"

_MAX_LINE = 8192
_DROPPED_FIELDS = ("managedFields",)
_DROPPED_ANNOTATIONS = ("kubectl.kubernetes.io/last-applied-configuration",)
_PLAIN_VARIABLES = re.compile(
    r"HF_HOME|HF_HUB_OFFLINE|TRITON_CACHE_DIR|CUDA_VISIBLE_DEVICES|OMP_NUM_THREADS|NCCL_\w+"
    r"|KVASIR_(?:LOG_LEVEL|LOG_FORMAT|CACHE|MODEL|SERVED_NAME|HOST|PORT|TENSOR_PARALLEL_SIZE)"
)
"""Variables whose values are no secrets; those of all others are left out."""

_WORDS = {
    *("password", "passwd", "passphrase", "secret", "token", "apikey", "credential", "credentials"),
    *("authorization", "cookie", "bearer"),
}
_PAIRS = {("api", "key"), ("private", "key"), ("access", "key"), ("session", "id")}
_REFERENCES = {"name", "ref", "file", "path", "type", "copy", "policy"}
"""Last words of names that say where a secret is, or of which kind, not what it is."""
_PROMPT_FIELDS = {
    *("prompt", "prompts", "prompt_token_ids", "prompt_text", "messages", "content", "text"),
    *("input", "inputs", "input_value", "input_text", "instructions", "completion", "completions"),
    *("output", "output_text", "generated_text", "body", "request_body", "arguments", "choices"),
}

_PEM = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|(?:sk|pk|rk)-[A-Za-z0-9_-]{8,}|kv-[A-Za-z0-9_-]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{12,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}"
    r"|xox[a-z]-[A-Za-z0-9-]{8,}|glpat-[A-Za-z0-9_-]{8,}|nvapi-[A-Za-z0-9_-]{8,}"
    r"|AIza[A-Za-z0-9_-]{16,}|eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?)"
)
"""Keys that are known by their form: of Hugging Face, OpenAI, Kvasir, AWS, GitHub, and so on."""
_SCHEME = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{4,}", re.IGNORECASE)
_USER = re.compile(r"://[^/\s@\"']+@")
_NAME = (
    r"[\w.-]{0,64}?(?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[_-]?key(?:[_-]?id)?"
    r"|private[_-]?key|authorization|cookie|credentials?|signature)"
)
_PARAMETER = re.compile(rf"([?&]{_NAME}=)[^&\s\"']+", re.IGNORECASE)
_ASSIGNED = re.compile(
    rf"({_NAME}[\"']?\s*[:=]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;}})\]]+)", re.IGNORECASE
)
_FLAG = re.compile(rf"(--{_NAME}(?:\s+|=))(?!-)(\S+)", re.IGNORECASE)
_PROMPT = re.compile(
    rf"(\b(?:{'|'.join(sorted(_PROMPT_FIELDS, key=len, reverse=True))})[\"']?\s*[:=]\s*).+$",
    re.IGNORECASE,
)
_CAMEL = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


def redact_object(value: Any) -> Any:
    """Return a Kubernetes object, or a part of it, without what may be secret."""
    if isinstance(value, Mapping):
        if value.get("kind") == "Secret":
            value = {
                **value,
                **{part: REDACTED for part in ("data", "stringData") if part in value},
            }
        if isinstance(value.get("name"), str) and isinstance(value.get("value"), str):
            value = {**value, "value": _variable(value["name"], value["value"])}
        return {
            name: _field(name, each) for name, each in value.items() if name not in _DROPPED_FIELDS
        }
    if isinstance(value, (list, tuple)):
        return [redact_object(each) for each in value]
    return redact_secrets(value) if isinstance(value, str) else value


def _field(name: str, value: Any) -> Any:
    if name in ("args", "command") and isinstance(value, (list, tuple)):
        return _arguments(list(value))
    if name == "annotations" and isinstance(value, Mapping):
        value = {key: each for key, each in value.items() if key not in _DROPPED_ANNOTATIONS}
    if isinstance(value, str) and is_secret_name(name):
        return REDACTED
    return redact_object(value)


def _variable(name: str, value: str) -> str:
    """Return the value of a variable or a header, where it is known to be none that is secret."""
    return redact_secrets(value) if _PLAIN_VARIABLES.fullmatch(name) else REDACTED


def _arguments(words: list[Any]) -> list[Any]:
    """Return a command line without the values of flags that name something secret."""
    kept: list[Any] = []
    after_secret = False
    for word in words:
        if not isinstance(word, str):
            kept.append(redact_object(word))
            continue
        flag, equals, _ = word.partition("=")
        if after_secret and not word.startswith("-"):
            kept.append(REDACTED)
        elif flag.startswith("-") and equals and is_secret_name(flag):
            kept.append(f"{flag}={REDACTED}")
        else:
            kept.append(redact_secrets(word))
        after_secret = flag.startswith("-") and not equals and is_secret_name(flag)
    return kept


def is_secret_name(name: str) -> bool:
    """Tell if a field or flag of this name has a secret as its value; not one that names where the
    secret is, such as secretName."""
    words = [word.lower() for word in _CAMEL.findall(name)]
    if not words or words[-1] in _REFERENCES:
        return False
    pairs = set(pairwise(words))
    return bool(_WORDS.intersection(words) or _PAIRS & pairs)


def redact_secrets(text: str) -> str:
    """Return `text` without keys, passwords and tokens."""
    text = _PEM.sub(REDACTED, text)
    text = _SHAPES.sub(REDACTED, text)
    text = _SCHEME.sub(rf"\1 {REDACTED}", text)
    text = _USER.sub(f"://{REDACTED}@", text)
    text = _PARAMETER.sub(rf"\1{REDACTED}", text)
    text = _FLAG.sub(rf"\1{REDACTED}", text)
    return _ASSIGNED.sub(rf"\1{REDACTED}", text)


def redact_log(text: str) -> str:
    """Return a log without secrets and without what clients wrote or were answered."""
    return "\n".join(map(_log_line, _PEM.sub(REDACTED, text).split("\n")))


def _log_line(line: str) -> str:
    if len(line) > _MAX_LINE:
        return f"{_log_line(line[:_MAX_LINE])} ... (a line of {len(line)} characters)"
    if line.lstrip().startswith("{"):
        try:
            return json.dumps(_log_value(json.loads(line)), ensure_ascii=False)
        except ValueError:
            pass  # not JSON, or cut
    return _text(line)


def _log_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _log_field(name, each) for name, each in value.items()}
    if isinstance(value, list):
        return [_log_value(each) for each in value]
    return _text(value) if isinstance(value, str) else value


def _log_field(name: str, value: Any) -> Any:
    hidden = name.lower() in _PROMPT_FIELDS or (isinstance(value, str) and is_secret_name(name))
    return REDACTED if hidden and value is not None else _log_value(value)


def _text(line: str) -> str:
    return redact_secrets(_PROMPT.sub(rf"\1{REDACTED}", line))
