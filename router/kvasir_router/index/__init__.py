"""What is believed, and what is known, to be in the replicas' KV caches."""
