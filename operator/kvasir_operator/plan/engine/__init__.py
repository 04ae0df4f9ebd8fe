"""Manifests and state of the engines' Deployment."""
