"""Tool calls in the form of Python calls."""
