"""The admin port: health, metrics, the fleet as the router sees it; for operators, not clients."""
