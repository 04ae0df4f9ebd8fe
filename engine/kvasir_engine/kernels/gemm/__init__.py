"""GEMMs: cuBLASLt with autotuned algorithms, and the skinny kernel for few tokens."""
