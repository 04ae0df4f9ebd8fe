"""`kubectl kvasir plan`: what an edit of an LLMDeployment restarts, by the operator's own plan."""
