"""Formats of sample files in addition to npz, npy, raw and bytes."""
