"""Seed volumes: what ct-realistic samples are grown from. A stub that stage 2 fills."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SeedVolume:
    """A preprocessed case: (depth, height, width)."""

    x: NDArray[np.float32]
    y: NDArray[np.uint8]
