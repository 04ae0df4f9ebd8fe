"""Options of `kvasir router` whose text has a form of its own. Each raises typer.BadParameter."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

import typer

from kvasir.secret_file import SecretError
from kvasir.wire.fleet_secret import parse_fleet_secret
from kvasir.wire.fleet_secret_file import FleetSecretFile
from kvasir_router.options.slo import Slo
from kvasir_router.options.store_url import check_url
from kvasir_router.wire.forwarding.client_address import Networks, parse_networks

SECRET_VARIABLE = "KVASIR_FLEET_SECRET"  # noqa: S105 - the name of a variable


def slo_by_model(targets: Iterable[str] | None) -> dict[str, Slo]:
    """Return the targets of `MODEL=TTFT:ITL` by model."""
    result = {}
    for target in targets or ():
        found = re.fullmatch(r"(.+)=([0-9.]+):([0-9.]+)", target)
        try:
            if found is None:
                raise ValueError
            result[found[1]] = slo = Slo(float(found[2]), float(found[3]))
            if not (slo.ttft and slo.itl):
                raise ValueError
        except ValueError:
            raise typer.BadParameter(
                f"{target!r} is not of the form MODEL=TTFT:ITL with seconds above 0, as"
                " llama=1.5:0.05",
                param_hint="--slo",
            ) from None
    return result


def check_discovery(discovery: str, config: Path | None, namespaces: Iterable[str]) -> None:
    """Refuse what does not go with --discovery."""
    if discovery == "file" and config is None:
        raise typer.BadParameter(
            "name the discovery file, or choose --discovery kubernetes", param_hint="--config"
        )
    if discovery == "kubernetes" and config is not None:
        raise typer.BadParameter(
            "--discovery kubernetes reads no file; leave one of the two out", param_hint="--config"
        )
    for name in namespaces if discovery == "file" else ():
        raise typer.BadParameter(
            f"{name!r} has a meaning only with --discovery kubernetes",
            param_hint="--watch-namespace",
        )


def namespaces(
    names: Iterable[str] | None, *, option: str = "--watch-namespace"
) -> tuple[str, ...]:
    """Return each name once."""
    result = tuple(dict.fromkeys(names or ()))
    for name in result:
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
            raise typer.BadParameter(
                f"{name!r} is no namespace: use small letters, digits and -, at most 63",
                param_hint=option,
            )
    return result


def kserve_namespaces(names: Iterable[str] | None) -> tuple[str, ...]:
    """Return each name once."""
    return namespaces(names, option="--kserve-namespace")


def http_url(url: str | None) -> str | None:
    """Return the URL as it is; empty counts as none."""
    if url and not _is_http(url):
        raise typer.BadParameter(
            f"{url!r} must be of the form http(s)://HOST[:PORT], as http://127.0.0.1:4318",
            param_hint="--otlp-endpoint",
        )
    return url or None


def origins(names: Iterable[str] | None) -> tuple[str, ...]:
    """Return origins as browsers send them."""
    result = tuple(names or ())
    for name in result:
        if name != "*" and not (_is_http(name) and name.count("/") == 2):
            raise typer.BadParameter(
                f"{name!r} is no origin: write * or http(s)://HOST[:PORT] without a path, as"
                " https://app.example.com",
                param_hint="--cors-origin",
            )
    return result


def trusted_networks(names: Iterable[str] | None, *, option: str = "--trusted-proxy") -> Networks:
    """Return the networks of CIDRs and addresses."""
    try:
        return parse_networks(tuple(names or ()))
    except ValueError as error:
        raise typer.BadParameter(
            f"{str(error)!r} is no network: write an address or ADDRESS/BITS without host bits, as"
            " 10.0.0.0/8",
            param_hint=option,
        ) from None


def proxy_protocol_networks(names: Iterable[str] | None) -> Networks:
    """Return the networks of CIDRs and addresses."""
    return trusted_networks(names, option="--proxy-protocol")


def response_store(url: str | None, *, option: str = "--response-store") -> str | None:
    """Return the URL as it is; empty counts as none."""
    try:
        return check_url(url) if url else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def spend_store(url: str | None) -> str | None:
    """Return the URL as it is; empty counts as none."""
    return response_store(url, option="--spend-store")


def policy_options(settings: Iterable[str] | None) -> dict[str, dict[str, str]]:
    """Return the options of `POLICY.OPTION=VALUE` by policy."""
    result: dict[str, dict[str, str]] = {}
    for setting in settings or ():
        found = re.fullmatch(r"([^.=]+)\.([^=]+)=(.*)", setting, re.DOTALL)
        if found is None:
            raise typer.BadParameter(
                f"{setting!r} is not of the form POLICY.OPTION=VALUE, as kv_aware.miss_weight=2",
                param_hint="--policy-option",
            )
        result.setdefault(found[1], {})[found[2]] = found[3]
    return result


def fleet_secret(path: Path | None) -> str | None:
    """Return the text of the file, else that of the environment; None for none."""
    where = SECRET_VARIABLE if path is None else "--fleet-secret-file"
    try:
        if path is not None:
            return FleetSecretFile.read_text(path)
        text = os.environ.get(SECRET_VARIABLE, "").strip()
        return text if text and parse_fleet_secret(text) else None
    except SecretError as error:
        raise typer.BadParameter(str(error), param_hint=where) from None


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        return False
