"""The loop of one rank, the communicator, and starting ranks with mpirun."""
