"""Servers of others that an LLMDeployment names, as replicas of the router's discovery file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvasir.atomic_files import write_atomic
from kvasir.resource import LLMDeployment
from kvasir.resource.external.external_spec import UpstreamURL


def upstream_replicas(deployment: LLMDeployment, runtime_dir: Path) -> list[dict[str, Any]]:
    """Return a replica for each URL; certificates are written to `runtime_dir`, keys nowhere."""
    external = deployment.spec.external
    urls = external.urls if external is not None else []
    return [_replica(deployment.name, i, url, runtime_dir) for i, url in enumerate(urls)]


def _replica(name: str, index: int, given: UpstreamURL, runtime_dir: Path) -> dict[str, Any]:
    replica: dict[str, Any] = {
        "id": f"{name}-url-{index}",
        "url": given.url,
        "engine": "openai",
        "key_header": given.key_header,  # said, so that also a URL without a path is an upstream
    }
    if given.ca_bundle is not None:
        file = runtime_dir / f"{name}-url-{index}.pem"
        write_atomic(file, given.ca_bundle.encode())
        replica["ca_file"] = str(file)
    key = given.key
    named = {
        "model": given.model,
        "key_env": key.env if key is not None else None,
        "key_file": key.file if key is not None else None,
        "server_name": given.server_name,
        "health_path": given.health_path,
    }
    return {**replica, **{field: value for field, value in named.items() if value is not None}}


def upstream_problems(deployment: LLMDeployment, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each key that there is none of on one machine."""
    external = deployment.spec.external
    if external is not None and external.pods is not None:
        yield f"{deployment.name}: spec.external.pods are a cluster's; give urls"
    for url in external.urls if external is not None else ():
        where = f"{deployment.name}: spec.external, key of {url.url}"
        if url.key is None:
            continue
        if url.key.secret_ref is not None:
            yield f"{where}: secretRef names a Secret of a cluster; give env or file"
        elif url.key.env is not None and not environ.get(url.key.env, "").strip():
            yield f"{where}: variable {url.key.env} is not set; set it for kvasir up"
        elif url.key.file is not None and not Path(url.key.file).is_file():
            yield f"{where}: there is no file {url.key.file}; write the key into it"


def unknown_fallbacks(deployments: Sequence[LLMDeployment]) -> Iterator[str]:
    """Yield a sentence for each fallback that none of the deployments serves."""
    names = {name for each in deployments for name in each.claimed_names}
    for each in deployments:
        for name in each.spec.fallbacks:
            if name not in names:
                yield (
                    f"{each.name}: spec.fallbacks names {name}, which no LLMDeployment of the file"
                    " serves; correct the name, or add that model"
                )
