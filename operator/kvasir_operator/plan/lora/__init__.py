"""Plan of the LoRA adapters: their downloads, and what engines shall hold."""
