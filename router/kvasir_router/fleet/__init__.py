"""Knowledge of the replicas: which exist, which serve, and what they are doing."""
