"""Linear layers of weights in 4 bits: their layout, and the kernels that multiply by them."""
