"""Collectives of a tensor-parallel group, by the library that runs them."""
