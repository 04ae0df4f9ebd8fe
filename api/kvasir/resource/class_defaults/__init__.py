"""What an LLMDeploymentClass gives its LLMDeployments: defaults and profiles."""
