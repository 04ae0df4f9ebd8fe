"""Resources of a replica: what it may use, its GPUs by any resource name or by a claim."""
