"""Status of a cluster's LLMDeployments, for people and for scripts."""
