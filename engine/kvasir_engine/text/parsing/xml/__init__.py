"""Calls as tags, one for each parameter: Qwen3-Coder's format."""
