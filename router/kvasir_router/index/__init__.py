"""Indexes of what is believed, or known, to be in the replicas' KV caches."""
