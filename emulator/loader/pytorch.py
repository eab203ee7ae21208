"""Imports PyTorch for `--loader torch`."""

from __future__ import annotations

import os

from emulator.errors import MissingError

__all__ = ["torch"]

# PyTorch reads this when it is imported: large tensors are then allocated on huge pages.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

try:
    import torch.utils.data
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingError(
        "the torch loader needs PyTorch", "pip install feedrate[torch], or use --loader direct"
    ) from None
