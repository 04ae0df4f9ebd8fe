"""Types of engines: one adapter each, and the part of `spec.engine` that depends on the type."""
