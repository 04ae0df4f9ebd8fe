"""Shared parts of the full cluster's tests: the release, an LLMDeployment, what happens to it."""
