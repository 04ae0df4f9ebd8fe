from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kvasir.models.download.progress import (
    TERMINATION_BYTES,
    DownloadPhase,
    Progress,
    parse_progress,
    sizing_config,
)
from kvasir.models.fit.estimate import weight_bytes
from kvasir.models.hf_config import parse_shape

CONFIG: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "layer_types": ["sliding_attention"] * 33 + ["full_attention"],
    },
    "eos_token_id": [1, 106],
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "type": "float",
                    "num_bits": 8,
                    "strategy": "block",
                    "block_structure": [128, 128],
                },
            }
        },
        "ignore": ["lm_head", "re:.*mlp.gate$"],
    },
    "eos_token_names": [f"<end_{i}>" for i in range(500)],
    "id2label": {str(i): f"LABEL_{i}" for i in range(1000)},
}


@pytest.mark.parametrize(
    "report",
    [
        Progress(),
        Progress(DownloadPhase.DOWNLOADING, 5, 10, 3),
        Progress(DownloadPhase.FAILED, error="no such bucket", permanent=True),
        Progress(DownloadPhase.DONE, 10, 10, 0, config={"hidden_size": 8}, weight_bytes=10),
    ],
)
def test_a_report_reads_back(report: Progress) -> None:
    assert parse_progress(report.as_json()) == report


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", "nonsense", '{"phase": "asleep"}', '{"phase": "done", "bytes": -1}', "x" * 70000],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_progress(text)


def test_a_termination_message_fits_without_the_config_if_need_be() -> None:
    long = Progress(
        DownloadPhase.DONE, config={f"field_{i}": "x" * 50 for i in range(90)}, weight_bytes=7
    )
    message = long.termination_message()
    assert len(message) <= TERMINATION_BYTES
    assert json.loads(message)["model"] == {"config": None, "weightsBytes": 7}
    failed = Progress(DownloadPhase.FAILED, error="\u00fc\n" * 5000).termination_message()
    assert len(failed.encode()) <= TERMINATION_BYTES


def test_what_is_kept_of_a_config_has_the_same_shape_and_is_short() -> None:
    kept = sizing_config(CONFIG)
    assert parse_shape(kept) == parse_shape(CONFIG)
    message = Progress(DownloadPhase.DONE, config=kept, weight_bytes=7).termination_message()
    assert json.loads(message)["model"]["config"] == kept


def test_of_long_lists_of_plain_modules_only_what_determines_the_sizes_is_kept() -> None:
    long = {"ignore": [f"model.layers.{i}.mlp.gate" for i in range(500)]}
    config = CONFIG | {"quantization_config": CONFIG["quantization_config"] | long}
    kept, whole = parse_shape(sizing_config(config)), parse_shape(config)
    assert kept.quantization is not None
    assert whole.quantization is not None
    assert kept.quantization == replace(whole.quantization, ignored=())
    assert weight_bytes(kept) == weight_bytes(whole)
