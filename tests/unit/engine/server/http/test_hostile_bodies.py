"""Whatever a body holds, the answer is one of the protocol's and the next request is served."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvasir_engine.server.openai.schema import ChatBody, CompletionBody

GOOD: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v2/models/tiny/infer": {
        "inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["hi"]}],
        "parameters": {"max_tokens": 2},
    },
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [104]},
}
NAMES = sorted({*CompletionBody.__struct_fields__, *ChatBody.__struct_fields__})
numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, 1, -1, 257, 258, 2**31, 2**63 - 1, 2**63, 2**64, 10**400]),
    st.floats(allow_nan=False, allow_infinity=False),
)
scalars = st.one_of(
    st.none(), st.booleans(), numbers, st.text(max_size=8), st.sampled_from(["user", "<s>", "\x00"])
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from([*NAMES, "role", "content", "type", "text", ""]), inner),
    ),
    max_leaves=8,
)


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, bytes]:
    """A good body with some fields of any kind, or with bytes changed."""
    path = draw(st.sampled_from(sorted(GOOD)))
    body = {**GOOD[path], **draw(st.dictionaries(st.sampled_from(NAMES), values, max_size=3))}
    if draw(st.booleans()):
        name = draw(st.sampled_from(sorted(GOOD[path])))
        body[name] = draw(values)
    # A stream's error may come behind its head.
    body.pop("stream", None)
    raw = json.dumps(body).encode()
    if draw(st.integers(0, 4)) == 0:
        at = draw(st.integers(0, len(raw)))
        raw = raw[:at] + draw(st.binary(max_size=3)) + raw[at + draw(st.integers(0, 3)) :]
    return path, raw


def check_error(path: str, answer: httpx.Response) -> None:
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text)
    body = answer.json()
    if path.startswith("/v2/"):
        assert body["error"].strip()
    else:
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert body["error"]["message"].strip()
        assert body["error"]["type"] in ("invalid_request_error", "not_found_error")


@pytest.mark.slow
@pytest.mark.timeout(900)  # of a deep search
@settings(
    max_examples=settings.default.max_examples,
    suppress_health_check=list(HealthCheck),  # the server is the same for every example
)
@given(mutated())
async def test_no_body_is_answered_with_a_server_error(
    server: Any, drawn: tuple[str, bytes]
) -> None:
    path, raw = drawn
    answer = await server.post(path, content=raw)
    if answer.status_code != 200:
        check_error(path, answer)
    assert (await server.post(path, GOOD[path])).status_code == 200
