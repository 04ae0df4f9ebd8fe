"""Contracts, CLI and configuration that Kvasir's engine, router and operator share."""

__version__ = "0.1.0"
