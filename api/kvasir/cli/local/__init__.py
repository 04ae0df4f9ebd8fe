"""LLMDeployments without a cluster: engines and a router as processes of this machine."""
