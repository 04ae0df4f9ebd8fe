"""Long request bodies: read as they come, and no more of them than is needed."""
