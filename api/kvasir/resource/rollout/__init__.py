"""Canaries: what a user asks for, what the operator tells, and what routers read of it."""
