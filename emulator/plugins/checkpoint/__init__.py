"""Writing and restoring checkpoints of large models."""
