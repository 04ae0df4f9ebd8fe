"""Where the router learns of models and replicas."""
