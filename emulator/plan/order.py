"""The order of an epoch, which depends on its seed and number alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def epoch_order(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """A permutation of 0 ... samples - 1, the same for the same (seed, epoch) on every machine."""
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)))
    return generator.permutation(samples)
