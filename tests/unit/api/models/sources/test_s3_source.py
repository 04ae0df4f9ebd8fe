"""Against a real server of S3's protocol."""

from __future__ import annotations

import logging

import boto3
import pytest
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer

from kvasir.model_uri import parse_model_uri
from kvasir.models.download.file_hash import FileHash
from kvasir.models.download_errors import DownloadError, PermanentError
from kvasir.models.sources.s3_source import S3Source
from kvasir.models.sources.source import Selection

pytestmark = pytest.mark.slow

PART = 5 << 20


@pytest.fixture(scope="module")
def endpoint():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    made = boto3.resource("s3", region_name="us-east-1").Bucket("models")
    made.create()
    yield made
    made.objects.all().delete()
    made.delete()


def fill(bucket, prefix, files) -> None:
    for path, body in files.items():
        bucket.put_object(Key=f"{prefix}{path}", Body=body)


def test_a_prefix(bucket, download, contents, model_files, further_files) -> None:
    fill(bucket, "a/m/", model_files | further_files)
    fill(bucket, "a/m-other/", {"config.json": b"other"})
    assert contents(download("s3://models/a/m")) == model_files
    assert contents(download("s3://models/a/m/")) == model_files


def test_a_whole_bucket(bucket, download, contents, model_files) -> None:
    fill(bucket, "", model_files)
    assert contents(download("s3://models")) == model_files


def test_an_archive(bucket, download, contents, model_files, make_tar) -> None:
    fill(bucket, "", {"m.tar.gz": make_tar(model_files, "m/"), "m.tar.gz.json": b"{}"})
    assert contents(download("s3://models/m.tar.gz")) == model_files


def test_an_upload_in_parts_is_verified_by_the_hashes_of_its_parts(bucket) -> None:
    content = bytes(PART) + b"the rest"
    started = bucket.Object("m/big.safetensors").initiate_multipart_upload()
    parts = [
        {
            "PartNumber": i,
            "ETag": started.Part(i).upload(Body=content[at : at + PART])["ETag"],
        }
        for i, at in enumerate(range(0, len(content), PART), 1)
    ]
    started.complete(MultipartUpload={"Parts": parts})
    source = S3Source(parse_model_uri("s3://models/m"), Selection())
    (file,) = source.list().files
    assert (file.digest.kind, file.digest.part_bytes) == ("md5-parts", PART)
    good, bad = FileHash(file.digest, file.size), FileHash(file.digest, file.size)
    with source.read(file, 0) as (start, chunks):
        assert start == 0
        for chunk in chunks:
            good.update(chunk)
    bad.update(content[:-1] + b"!")
    source.close()
    assert good.matches()
    assert not bad.matches()


def test_reading_goes_on_only_in_the_object_that_was_listed(bucket) -> None:
    fill(bucket, "m/", {"config.json": b"0123456789"})
    source = S3Source(parse_model_uri("s3://models/m"), Selection())
    (file,) = source.list().files
    with source.read(file, 4) as (start, chunks):
        assert (start, b"".join(chunks)) == (4, b"456789")
    fill(bucket, "m/", {"config.json": b"another one"})
    with pytest.raises(DownloadError, match="was changed"), source.read(file, 4):
        pass
    source.close()


def test_what_is_not_there_is_said(bucket, download, monkeypatch) -> None:
    with pytest.raises(PermanentError, match="names no objects"):
        download("s3://models/absent")
    with pytest.raises(PermanentError, match=r"s3://absent-bucket/x does not exist at http"):
        download("s3://absent-bucket/x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match="cannot be read") as caught:
        download("s3://models/x")
    assert not caught.value.permanent


def test_a_refusal_names_the_secret(bucket, download, monkeypatch) -> None:
    def refuse(_self):
        raise ClientError({"Error": {"Code": "AccessDenied"}}, "ListObjectsV2")

    monkeypatch.setattr(S3Source, "_objects", refuse)
    with pytest.raises(PermanentError, match=r"AWS_ACCESS_KEY_ID.*secretRef"):
        download("s3://models/x")
