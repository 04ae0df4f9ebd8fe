from __future__ import annotations

from pathlib import Path

import pytest

from harness.binaries import KUBE, NEWEST, OLDEST, binary
from harness.errors import HarnessError

ROOT = Path(__file__).parents[3]


def test_a_missing_binary_names_the_verb_that_builds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(HarnessError, match="run `make cluster-build`"):
        binary("kube")
    with pytest.raises(HarnessError, match="run `make versions-build`"):
        binary("apiserver-oldest")


def test_other_versions_are_the_charts_oldest_and_a_newer_one_than_the_nodes() -> None:
    about = (ROOT / "charts/kvasir/Chart.yaml").read_text()
    minors = [int(each.version.split(".")[1]) for each in (OLDEST, KUBE, NEWEST)]
    assert f'kubeVersion: ">=1.{minors[0]}.0-0"' in about
    assert minors == sorted(set(minors))
    assert OLDEST.output != NEWEST.output
