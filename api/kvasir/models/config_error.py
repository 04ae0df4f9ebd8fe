"""The error of a config.json that cannot be used."""

from __future__ import annotations


class ConfigError(ValueError):
    """A config.json cannot be read as a decoder's; the message names the field and the remedy."""
