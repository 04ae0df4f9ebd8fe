"""Connections of clients, one and all."""
