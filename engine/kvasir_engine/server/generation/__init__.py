"""One request's way through the core, for HTTP and gRPC alike."""
