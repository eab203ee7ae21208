"""Checkpoints: shards of large models, written and restored by all ranks."""
