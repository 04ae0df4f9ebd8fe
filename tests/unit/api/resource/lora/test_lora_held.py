from __future__ import annotations

import pytest

from kvasir.resource.lora.lora_held import HeldAdapters, read_held


def test_what_is_written_is_read_for_the_same_run_alone() -> None:
    held = HeldAdapters("uid/1", {"sql": "/a"}, {"chat": "rank 64 is too large"})
    assert read_held(held.written(), "uid/1") == held
    assert read_held(held.written(), "uid/2") is None
    assert read_held(held.written(), "") is None


@pytest.mark.parametrize("text", ["", "no json", "[]", "null", "{}", '{"run":1}'])
def test_anything_else_says_nothing(text: str) -> None:
    assert read_held(text, "uid/1") is None


def test_what_others_have_written_is_read_as_texts() -> None:
    assert read_held('{"run":"r","held":{"a":1},"refused":[]}', "r") == HeldAdapters(
        "r", {"a": "1"}
    )
