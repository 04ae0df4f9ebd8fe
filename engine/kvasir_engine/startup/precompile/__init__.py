"""Warm-up compilation: run a start's launches on a fake device, compile all kernels at once."""
