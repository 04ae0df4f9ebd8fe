from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvasir.kube import AccessError, load_access


def config(path: Path, user: dict[str, Any], **cluster: Any) -> dict[str, str]:
    """Writes a kubeconfig with one context; gives the environment that names it."""
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
def test_how_a_user_is_known(tmp_path: Path, user: dict[str, Any], header: str | None) -> None:
    (tmp_path / "token").write_text("from-file\n")
    access = load_access(environ=config(tmp_path / "config", user))
    assert access.authorization() == header
    assert access.server == "https://cluster.example:6443"
    assert access.namespace == "team"


def test_a_clouds_plugin_gives_the_token(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text('#!/bin/sh\nprintf \'{"status": {"token": "%s"}}\' "$WHO"\n')
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    command = {"command": str(plugin), "env": [{"name": "WHO", "value": "me"}]}
    access = load_access(environ=config(tmp_path / "config", {"exec": command}))
    assert access.authorization() == "Bearer me"
    plugin.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(AccessError, match="gave no token"):
        load_access(environ=config(tmp_path / "config", {"exec": command}))


def test_inside_a_pod_the_token_is_read_anew(tmp_path: Path) -> None:
    import ssl

    paths = ssl.get_default_verify_paths()
    authorities = Path(paths.cafile or paths.openssl_cafile)
    (tmp_path / "ca.crt").symlink_to(authorities)
    (tmp_path / "token").write_text("one")
    (tmp_path / "namespace").write_text("ns")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    access = load_access(environ=environ, account=tmp_path)
    assert access.server == "https://[fd00::1]:6443"
    assert access.authorization() == "Bearer one"
    (tmp_path / "token").write_text("two\n")
    assert access.authorization() == "Bearer two"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "does not exist; set KUBECONFIG"),
        ("[", "cannot be read"),
        ("- a", "is no kubeconfig"),
        ("{}", "has no current-context"),
        ("current-context: c", "has no context named 'c'"),
        ("current-context: c\ncontexts: [{name: c, context: {}}]", "has no cluster named None"),
        (
            "current-context: c\ncontexts: [{name: c, context: {cluster: k}}]\n"
            "clusters: [{name: k, cluster: {server: nowhere}}]",
            "the server of context c is 'nowhere', not a URL",
        ),
        (
            "current-context: c\ncontexts: [{name: c, context: {cluster: k}}]\n"
            "clusters: [{name: k, cluster: {certificate-authority: /none}}]",
            "a certificate of context c is no good",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    tmp_path: Path, text: str | None, sentence: str
) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(AccessError) as error:
        load_access(environ={"KUBECONFIG": str(path)})
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
