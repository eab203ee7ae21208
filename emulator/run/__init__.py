"""The training loop of a rank, and the measurement of a point by all ranks."""
