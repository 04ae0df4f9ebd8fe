from __future__ import annotations

import io
import tarfile
import zipfile

import pytest

from kvasir.models.download.archive import ArchiveLimits, unpack
from kvasir.models.download_errors import PermanentError
from kvasir.models.sources.source import Selection, safe_path


def tar_with(path, **attributes):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo(attributes.pop("name"))
        for name, value in attributes.items():
            setattr(member, name, value)
        tar.addfile(member, io.BytesIO(b"x" * member.size))
    path.write_bytes(packed.getvalue())
    return path


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"name": "../../config.json"}, "does not stay inside"),
        ({"name": "/etc/config.json"}, "does not stay inside"),
        ({"name": "a\\..\\config.json"}, "does not stay inside"),
        ({"name": "config.json", "type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "a link"),
        ({"name": "config.json", "type": tarfile.LNKTYPE, "linkname": "../x"}, "a link"),
        ({"name": "model.safetensors", "size": 2000}, "more than 1000 bytes"),
    ],
)
def test_a_hostile_tar_writes_nothing_outside(tmp_path, attributes, message) -> None:
    archive = tar_with(tmp_path / "m.tar", **attributes)
    with pytest.raises(PermanentError, match=message):
        unpack(archive, tmp_path / "into", Selection(), ArchiveLimits(bytes=1000))
    assert {path.name for path in tmp_path.iterdir()} <= {"m.tar", "into"}


def test_links_and_devices_that_no_engine_reads_are_passed_over(tmp_path) -> None:
    archive = tar_with(
        tmp_path / "m.tar", name="lib/libc.so", type=tarfile.SYMTYPE, linkname="/lib/libc.so.6"
    )
    unpack(archive, tmp_path / "into", Selection(), ArchiveLimits())
    fifo = tar_with(tmp_path / "f.tar", name="config.json", type=tarfile.FIFOTYPE)
    unpack(fifo, tmp_path / "into", Selection(), ArchiveLimits())
    assert not (tmp_path / "into").exists()


def test_a_zip_may_not_lead_out_nor_lie_about_sizes(tmp_path) -> None:
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.writestr("../config.json", b"{}")
    with pytest.raises(PermanentError, match="does not stay inside"):
        unpack(tmp_path / "m.zip", tmp_path / "into", Selection(), ArchiveLimits())
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as archive:
        for i in range(5):
            archive.writestr(f"{i}.json", b"{}")
    with pytest.raises(PermanentError, match="more than 3 files"):
        unpack(tmp_path / "many.zip", tmp_path / "into", Selection(), ArchiveLimits(files=3))


@pytest.mark.parametrize("path", ["", "..", "/a", "a/../b", "a\\b", "a\nb", "a" * 300, "é" * 200])
def test_paths_that_are_none(path) -> None:
    with pytest.raises(PermanentError):
        safe_path(path)


@pytest.mark.parametrize(
    ("path", "normal"), [("a//b", "a/b"), ("./a", "a"), ("a/./b.json", "a/b.json")]
)
def test_paths_are_normalised(path, normal) -> None:
    assert safe_path(path) == normal
