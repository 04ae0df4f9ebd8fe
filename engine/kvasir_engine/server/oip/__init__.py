"""The Open Inference Protocol (v2): what KServe's clients and probes speak."""
