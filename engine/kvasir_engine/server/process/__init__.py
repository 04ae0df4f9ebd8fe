"""`kvasir serve`: its command, and the processes it starts."""
