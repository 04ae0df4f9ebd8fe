"""Ownership: which release serves an LLMDeployment, and which LLMDeployment has a model name."""
