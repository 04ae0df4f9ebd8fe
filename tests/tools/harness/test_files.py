from __future__ import annotations

from pathlib import Path

from harness.files import content_hash


def test_a_hash_depends_on_names_contents_and_extras_alone(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for root in (one, other):
        (root / "package").mkdir(parents=True)
        (root / "package" / "a.go").write_text("a")
    first = content_hash([one / "package"], one, "flags")
    assert first == content_hash([other / "package"], other, "flags")
    assert first != content_hash([one / "package"], one, "other flags")
    (other / "package" / "__pycache__").mkdir()
    (other / "package" / "__pycache__" / "a.pyc").write_text("made")
    assert first == content_hash([other / "package"], other, "flags")
    (other / "package" / "a.go").rename(other / "package" / "b.go")
    assert first != content_hash([other / "package"], other, "flags")
