"""Build a runner: weights, profile, KV sizing, GEMM tuning, warm-up."""
