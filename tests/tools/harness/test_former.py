"""A former release's tree, from a repository that has its commit, and from one that has not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness import former, images
from harness.errors import HarnessError


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose only commit is the release's, and a cache that is empty."""
    made = tmp_path / "repository"
    chart = made / "charts" / "kvasir" / "Chart.yaml"
    chart.parent.mkdir(parents=True)
    chart.write_text("version: 0.1.0\n")
    git = ("git", "-C", made, "-c", "user.name=a", "-c", "user.email=a@example.com")
    for command in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "Release")):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    monkeypatch.setattr(former, "REPOSITORY", made)
    monkeypatch.setattr(former, "COMMIT", head.stdout.strip())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return made


def test_its_chart_is_that_of_its_commit(repository: Path) -> None:
    file = repository / "charts" / "kvasir" / "Chart.yaml"
    file.write_text("version: 9.9.9\n")
    found = former.chart() / "Chart.yaml"
    assert found.read_text() == "version: 0.1.0\n"
    assert not list(former.source().glob("*.tar"))
    found.write_text("checked out once\n")
    assert (former.chart() / "Chart.yaml").read_text() == "checked out once\n"


def test_a_shallow_clone_is_told_what_it_lacks(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(former, "COMMIT", "1" * 40)
    for _ in range(2):
        with pytest.raises(HarnessError, match="this clone has no commit 11111111, release"):
            former.source()


def test_its_images_are_others_than_this_checkouts(repository: Path) -> None:
    (own, theirs) = images.ROUTER, former.images_of(repository)[1]
    assert theirs.reference == "localhost/kvasir/router:0.1.0"
    assert own.reference == "localhost/kvasir/router:dev"
