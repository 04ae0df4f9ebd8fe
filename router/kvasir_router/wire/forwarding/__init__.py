"""Whose connections and requests proxies pass on."""
