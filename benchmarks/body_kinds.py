"""Bodies for event_loop.py: by kind, where they go, how many at once, and how one is made."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from kvasir.wire.proto.engine.v1 import engine_pb2 as pb

Kind = tuple[str, int, Callable[[], bytes]]
SMALL = 127 * 1024
"""Just below what body workers read."""
MIB = 2**20
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
VOCABULARY = 262_144
"""Tokens of the simulated model, all of whose log-probabilities a request may ask for."""
MAX_MESSAGE = 4 * MIB - 1024
"""Largest that the gRPC server takes in."""


def _json(**fields: Any) -> bytes:
    return json.dumps({"max_tokens": 1, **fields}, separators=(",", ":")).encode()


def _prompt(size: int) -> Callable[[], bytes]:
    return lambda: _json(prompt=("the quick brown fox " * (size // 20 + 1))[: size - 64])


def _ids(size: int) -> Callable[[], bytes]:
    return lambda: _json(prompt=[7] * (size // 2 - 64))


def _field(path: str, name: str, piece: str, size: int) -> Callable[[], bytes]:
    """A body whose field is a list of as many `piece`s as fit."""
    head = b'{"messages":[{"role":"user","content":"a"}],' if path == CHAT else b'{"prompt":"a",'
    if name in ("messages", "prompt"):
        head = b"{"

    def make() -> bytes:
        many = ",".join([piece] * ((size - 128) // (len(piece) + 1)))
        return head + f'"max_tokens":1,"{name}":[{many}]}}'.encode()

    return make


def _brackets(size: int) -> Callable[[], bytes]:
    return lambda: b'{"prompt":' + b"[" * (size // 2) + b"]" * (size // 2) + b"}"


def _arguments() -> bytes:
    calls = [
        {"type": "function", "function": {"name": "f", "arguments": "[" + "{}," * 40_000 + "0]"}}
    ]
    return _json(messages=[{"role": "assistant", "content": "a", "tool_calls": calls}])


def _kwargs() -> bytes:
    return _json(
        messages=[{"role": "user", "content": "a"}], chat_template_kwargs={"a": [[]] * 40_000}
    )


def _biases() -> bytes:
    return _json(prompt="a", logit_bias={str(token): 1 for token in range(1024)})


def _words() -> bytes:
    return _json(
        prompt="a", bad_words=["some bad words to leave out" + str(n) for n in range(4000)]
    )


def _distinct_words() -> bytes:
    return _json(prompt="a", bad_words=[f"{n}" for n in range(128)])


def _token_strs() -> bytes:
    return _json(prompt="a" * (SMALL - 64), return_token_strs=True)


def _all_top(**fields: Any) -> bytes:
    messages = [{"role": "user", "content": "a"}]
    return _json(messages=messages, logprobs=True, top_logprobs=VOCABULARY, **fields)


def _message_text(size: int) -> Callable[[], bytes]:
    return _field(CHAT, "messages", '{"role":"user","content":"a"}', size)


KINDS: dict[str, Kind] = {
    "chat": (CHAT, 256, lambda: _json(messages=[{"role": "user", "content": "Hello " * 100}])),
    "text": (COMPLETIONS, 64, _prompt(SMALL)),
    "text 8k": (COMPLETIONS, 256, _prompt(8 * 1024)),
    "ids": (COMPLETIONS, 64, _ids(SMALL)),
    "messages": (CHAT, 64, _message_text(SMALL)),
    "empty messages": (CHAT, 64, _field(CHAT, "messages", "{}", SMALL)),
    "tool arguments": (CHAT, 64, _arguments),
    "template arguments": (CHAT, 64, _kwargs),
    "prompts": (COMPLETIONS, 64, _field(COMPLETIONS, "prompt", '"' + "a" * 440 + '"', SMALL)),
    "empty prompts": (COMPLETIONS, 64, _field(COMPLETIONS, "prompt", "[]", SMALL)),
    "brackets": (COMPLETIONS, 64, _brackets(SMALL)),
    "stop": (COMPLETIONS, 64, _field(COMPLETIONS, "stop", '"ab"', SMALL)),
    "logit_bias": (COMPLETIONS, 64, _biases),
    "bad_words": (COMPLETIONS, 64, _words),
    "some bad_words": (COMPLETIONS, 64, _distinct_words),
    "token_strs": (
        "/tokenize",
        64,
        lambda: _json(prompt="a" * (SMALL - 64), return_token_strs=True),
    ),
    "unknown fields": (
        COMPLETIONS,
        64,
        lambda: b'{"prompt":"a",' + b",".join(b'"f%d":0' % n for n in range(11_000)) + b"}",
    ),
    "tokenize": ("/tokenize", 64, _prompt(SMALL)),
    "detokenize": ("/detokenize", 64, lambda: json.dumps({"tokens": [7] * 40_000}).encode()),
    "all logprobs": (COMPLETIONS, 4, lambda: _json(prompt="a", logprobs=VOCABULARY)),
    "streamed logprobs": (
        COMPLETIONS,
        4,
        lambda: _json(prompt="a", logprobs=VOCABULARY, stream=True),
    ),
    "all top_logprobs": (CHAT, 4, _all_top),
    "streamed top_logprobs": (CHAT, 4, lambda: _all_top(stream=True)),
    "infer": (
        "/v2/models/bench/infer",
        64,
        lambda: json.dumps(
            {
                "inputs": [
                    {
                        "name": "text_input",
                        "shape": [200],
                        "datatype": "BYTES",
                        "data": ["a" * 600] * 200,
                    }
                ],
                "parameters": {"max_tokens": 1},
            }
        ).encode(),
    ),
    "8 MiB of brackets": (COMPLETIONS, 4, _brackets(8 * MIB)),
    "8 MiB of {}": (CHAT, 4, _field(CHAT, "messages", "{}", 8 * MIB)),
    "8 MiB of ids": (COMPLETIONS, 4, _ids(8 * MIB)),
    "1 MiB of text": (COMPLETIONS, 16, _prompt(MIB)),
    "200 KiB of ids": (COMPLETIONS, 64, _ids(200 * 1024)),
    "63 MiB of text": (COMPLETIONS, 2, _prompt(63 * MIB)),
}


def _large_message() -> bytes:
    return _rpc(token_ids=pb.TokenIds(ids=[7] * (17 * MIB)))()


def _rpc(**fields: Any) -> Callable[[], bytes]:
    return lambda: pb.GenerateRequest(
        sampling=pb.SamplingParams(max_tokens=1), **fields
    ).SerializeToString()


def _unknown_fields() -> bytes:
    return b"\xf8\x07\x01" * (MAX_MESSAGE // 3)


RPC_KINDS: dict[str, Kind] = {
    "rpc ids": ("Generate", 64, _rpc(token_ids=pb.TokenIds(ids=[7] * (SMALL - 64)))),
    "rpc text": ("Generate", 64, _rpc(text="the quick brown fox " * 6_300)),
    "rpc resume": (
        "Generate",
        64,
        _rpc(text="a", resume=pb.Resume(output_token_ids=[7] * (SMALL - 64))),
    ),
    "rpc logprobs": (
        "Generate",
        4,
        lambda: pb.GenerateRequest(
            text="a", sampling=pb.SamplingParams(max_tokens=1, logprobs=VOCABULARY)
        ).SerializeToString(),
    ),
    "rpc bad_words": (
        "Generate",
        64,
        lambda: pb.GenerateRequest(
            text="a", sampling=pb.SamplingParams(max_tokens=1, bad_words=["ab"] * 30_000)
        ).SerializeToString(),
    ),
    "4 MiB rpc ids": ("Generate", 4, _rpc(token_ids=pb.TokenIds(ids=[7] * MAX_MESSAGE))),
    "17 MiB rpc ids": ("Generate", 4, _large_message),
    "4 MiB rpc unknown": ("Generate", 4, _unknown_fields),
    "4 MiB Abort": (
        "Abort",
        4,
        lambda: pb.AbortRequest(request_id="a" * MAX_MESSAGE).SerializeToString(),
    ),
    "4 MiB Abort unknown": ("Abort", 4, _unknown_fields),
    "4 MiB WatchLoad": ("WatchLoad", 4, _unknown_fields),
    "4 MiB WatchPrompts": ("WatchPrompts", 4, _unknown_fields),
}
