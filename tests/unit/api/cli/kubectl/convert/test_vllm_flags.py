"""How flags of vLLM are read."""

from __future__ import annotations

import pytest

from kvasir.cli.kubectl.convert.vllm_flags import parse_flags, parse_value


def test_values_stand_behind_or_after_an_equals_sign() -> None:
    plain, flags = parse_flags(
        ["m", "--a", "1", "2", "--b=3", "--c_d", "-tp", "2", "-x", "-1", "--e"]
    )
    assert plain == ["m"]
    assert [(flag.name, flag.values) for flag in flags] == [
        ("--a", ("1", "2")),
        ("--b", ("3",)),
        ("--c-d", ()),
        ("--tensor-parallel-size", ("2",)),
        ("-x", ("-1",)),
        ("--e", ()),
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("0.9", 0.9),
        ("16k", 16000),
        ("1.5K", 1536),
        ("1M", 1 << 20),
        ("half", "float16"),
        ("true", "true"),
        ("fp8", "fp8"),
        ("{", "{"),
        ("2026-01-01", "2026-01-01"),
    ],
)
def test_values(text: str, value: object) -> None:
    assert parse_value(text) == value
