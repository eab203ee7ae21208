"""Checkpoints: who writes how much, writing so that nothing unfinished looks complete, reading back."""
