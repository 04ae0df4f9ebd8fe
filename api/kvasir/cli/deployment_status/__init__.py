"""What a cluster's LLMDeployments are doing, for people and for scripts."""
