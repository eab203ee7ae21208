"""The training loop of a rank, the communicator, and the collective operations of ranks."""
