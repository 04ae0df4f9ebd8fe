"""Position of a broken stream, and obstacles to going on with it."""
