from __future__ import annotations

from pathlib import Path

import pytest

from harness.binaries import binary
from harness.errors import HarnessError


def test_a_missing_binary_names_the_verb_that_builds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(HarnessError, match="run `make cluster-build`"):
        binary("kube")
