"""LoRA adapters of a model: what a spec says of them, its rules, and what a status tells."""
