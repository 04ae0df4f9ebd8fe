"""Structured outputs: grammars that say which tokens a sample may go on with."""
