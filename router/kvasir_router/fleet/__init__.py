"""What the router knows of its replicas: which exist, which serve, and what they are doing."""
