"""`kubectl kvasir convert`: LLMDeployments of what other platforms have."""
