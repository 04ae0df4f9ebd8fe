"""Canaries: a new revision beside the stable one, judged by what routers count."""
