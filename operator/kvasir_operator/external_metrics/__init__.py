"""Serve external.metrics.k8s.io, by which a HorizontalPodAutoscaler scales an LLMDeployment on
what the routers see of it."""
