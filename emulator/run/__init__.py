"""The loop of one rank, the communicator, and what ranks do together."""
