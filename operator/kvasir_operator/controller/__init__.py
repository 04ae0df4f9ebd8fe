"""Reconcile LLMDeployments: watches, queue, observe, plan, apply."""
