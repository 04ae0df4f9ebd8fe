"""Generation: the way of a request through the core, for HTTP and gRPC alike."""
