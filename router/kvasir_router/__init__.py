"""The router: KV-cache-aware, in front of the engines of every model."""

from kvasir_router import compiled

compiled.use()
