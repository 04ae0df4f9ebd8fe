"""`spec.external`: models that servers of others serve."""
