"""Read the `quantization_config` of a config.json: what each tool that writes checkpoints means."""

from kvasir.models.quantization_config.asked_quantization import (
    put_quantization,
    with_quantization,
)
from kvasir.models.quantization_config.parse_quantization import parse_quantization

__all__ = ["parse_quantization", "put_quantization", "with_quantization"]
