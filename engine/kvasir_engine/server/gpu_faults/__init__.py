"""Faults of GPUs that raise no error in CUDA, or not yet: found, judged, told."""
