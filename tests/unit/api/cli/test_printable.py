from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.cli.printable import printable


def test_control_sequences_are_removed() -> None:
    assert printable("\x1b[31mred\x1b[0m\x1b]0;title\x07\r\tok é\n\x9b") == "red]0;title\tok é\n"


@given(st.text())
@pytest.mark.slow
def test_nothing_that_drives_a_terminal_is_left(text: str) -> None:
    assert not any(c < " " and c not in "\t\n" for c in printable(text))
    assert printable(printable(text)) == printable(text)
