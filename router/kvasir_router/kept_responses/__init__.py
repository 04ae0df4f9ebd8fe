"""Responses of /v1/responses that the router keeps, so that a conversation can go on with them."""
