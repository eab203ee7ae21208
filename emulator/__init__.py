"""feedrate: how many accelerators can this storage feed?"""

__version__ = "0.1.0"
