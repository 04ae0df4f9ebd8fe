"""The flags of `kvasir router`: each sets its own setting, and nothing else."""

from dataclasses import asdict
from typing import Any

import pytest
from typer.testing import CliRunner

from kvasir.cli.flags import flags_of
from kvasir_router.command import app
from kvasir_router.options.router_settings import RouterSettings

NUMBERS: dict[str, Any] = {
    name: field.default
    for name, (_, field, _) in flags_of(RouterSettings).items()
    if type(field.default) in (int, float)
}
SWITCHES: dict[str, Any] = {
    name: field.default
    for name, (_, field, _) in flags_of(RouterSettings).items()
    if type(field.default) is bool
}


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


@pytest.fixture
def changed(monkeypatch):
    """Return the settings that differ from the defaults with these options."""
    seen: list[RouterSettings] = []
    monkeypatch.setattr("kvasir_router.command._run", seen.append)

    def changed(*options: str) -> dict[str, Any]:
        result = CliRunner().invoke(app, ["--config", "x", *options])
        assert result.exit_code == 0, result.output
        given, usual = (flat(asdict(each)) for each in (seen[-1], RouterSettings()))
        return {name: value for name, value in given.items() if usual.get(name) != value}

    return changed


def test_there_are_numbers_and_switches() -> None:
    assert len(NUMBERS) > 25
    assert set(SWITCHES) == {"migration", "hedging", "access_log", "shared_prompts"}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_sets_one_setting(changed, name: str) -> None:
    value = 0.5 if name == "trace_ratio" else NUMBERS[name] + 1
    value = {"tokenizer_deadline": 0.25, "port": 8090}.get(name, value)
    found = changed(f"--{name.replace('_', '-')}", str(value))
    del found["config"]
    assert list(found.values()) == [value]


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_sets_one_setting(changed, name: str) -> None:
    switch = name.replace("_", "-")
    found = changed(f"--no-{switch}" if SWITCHES[name] else f"--{switch}")
    del found["config"]
    assert list(found.values()) == [not SWITCHES[name]]


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (["--tls-cert", "c", "--tls-key", "k"], {"tls.cert", "tls.key"}),
        (["--slo", "m=1:2", "--slo", "n=3:4"], {f"slo_by_model.{x}" for x in ("m", "n")}),
        (["--routers-dns", "a"], {"routers_dns"}),
        (["--endpoint-picker-port", "9002"], {"picker.port"}),
        (["--endpoint-picker-namespace", "a"], {"picker.namespace"}),
        (["--endpoint-picker-target-port", "8000"], {"picker.target_port"}),
        (["--endpoint-picker-body-mode", "buffered"], {"picker.body_mode"}),
        (["--endpoint-picker-endpoints", "3"], {"picker.endpoints"}),
        (["--max-header-bytes", "2048"], {"limits.header_bytes"}),
        (["--max-headers", "9"], {"limits.headers"}),
        (["--max-body-bytes", "2048"], {"limits.body_bytes"}),
        (["--max-buffered-bytes", "2048"], {"limits.buffered_bytes"}),
    ],
)
def test_others_set_theirs(changed, options, settings) -> None:
    assert {".".join(name.split(".")[:2]) for name in changed(*options)} == settings | {"config"}
