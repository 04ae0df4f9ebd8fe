"""Paged attention of prompts and shared prefixes in Gluon, for compute capability 9.0."""
