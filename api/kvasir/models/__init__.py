"""Where models come from, their shapes, their cache and the memory they need."""
