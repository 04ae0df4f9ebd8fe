"""Loading of LoRA adapters into engines that run."""
