from __future__ import annotations

from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import typer
from pydantic import ValidationError
from typer.core import TyperOption

from kvasir.cli.flags import flags_of
from kvasir.engine_values import (
    MAX_BATCHED_TOKENS,
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    MAX_SEED,
    MIN_MODEL_LEN,
    BlockSize,
)
from kvasir.resource.engine_spec import EngineConfig
from kvasir.resource.engines.engine_types import KVASIR, reserved_flags
from kvasir_engine.server.process.serve_command import app
from kvasir_engine.server.server_settings import ServerSettings
from kvasir_engine.settings import EngineSettings, SettingsError, make_settings


def test_every_flag_has_a_help_a_panel_and_its_parameters_name() -> None:
    command = typer.main.get_command(app)
    options = [each for each in command.params if isinstance(each, TyperOption)]
    assert len(options) > 30
    for option in options:
        assert option.help, option.name
        assert option.help.endswith("."), option.name
        assert option.rich_help_panel, option.name
        assert option.opts[0] == "--" + str(option.name).replace("_", "-")


def test_no_flag_repeats_another() -> None:
    command = typer.main.get_command(app)
    names = [name for each in command.params for name in (*each.opts, *each.secondary_opts)]
    assert len(names) == len(set(names))


def test_every_setting_has_its_flag_with_its_default() -> None:
    options = {each.name: each for each in typer.main.get_command(app).params}
    made = flags_of(EngineSettings, ServerSettings)
    assert {"port", "dtype", "scheduling_policy", "block_size", "overlap"} <= made.keys()
    for name, (_, field, flag) in made.items():
        assert options[name].default == field.default, name
        assert getattr(options[name], "help", None) == flag.help, name
    assert options["overlap"].secondary_opts == ["--no-overlap"]
    assert not options["enforce_eager"].secondary_opts


def test_what_an_llmdeployment_reserves_are_flags() -> None:
    params = typer.main.get_command(app).params
    assert reserved_flags(KVASIR).keys() <= {
        name for each in params for name in (*each.opts, *each.secondary_opts)
    }


def test_a_field_of_an_llmdeployment_takes_what_its_setting_takes() -> None:
    made = flags_of(EngineSettings)
    for name, field in EngineConfig.model_fields.items():
        owner, setting, _ = made[name]
        hint = get_type_hints(owner)[setting.name]
        if get_origin(hint) is Literal:
            assert field.annotation == hint, name


@pytest.mark.parametrize("size", [4, *get_args(BlockSize), 256])
def test_block_sizes_are_refused_alike(size: int) -> None:
    assert _refuses(block_size=size) == (size not in get_args(BlockSize))


@pytest.mark.parametrize(
    ("share", "refused"), [(0.04, True), (0.05, False), (1, False), (1.01, True)]
)
def test_shares_of_memory_are_refused_alike(share: float, refused: bool) -> None:
    assert _refuses(gpu_memory_utilization=share) == refused


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("max_model_len", MIN_MODEL_LEN, MAX_MODEL_LEN),
        ("max_num_seqs", 1, MAX_NUM_SEQS),
        ("max_num_batched_tokens", 1, MAX_BATCHED_TOKENS),
        ("seed", 0, MAX_SEED),
    ],
)
def test_numbers_out_of_bounds_are_refused_alike(name: str, low: int, high: int) -> None:
    others = {"max_num_seqs": 1} if name == "max_num_batched_tokens" else {}
    others |= {"max_num_batched_tokens": MAX_BATCHED_TOKENS} if name == "max_num_seqs" else {}
    for value in (low, high):
        assert not _refuses(**{name: value}, **others)
    for value in (low - 1, high + 1):
        assert _refuses(**{name: value}, **others)


def _refuses(**setting: Any) -> bool:
    """Return True when neither flag nor field takes it; both have to agree."""
    given = {EngineConfig.model_fields[name].alias: value for name, value in setting.items()}
    refused = []
    for make in (
        lambda: make_settings("m", **setting),
        lambda: EngineConfig.model_validate(given),
    ):
        try:
            make()
        except (SettingsError, ValidationError):
            refused.append(make)
    assert len(refused) != 1, setting
    return bool(refused)
