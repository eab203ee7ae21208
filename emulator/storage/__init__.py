"""Bytes from a named sample: the file system as it is, and wrappers that shape or time it."""
