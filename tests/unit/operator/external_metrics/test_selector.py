from __future__ import annotations

import pytest

from kvasir_operator.external_metrics.selector import SelectorError, parse_selector

LABELS = {"app": "chat", "tier": "gold", "example.com/team": "a-1"}


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("", True),
        ("app=chat", True),
        ("app==chat,tier=gold", True),
        ("app=chat,tier=silver", False),
        ("app!=chat", False),
        ("absent!=x", True),
        ("app in (chat, code),tier notin (silver)", True),
        ("app in (code)", False),
        ("absent in (x)", False),
        ("absent notin (x)", True),
        ("app", True),
        ("!app", False),
        ("!absent", True),
        ("example.com/team=a-1", True),
        ("absent=", False),
    ],
)
def test_selectors_mean_what_kubernetes_means(selector: str, selected: bool) -> None:
    assert parse_selector(selector)(LABELS) is selected


@pytest.mark.parametrize(
    "selector", ["a=b=c", "a in b", ",", "a,", "(a)", "a>1", "a=" + "x" * 5000]
)
def test_anything_else_is_refused(selector: str) -> None:
    with pytest.raises(SelectorError):
        parse_selector(selector)
