"""Models on a volume: downloaded once, checked, whole or not there at all, shared by engines."""
