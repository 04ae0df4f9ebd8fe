"""Paged attention: the interface, the torch reference, Triton and Hopper kernels."""
