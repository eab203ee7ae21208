"""Formats of sample files beyond npz, npy, raw and bytes."""
