"""Defaults and profiles of an LLMDeploymentClass, and the specs that they complete."""
