"""How ranks start: mpirun, the fork server, the supervised child, the scratch folder, the watchdog."""
