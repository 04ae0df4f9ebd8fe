"""Groups of the flags of `kvasir router`, in the order of --help."""

PANELS = ROUTING, ENGINES, FAILURES, KEYS, RESPONSES, WAITING, CLIENTS, TLS, WATCHING, STOPPING = (
    "Routing",
    "Engines",
    "Failures",
    "Keys",
    "Responses",
    "Waiting",
    "Clients",
    "TLS",
    "Observation",
    "Stopping",
)
