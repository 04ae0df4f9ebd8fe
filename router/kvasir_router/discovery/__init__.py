"""Discovery of models and replicas."""
