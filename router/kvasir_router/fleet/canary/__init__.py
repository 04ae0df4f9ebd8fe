"""Shares of requests that two revisions of one model get, and samples of how they do."""
