"""What each router process consists of, and the form with a single process."""
