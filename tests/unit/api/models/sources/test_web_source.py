from __future__ import annotations

import hashlib
import io
import json
import zipfile

import pytest

from kvasir.models.download_errors import PermanentError


def listing(files):
    entries = [
        {"path": path, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        for path, body in files.items()
    ]
    return json.dumps({"files": entries}).encode()


def zip_of(files):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return packed.getvalue()


@pytest.mark.parametrize("folder", ["", "some/folder/"])
@pytest.mark.parametrize("suffix", ["tar.gz", "tar", "zip"])
def test_an_archive_is_unpacked_without_its_folder(
    web, download, contents, model_files, further_files, make_tar, suffix, folder
) -> None:
    every = {folder + path: body for path, body in (model_files | further_files).items()}
    compression = "gz" if suffix == "tar.gz" else ""
    packed = zip_of(every) if suffix == "zip" else make_tar(every, compression=compression)
    web.files[f"m.{suffix}"] = packed
    digest = hashlib.sha256(packed).hexdigest()
    assert contents(download(f"{web.url}/m.{suffix}#sha256={digest}")) == model_files


def test_a_list_of_files_as_another_cache_wrote_it(
    web, download, contents, model_files, further_files, tmp_path
) -> None:
    web.files = {f"a/{path}": body for path, body in (model_files | further_files).items()}
    web.files["a/list.json"] = listing(model_files | further_files)
    directory = download(f"{web.url}/a/list.json")
    assert contents(directory) == model_files
    web.files["a/kvasir-model.json"] = (directory / "kvasir-model.json").read_bytes()
    assert contents(download(f"{web.url}/a/kvasir-model.json")) == model_files


def test_a_wrong_hash_is_refused(web, download, model_files, make_tar) -> None:
    web.files["m.tar"] = make_tar(model_files, compression="")
    with pytest.raises(Exception, match="does not have the hash") as caught:
        download(f"{web.url}/m.tar#sha256={'0' * 64}")
    assert not caught.value.permanent  # type: ignore[attr-defined]


def test_what_goes_wrong_for_good_is_said(web, download, model_files, make_tar) -> None:
    web.files["x.json"] = b"[1]"
    web.files["up.json"] = listing({"../up.json": b""})
    web.files["empty.tar"] = make_tar({}, compression="")
    web.files["junk.zip"] = b"PK\3\4junk"
    for path, message in {
        "absent.tar": "does not exist",
        "model": "neither an archive .* nor a list of files",
        "x.json": "is no list of files",
        "up.json": "does not stay inside",
        "empty.tar": "no config.json",
        "junk.zip": "cannot be unpacked",
        "m.tar#md5=1": "only sha256=",
    }.items():
        with pytest.raises(PermanentError, match=message):
            download(f"{web.url}/{path}")


def test_a_token_is_asked_for_and_used(web, download, model_files, make_tar, monkeypatch) -> None:
    web.files["m.tar"] = make_tar(model_files, compression="")
    web.token = "open-sesame"
    with pytest.raises(PermanentError, match=r"refused \(401\).*KVASIR_HTTP_TOKEN.*secretRef"):
        download(f"{web.url}/m.tar")
    monkeypatch.setenv("KVASIR_HTTP_TOKEN", "open-sesame")
    assert download(f"{web.url}/m.tar").is_dir()
    with pytest.raises(PermanentError, match="over https:// only"):
        download("http://models.example/m.tar")
