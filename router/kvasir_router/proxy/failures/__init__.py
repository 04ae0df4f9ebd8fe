"""Failures of replicas: their kinds, their time limits, the answers to them."""
