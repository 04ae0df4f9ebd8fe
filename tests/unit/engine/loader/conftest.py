from __future__ import annotations

from support.hf_hub import breakage, hub

__all__ = ["breakage", "hub"]
