"""Attempts at replicas for one request."""
