"""What Kvasir's engine, router and operator share: contracts, CLI and configuration."""

__version__ = "0.1.0"
