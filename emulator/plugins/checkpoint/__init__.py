"""Write and restore the checkpoints of large models."""
