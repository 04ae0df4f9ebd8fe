"""Parts of a client's connection that need none of the others."""
