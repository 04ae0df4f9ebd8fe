"""Groups of the flags of `kvasir serve`, in the order of --help."""

PANELS = MODEL, CACHE, STEP, HTTP, OPS = (
    "Model",
    "KV cache",
    "Scheduling",
    "HTTP",
    "Operations",
)
