"""Samples on storage: seeds, growing, formats, the manifest, filling a folder, verifying it."""
