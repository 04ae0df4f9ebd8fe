"""Options of `kvasir router` whose text has a form of its own."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

import typer

from kvasir_router.flags import SECRET_VARIABLE
from kvasir_router.scaling.signals import Slo


def slo_by_model(targets: Iterable[str]) -> dict[str, Slo]:
    """From `MODEL=TTFT:ITL`. Raises typer.BadParameter."""
    result = {}
    for target in targets:
        found = re.fullmatch(r"(.+)=([0-9.]+):([0-9.]+)", target)
        try:
            if found is None:
                raise ValueError
            result[found[1]] = Slo(float(found[2]), float(found[3]))
        except ValueError:
            raise typer.BadParameter(
                f"{target!r} is not of the form MODEL=TTFT:ITL, as llama=1.5:0.05",
                param_hint="--slo",
            ) from None
    return result


def discovery_file(discovery: str, config: Path | None) -> Path | None:
    """The file of --discovery file, and None for kubernetes. Raises typer.BadParameter."""
    if discovery == "file" and config is None:
        raise typer.BadParameter(
            "name the discovery file, or choose --discovery kubernetes", param_hint="--config"
        )
    if discovery == "kubernetes" and config is not None:
        raise typer.BadParameter(
            "--discovery kubernetes reads no file; leave one of the two out", param_hint="--config"
        )
    return config


def namespaces(discovery: str, names: Iterable[str]) -> tuple[str, ...]:
    """Each once. Raises typer.BadParameter."""
    result = tuple(dict.fromkeys(names))
    for name in result:
        if discovery != "kubernetes":
            reason = "has a meaning only with --discovery kubernetes"
        elif not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
            reason = "is no namespace: use small letters, digits and -, at most 63"
        else:
            continue
        raise typer.BadParameter(f"{name!r} {reason}", param_hint="--watch-namespace")
    return result


def http_url(url: str | None) -> str | None:
    """The URL as it is; empty counts as none. Raises typer.BadParameter."""
    if url and not url.startswith(("http://", "https://")):
        raise typer.BadParameter(
            f"{url!r} must begin with http:// or https://, as http://127.0.0.1:4318",
            param_hint="--otlp-endpoint",
        )
    return url or None


def fleet_secret(path: Path | None) -> str | None:
    """From the file, else from the environment. Raises typer.BadParameter."""
    if path is None:
        secret = os.environ.get(SECRET_VARIABLE, "")
    else:
        secret = path.read_text(encoding="utf-8").strip()
    if not secret:
        return None
    if not secret.isascii() or not secret.isprintable():
        raise typer.BadParameter("the fleet secret must be printable ASCII without line breaks")
    return secret
