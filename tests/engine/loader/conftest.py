from __future__ import annotations

from ...hub import breakage, hub

__all__ = ["breakage", "hub"]
