"""Endpoint picker: gateways ask where a request goes, by Envoy's external processing protocol."""
