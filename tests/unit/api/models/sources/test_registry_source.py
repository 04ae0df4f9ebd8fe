from __future__ import annotations

import base64
import hashlib
import json
import platform

import httpx
import pytest

from kvasir.models.download_errors import PermanentError
from kvasir.models.sources.registry_auth import RegistryAuth
from kvasir.models.sources.registry_source import parse_reference

TAR, TAR_GZ = (
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
)
RAW = "application/octet-stream"
TITLE = "org.opencontainers.image.title"


def as_files(files):
    return [(body, RAW, {TITLE: path}) for path, body in files.items()]


@pytest.mark.parametrize(
    ("name", "url", "reference"),
    [
        ("ghcr.io/a/b:v1", "https://ghcr.io/v2/a/b", "v1"),
        ("ghcr.io/a/b", "https://ghcr.io/v2/a/b", "latest"),
        ("docker.io/b", "https://registry-1.docker.io/v2/library/b", "latest"),
        ("localhost:5000/a/b:v1@sha256:12", "http://localhost:5000/v2/a/b", "sha256:12"),
    ],
)
def test_references(name, url, reference) -> None:
    parsed = parse_reference(name)
    assert (parsed.url, parsed.reference) == (url, reference)


def test_a_registry_without_tls_is_named_by_whoever_trusts_it(monkeypatch) -> None:
    monkeypatch.setenv("KVASIR_HTTP_REGISTRIES", "registry.lan:5000, 10.0.0.1")
    names = {"registry.lan:5000/m": "http", "10.0.0.1/m": "http", "registry.lan/m": "https"}
    for name, scheme in names.items():
        assert parse_reference(name).url.startswith(f"{scheme}://")


@pytest.mark.parametrize("answer", ['{"Token": "s3cret"}', "s3cret", '["s3cret"]'])
def test_an_answer_that_is_no_token_is_not_told(monkeypatch, answer) -> None:
    """The message goes into a status, which many may read."""
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    challenge = {"www-authenticate": 'Bearer realm="https://tokens.lan/token"'}
    asked = httpx.Request("GET", "https://registry.lan/v2/m/manifests/v1")
    tokens = httpx.MockTransport(lambda request: httpx.Response(200, text=answer))
    with httpx.Client(transport=tokens) as client:
        auth = RegistryAuth(client, "registry.lan", "oci://registry.lan/m:v1")
        with pytest.raises(PermanentError, match="token or access_token") as told:
            auth.renewed(httpx.Response(401, headers=challenge, request=asked))
    assert "s3cret" not in str(told.value)


@pytest.mark.parametrize(("scheme", "sent"), [("http", False), ("https", True)])
def test_no_password_goes_to_a_registry_without_tls(tmp_path, monkeypatch, scheme, sent) -> None:
    file = tmp_path / "config.json"
    login = base64.b64encode(b"me:password").decode()
    file.write_text(json.dumps({"auths": {"registry.lan": {"auth": login}}}))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(file))
    asked = httpx.Request("GET", f"{scheme}://registry.lan/v2/m/manifests/v1")
    refusal = httpx.Response(401, headers={"www-authenticate": 'Basic realm="r"'}, request=asked)
    with httpx.Client() as client:
        auth = RegistryAuth(client, "registry.lan", "oci://registry.lan/m:v1")
        if sent:
            assert auth.renewed(refusal) == {"authorization": f"Basic {login}"}
        else:
            with pytest.raises(PermanentError, match="a password without TLS at http://registry"):
                auth.renewed(refusal)


def test_an_artifact_of_files(registry, download, contents, model_files, further_files) -> None:
    digest = registry.push("v1", as_files(model_files | further_files))
    directory = download(f"oci://{registry.host}/org/m:v1")
    assert contents(directory) == model_files
    assert json.loads((directory / "kvasir-model.json").read_bytes())["revision"] == digest


def test_an_image_with_a_model_in_it(registry, download, contents, model_files, make_tar) -> None:
    """Of several platforms; layers of both kinds, with a system's own JSON files about."""
    system = make_tar({"etc/config.json": b"{}", "usr/x.json": b"{}"}, compression="")
    first, last = dict(list(model_files.items())[:2]), dict(list(model_files.items())[2:])
    layers = [
        (system, TAR, {}),
        (make_tar(first, "models/"), TAR_GZ, {}),
        (make_tar(last, "models/"), TAR_GZ, {}),
    ]
    image = registry.push("image", layers)
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    index = [
        {"digest": "sha256:" + "0" * 64, "platform": {"os": "linux", "architecture": "s390x"}},
        {"digest": image, "platform": {"os": "linux", "architecture": machine}},
    ]
    registry.put("v2", {"manifests": index})
    assert contents(download(f"oci://{registry.host}/org/m:v2")) == model_files


def test_by_digest(registry, download, contents, model_files) -> None:
    digest = registry.push("v1", as_files(model_files))
    assert contents(download(f"oci://{registry.host}/org/m@{digest}")) == model_files
    forged = "sha256:" + "1" * 64
    registry.manifests[forged] = registry.manifests[digest]
    with pytest.raises(PermanentError, match="sent other content"):
        download(f"oci://{registry.host}/org/m@{forged}")


@pytest.mark.slow
@pytest.mark.parametrize("basic", [False, True])
def test_a_login_from_a_docker_config(
    registry, download, model_files, tmp_path, monkeypatch, basic
) -> None:
    registry.push("v1", as_files(model_files))
    registry.login, registry.basic = "me:password", basic
    uri = f"oci://{registry.host}/org/m:v1"
    with pytest.raises(PermanentError, match=r"refused \(401\).*dockerconfigjson"):
        download(uri)
    file = tmp_path / ".dockerconfigjson"
    login = base64.b64encode(b"me:password").decode()
    file.write_text(json.dumps({"auths": {registry.host: {"auth": login}}}))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(file))
    registry.realm = "http://tokens.example/token"
    if not basic:
        with pytest.raises(PermanentError, match="a password without TLS"):
            download(uri)
    registry.realm = ""
    assert download(uri).is_dir()


def test_a_token_that_ran_out_is_renewed(registry, download, contents, model_files) -> None:
    registry.push("v1", as_files(model_files))
    registry.tokens_last_one_manifest = True
    assert contents(download(f"oci://{registry.host}/org/m:v1")) == model_files


def test_damage_is_noticed(registry, download, model_files) -> None:
    registry.push("v1", as_files(model_files))
    shard = hashlib.sha256(model_files["model-1.safetensors"]).hexdigest()
    damaged = bytearray(registry.blobs[f"sha256:{shard}"])
    damaged[1000] ^= 1
    registry.blobs[f"sha256:{shard}"] = bytes(damaged)
    with pytest.raises(Exception, match=r"model-1.safetensors.*does not have the hash"):
        download(f"oci://{registry.host}/org/m:v1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([(b"x", "application/vnd.oci.image.layer.v1.tar+zstd", {})], "zstd"),
        ([(b"x", RAW, {})], "neither an archive nor named"),
        ([(b"x", RAW, {TITLE: "../x.json"})], "does not stay inside"),
        ([], "no layers"),
    ],
)
def test_layers_that_make_no_model(registry, download, layers, message) -> None:
    registry.push("v1", layers)
    with pytest.raises(PermanentError, match=message):
        download(f"oci://{registry.host}/org/m:v1")
    with pytest.raises(PermanentError, match="does not exist"):
        download(f"oci://{registry.host}/org/m:absent")
