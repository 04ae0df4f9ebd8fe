"""Types of engines: the traits of each, and the part of `spec.engine` that depends on the type."""
