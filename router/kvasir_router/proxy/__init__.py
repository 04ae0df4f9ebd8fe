"""The hot path: one client connection, one request's way to a replica and back."""
