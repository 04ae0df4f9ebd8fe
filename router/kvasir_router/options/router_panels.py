"""Groups of the flags of `kvasir router`, in the order of --help."""

ROUTING = "Routing"
ENGINES = "Engines"
FAILURES = "Failures"
KEYS = "Keys"
RESPONSES = "Responses"
WAITING = "Waiting"
CLIENTS = "Clients"
TLS = "TLS"
PICKER = "Endpoint picker"
WATCHING = "Observation"
STOPPING = "Stopping"

PANELS = (
    *(ROUTING, ENGINES, FAILURES, KEYS, RESPONSES, WAITING),
    *(CLIENTS, TLS, PICKER, WATCHING, STOPPING),
)
