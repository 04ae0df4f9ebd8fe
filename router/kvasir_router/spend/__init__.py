"""Tokens of keys and tenants by day, kept beyond a router's life and between routers."""
