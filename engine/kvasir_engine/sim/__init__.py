"""The simulated runner and its latency model; no torch."""
