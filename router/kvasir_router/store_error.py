"""The error of every place outside the router where something is kept."""


class StoreError(Exception):
    """The store cannot be used; one sentence on why."""
