"""Workloads, recipes and options as frozen dataclasses: the only room that reads TOML."""
