from __future__ import annotations

import json
import ssl
import stat
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvasir.kube import AccessError
from kvasir.kube.client import Cluster
from kvasir.kube.config import ClusterAccess, load_access


def config(path: Path, user: dict[str, Any], **cluster: Any) -> dict[str, str]:
    """Write a kubeconfig with one context; give the environment that names it."""
    server = {"server": "https://cluster.example:6443/", **cluster}
    content = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "k", "cluster": server}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(content))
    return {"KUBECONFIG": str(path)}


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ({"token": "t"}, "Bearer t"),
        ({"tokenFile": "token"}, "Bearer from-file"),
        ({"username": "a", "password": "b"}, "Basic YTpi"),
        ({}, None),
    ],
)
async def test_how_a_user_is_known(
    tmp_path: Path, user: dict[str, Any], header: str | None
) -> None:
    (tmp_path / "token").write_text("from-file\n")
    access = await load_access(environ=config(tmp_path / "config", user))
    assert await access.authorization() == header
    assert access.server == "https://cluster.example:6443"
    assert access.namespace == "team"


async def test_files_of_kubeconfig_are_merged_and_the_first_one_has_its_way(
    tmp_path: Path,
) -> None:
    contexts = {
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "current-context": "c",
    }
    parts: dict[str, dict[str, Any]] = {
        "contexts": contexts,
        "clusters": {"clusters": [{"name": "k", "cluster": {"server": "https://one"}}]},
        "users": {
            "current-context": "later",
            "clusters": [{"name": "k", "cluster": {"server": "https://two"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        },
    }
    for name, part in parts.items():
        (tmp_path / name).write_text(yaml.safe_dump(part))
    files = [tmp_path / "missing", *(tmp_path / name for name in parts)]
    access = await load_access(environ={"KUBECONFIG": ":".join(map(str, files))})
    assert (access.server, access.namespace) == ("https://one", "default")
    assert await access.authorization() == "Bearer t"


class Plugin:
    """A credential plugin that counts how often it is asked."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "plugin"
        self._answer = directory / "answer"
        self._runs = directory / "runs"
        self.path.write_text(
            f'#!/bin/sh\necho "$WHO" >> {self._runs}\ncat {self._answer} || exit 3\n'
        )
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)

    @property
    def runs(self) -> int:
        return len(self._runs.read_text().splitlines())

    @property
    def user(self) -> dict[str, Any]:
        env = [{"name": "WHO", "value": "me"}]
        version = "client.authentication.k8s.io/v1"
        return {"exec": {"apiVersion": version, "command": str(self.path), "env": env}}

    def gives(self, **status: str) -> None:
        kind = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
        self._answer.write_text(json.dumps({**kind, "status": status}))

    def fails(self) -> None:
        self._answer.unlink()


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


def time_passes(access: ClusterAccess, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a minute, after which credentials are looked at again."""
    later = time.monotonic() + 61.0
    monkeypatch.setattr(time, "monotonic", lambda: later)


async def test_a_plugins_token_is_replaced_before_it_expires(
    tmp_path: Path, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=80)
    plugin.gives(token="one", expirationTimestamp=soon.strftime("%Y-%m-%dT%H:%M:%SZ"))
    access = await load_access(environ=config(tmp_path / "config", plugin.user))
    assert await access.authorization() == "Bearer one"
    plugin.gives(token="two", expirationTimestamp="2126-01-01T00:00:00Z")
    assert await access.authorization() == "Bearer one"
    time_passes(access, monkeypatch)
    assert await access.authorization() == "Bearer two"
    time_passes(access, monkeypatch)
    assert await access.authorization() == "Bearer two"
    assert plugin.runs == 2


async def test_a_plugins_token_without_an_end_is_kept_until_it_is_rejected(
    tmp_path: Path, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.gives(token="one")
    access = await load_access(environ=config(tmp_path / "config", plugin.user))
    plugin.gives(token="two")
    time_passes(access, monkeypatch)
    assert await access.authorization() == "Bearer one"
    access.reject()
    assert await access.authorization() == "Bearer two"
    plugin.fails()
    access.reject()
    for _ in range(2):
        with pytest.raises(AccessError, match="plugin gave no credentials: exec: process returned"):
            await access.authorization()
    plugin.gives(token="three")
    assert await access.authorization() == "Bearer three"


async def test_a_plugin_that_fails_at_first_is_named(tmp_path: Path, plugin: Plugin) -> None:
    with pytest.raises(AccessError, match="plugin gave no credentials") as error:
        await load_access(environ=config(tmp_path / "config", plugin.user))
    assert "\n" not in str(error.value)
    gone = {"exec": {**plugin.user["exec"], "command": "/none"}}
    with pytest.raises(AccessError, match=r"/none gave no credentials: .*No such file"):
        await load_access(environ=config(tmp_path / "config", gone))


async def test_inside_a_pod_the_token_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = ssl.get_default_verify_paths()
    authorities = Path(paths.cafile or paths.openssl_cafile)
    (tmp_path / "ca.crt").symlink_to(authorities)
    (tmp_path / "token").write_text("one")
    (tmp_path / "namespace").write_text("ns")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    access = await load_access(environ=environ, account=tmp_path)
    assert (access.server, access.namespace) == ("https://[fd00::1]:6443", "ns")
    assert (await access.authorization() or "").lower() == "bearer one"
    (tmp_path / "token").write_text("two\n")
    time_passes(access, monkeypatch)
    assert (await access.authorization() or "").lower() == "bearer two"
    (tmp_path / "token").write_text("three")
    access.reject()
    assert (await access.authorization() or "").lower() == "bearer three"


CHOSEN = """
current-context: c
contexts: [{name: c, context: {cluster: k}}]
clusters:
- name: k
  cluster: """


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "does not exist; set KUBECONFIG"),
        ("[", "cannot be used"),
        ("- a", "is no kubeconfig"),
        ("", "is no kubeconfig"),
        ("current-context: c\ncontexts: [3]", "is no kubeconfig"),
        ("{}", "Expected key current-context"),
        ("current-context: c", "Expected object with name c in"),
        ("current-context: c\ncontexts: [{name: c, context: {}}]", "Expected key cluster in"),
        (CHOSEN + "{server: nowhere}", "the server is 'nowhere', not a URL"),
        (CHOSEN + "{proxy-url: 'http://p'}", "has no server"),
        (CHOSEN + "{server: 'https://s', certificate-authority: /none}", "/none"),
        (CHOSEN + "{server: 'https://s', certificate-authority-data: eA==}", "is no good"),
    ],
)
async def test_what_is_wrong_is_said_in_a_sentence(
    tmp_path: Path, text: str | None, sentence: str
) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(AccessError) as error:
        await Cluster(await load_access(environ={"KUBECONFIG": str(path)})).close()
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value) or "https://s" in str(error.value)
