"""Choosing a replica for a request."""
