"""Start and watch ranks: mpirun, fork server, supervised child, scratch folder, watchdog."""
