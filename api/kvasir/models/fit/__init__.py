"""Check that a model fits on a GPU: its weights and its KV cache against the memory there is."""

from kvasir.models.fit.estimate import Fit, Workload, estimate_fit, suggest_tensor_parallel
from kvasir.models.fit.gpu_table import GPUS, UnknownGPUError, gpu_memory

__all__ = [
    "GPUS",
    "Fit",
    "UnknownGPUError",
    "Workload",
    "estimate_fit",
    "gpu_memory",
    "suggest_tensor_parallel",
]
