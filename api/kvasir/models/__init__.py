"""Model sources and shapes, the model cache, and the memory that models need."""
