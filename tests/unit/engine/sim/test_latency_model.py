"""The step-time model, its shipped profiles, and what a bad profile is told."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvasir_engine.settings import SettingsError
from kvasir_engine.sim.latency_model import MAX_PROFILE_BYTES, SpeedProfile, shipped_profiles

ROOT = Path(__file__).parents[4]
H200 = "h200-llama-3.1-8b-bf16"


@pytest.fixture
def h200() -> SpeedProfile:
    return SpeedProfile.load(H200)


def test_gemm_time_is_the_measured_one_at_every_point(h200):
    for tokens, ms in h200.gemm_points:
        assert h200.gemm_ms(tokens) == ms


def test_gemm_time_between_below_and_beyond_the_points(h200):
    assert h200.gemm_ms(384) == pytest.approx((6.303 + 11.506) / 2)
    assert h200.gemm_ms(0) == h200.gemm_ms(1)
    assert h200.gemm_ms(16384) == pytest.approx(2 * h200.gemm_ms(8192))


def test_ranks_share_a_step_but_for_its_overhead(h200):
    two = h200.over_ranks(2)
    fixed = h200.overhead_ms + h200.small_us_per_token * 8 / 1e3
    whole, shared = (each.step_ms(8, 100_000, 5e6) - fixed for each in (h200, two))
    assert whole == pytest.approx(2 * shared)
    assert two.num_kv_blocks == 2 * h200.num_kv_blocks
    assert h200.over_ranks(1) == h200


def test_keys_and_values_of_a_byte_take_half(h200):
    halved = h200.with_fp8_cache()
    assert halved.num_kv_blocks == 2 * h200.num_kv_blocks
    read = [each.step_ms(1, 100_000, 0.0) - each.step_ms(1, 0, 0.0) for each in (h200, halved)]
    assert read[0] == pytest.approx(2 * read[1])
    assert halved.gemm_ms(8) == h200.gemm_ms(8)


def test_each_term_adds_to_the_step():
    profile = SpeedProfile(
        name="sum",
        source="",
        date="",
        gemm_points=((1, 2.0), (101, 4.0)),
        kv_bytes_per_token=1000.0,
        kv_bandwidth_bytes_s=1e6,
        attention_flops_per_pair=10.0,
        attention_flops_s=1e6,
        overhead_ms=0.5,
        small_us_per_token=20.0,
        num_kv_blocks=100,
    )
    assert profile.step_ms(51, 7, 300) == pytest.approx(3.0 + 7.0 + 3.0 + 0.5 + 1.02)


@pytest.mark.parametrize(("batch", "ms"), [(1, 4.37), (8, 4.66), (64, 6.96), (256, 15.8)])
def test_h200_decodes_at_1k_context_as_its_parts_add_up(h200, batch, ms):
    assert h200.step_ms(batch, batch * 1128, 0) == pytest.approx(ms, rel=0.05)


def test_h200_prefills_as_its_parts_add_up(h200):
    rate = 8192 / h200.step_ms(8192, 0, 2 * 4096 * 2048) * 1e3
    assert rate == pytest.approx(41_320, rel=0.05)


def test_instant_takes_no_time():
    assert SpeedProfile.load("instant").step_ms(8192, 10**7, 1e9) == 0.0


@pytest.mark.parametrize("name", shipped_profiles())
def test_shipped_profiles_load_under_their_own_names(name, tmp_path):
    profile = SpeedProfile.load(name)
    assert profile.name == name
    copy = tmp_path / "copy.json"
    copy.write_text(profile.to_json())
    assert SpeedProfile.load(str(copy)) == profile


def test_the_shipped_fit_is_what_the_script_makes(h200, tmp_path):
    output = tmp_path / f"{H200}.json"
    subprocess.run(
        [
            sys.executable,
            ROOT / "benchmarks" / "fit_speed_profile.py",
            ROOT / "benchmarks" / "data" / "h200_llama8b_floors.json",
            output,
        ],
        check=True,
        capture_output=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert SpeedProfile.load(str(output)) == h200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gemm_points": []}, "gemm_points"),
        ({"gemm_points": [[2, 1.0], [2, 1.0]]}, "increasing"),
        ({"gemm_points": [[0, 1.0]]}, "at least 1"),
        ({"gemm_points": [[1, -1.0]]}, "at least 0 ms"),
        ({"gemm_points": [[1, 2.0, 3.0]]}, "too many values"),
        ({"gemm_points": 3}, "not iterable"),
        ({"kv_bandwidth_bytes_s": 0.0}, "kv_bandwidth_bytes_s"),
        ({"overhead_ms": float("nan")}, "overhead_ms"),
        ({"num_kv_blocks": 1}, "num_kv_blocks"),
        ({"overhead_ms": "fast"}, "'fast' is not a float"),
        ({"name": 7}, "7 is not a str"),
        ({"overhead": 1.0}, "with the fields"),
    ],
)
def test_bad_values_are_named(tmp_path, change, message):
    values = json.loads(SpeedProfile.load("instant").to_json())
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**values, **change}))
    with pytest.raises(SettingsError, match=message):
        SpeedProfile.load(str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "must be an object"),
        (" " * (MAX_PROFILE_BYTES + 1), "larger"),
    ],
)
def test_bad_files_are_refused(tmp_path, content, message):
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(SettingsError, match=message):
        SpeedProfile.load(str(path))


@pytest.mark.parametrize("name", ["h100", "../tiny/config", "/nowhere/else.json"])
def test_an_unknown_profile_says_what_to_use(name):
    with pytest.raises(SettingsError, match=r"instant|cannot be read"):
        SpeedProfile.load(name)
