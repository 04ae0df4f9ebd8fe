"""The `kvasir` command."""
