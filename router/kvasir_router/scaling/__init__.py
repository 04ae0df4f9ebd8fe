"""Signals of how many replicas a model needs."""
