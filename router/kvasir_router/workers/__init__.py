"""A router of several processes: workers that serve clients, and one that keeps their index."""
