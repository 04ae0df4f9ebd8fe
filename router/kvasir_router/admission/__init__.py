"""Admission: API keys, rate limits, fairness and the queues."""
