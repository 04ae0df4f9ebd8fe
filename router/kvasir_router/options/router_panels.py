"""Groups of the flags of `kvasir router`, in the order of --help."""

PANELS = ROUTING, ENGINES, FAILURES, KEYS, WAITING, CLIENTS, TLS, WATCHING, STOPPING = (
    "Routing",
    "Engines",
    "Failures",
    "Keys",
    "Waiting",
    "Clients",
    "TLS",
    "Observation",
    "Stopping",
)
