from __future__ import annotations

from typing import Any

from kvasir_operator.controller.overlay import Overlay


def at(version: str) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": version}}


def test_our_write_is_seen_until_the_index_moves_on() -> None:
    overlay = Overlay()
    overlay.wrote("x", at("1"), at("2"), now=0)
    assert overlay.see("x", at("1"), now=1) == at("2")
    assert overlay.see("x", at("3"), now=2) == at("3")
    # Once it has moved on, an older answer never comes back
    assert overlay.see("x", at("1"), now=3) == at("1")


def test_what_we_made_is_there_before_the_index_has_it() -> None:
    overlay = Overlay()
    overlay.wrote("x", None, at("1"), now=0)
    assert overlay.see("x", None, now=1) == at("1")
    assert overlay.see("x", at("1"), now=2) == at("1")
    assert overlay.see("x", None, now=3) is None


def test_what_somebody_else_removed_is_not_believed_for_ever() -> None:
    overlay = Overlay()
    overlay.wrote("x", None, at("1"), now=0)
    assert overlay.see("x", None, now=11) is None


def test_what_somebody_else_deleted_at_once_is_gone_at_once() -> None:
    overlay = Overlay()
    overlay.wrote("x", None, at("1"), now=0)
    overlay.forget("x")
    assert overlay.see("x", None, now=1) is None


def test_what_nobody_looks_at_any_more_is_not_kept() -> None:
    overlay = Overlay()
    for second in range(100):
        overlay.wrote(f"x{second}", None, at("1"), now=second)
    assert len(overlay) == 10
