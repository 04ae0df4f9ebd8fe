"""CUDA graphs of steps: full, prefill and piecewise, in one private memory pool."""
