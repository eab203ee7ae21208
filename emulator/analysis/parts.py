"""Reductions for figures of a point whose rows are spread over ranks.

Figures are written as if all rows of a point were here, and ask for what they need of other ranks: a sum, a
maximum, a few numbers of each. In one process (`Whole`) a reduction returns its argument; among ranks it is
MPI's (`run.comm`), of a size that does not grow with the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Whole:
    """The reductions where all rows of a point are here. Where they are not, all ranks call each together."""

    def sum(self, values: Floats) -> Floats:
        """Sum over all parts, element by element."""
        return values

    def max(self, values: Floats) -> Floats:
        """Maximum over all parts, element by element."""
        return values

    def all(self, values: NDArray[Any]) -> NDArray[Any]:
        """Arrays of all parts, of one type, concatenated in the order of the ranks. For small ones."""
        return values


WHOLE = Whole()


def least(over: Whole, values: Floats) -> Floats:
    """Minimum over all parts, element by element."""
    return -over.max(-values)


_DIGIT = 12
"""Bits of a radix digit; five passes cover 60 of 64 bits."""


def quantile(values: Floats, share: float, over: Whole = WHOLE) -> float:
    """np.percentile(values, 100 * share) over all parts, for values of at least 0; 0 without any.

    A radix selection: each pass counts the next digit of the bits over all parts, so that the messages are of
    one size however many values there are.
    """
    count = int(over.sum(np.array([float(len(values))]))[0])
    if not count:
        return 0.0
    place = share * (count - 1)
    # Numbers of at least 0 have the order of their bits; + 0.0 makes -0.0 one of them.
    bits = np.ascontiguousarray(values + 0.0).view(np.uint64)
    wanted = [int(place), min(int(place) + 1, count - 1)]
    heads = [0, 0]
    for shift in range(64 - _DIGIT, 0, -_DIGIT):
        digits = (bits >> np.uint64(shift)) & np.uint64((1 << _DIGIT) - 1)
        above = (bits >> np.uint64(shift)) >> np.uint64(_DIGIT)
        counts = over.sum(
            np.stack(
                [np.bincount(digits[above == head].astype(np.int64), minlength=1 << _DIGIT) for head in heads]
            ).astype(np.float64)
        )
        for which, own in enumerate(np.cumsum(counts, axis=1)):
            digit = int(np.searchsorted(own, wanted[which], side="right"))
            wanted[which] -= int(own[digit - 1]) if digit else 0
            heads[which] = (heads[which] << _DIGIT) | digit
    low, high = np.array([head << 64 % _DIGIT for head in heads], np.uint64).view(np.float64).tolist()
    return float(low + (high - low) * (place - int(place)))
