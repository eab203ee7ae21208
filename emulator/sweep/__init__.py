"""Chooses process counts, their order, and when to stop."""
