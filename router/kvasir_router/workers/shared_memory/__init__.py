"""Tables in memory that all processes share: load and limits."""
