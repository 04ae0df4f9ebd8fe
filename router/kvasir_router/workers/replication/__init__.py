"""The index process's state, replicated to the workers by a numbered event log."""
