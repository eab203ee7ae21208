"""Datasets made by the workers of a Dask cluster."""
