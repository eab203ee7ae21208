"""Manifests for files that feedrate did not generate."""
