"""Logits to tokens, stateless per row."""
