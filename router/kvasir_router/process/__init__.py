"""Components of each router process, and the form with a single process."""
