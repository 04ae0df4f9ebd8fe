"""The operator's own autoscaler: replicas of an LLMDeployment by what all routers see."""
