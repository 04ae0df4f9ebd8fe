"""From what is observed to what shall be: pure, so that tables can test it."""

from kvasir_operator.plan.plan import Plan, plan

__all__ = ["Plan", "plan"]
