"""What tests of a full cluster share: the release, an LLMDeployment, what happens to it."""
