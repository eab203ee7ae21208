"""Sweeps: choice of process counts, their order, and when to stop."""
