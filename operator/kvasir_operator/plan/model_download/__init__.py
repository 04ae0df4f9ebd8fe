"""The cache volume and the Job that fills it."""
