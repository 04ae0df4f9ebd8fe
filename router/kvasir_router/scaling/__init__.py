"""What says how many replicas a model needs."""
