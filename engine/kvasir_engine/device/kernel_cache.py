"""Place where compiled kernels are kept. No torch."""

from __future__ import annotations

import os
from pathlib import Path

from kvasir.text.tokenizer_conversion import cache_directory


def use_kernel_cache() -> Path:
    """Keep compiled kernels below KVASIR_CACHE, unless TRITON_CACHE_DIR says where; return where.

    To be called before Triton is imported.
    """
    return Path(os.environ.setdefault("TRITON_CACHE_DIR", str(cache_directory() / "triton")))
