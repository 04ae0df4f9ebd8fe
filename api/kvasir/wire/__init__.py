"""Contracts between the parts: hashes, events, reports, protobuf, fleet secret."""
