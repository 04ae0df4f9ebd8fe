"""Reports of prompts to routers: which KV blocks a text determines."""
