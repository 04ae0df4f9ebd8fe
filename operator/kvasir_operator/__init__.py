"""The operator: keeps what a cluster runs equal to its LLMDeployments."""
