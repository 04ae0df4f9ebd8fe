"""Triton kernels, one purpose a file. Nothing here is imported where no kernel will run."""
