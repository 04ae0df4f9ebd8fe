"""gRPC: the Engine service for routers."""
