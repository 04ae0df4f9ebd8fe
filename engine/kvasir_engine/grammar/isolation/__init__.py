"""Compiling in processes that can be ended."""
