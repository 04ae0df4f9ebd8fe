"""Download a model into a cache volume: list, fetch, unpack, check, publish."""
