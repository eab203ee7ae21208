"""Figures of a point from rows that nobody holds together: each rank has its own, and keeps them.

What is computed from rows is written as for all of a point's, and where it needs the other ranks it asks for
it: a sum, a maximum, a few numbers of each rank. Alone (`Whole`) these are what they are given; among ranks
they are MPI's reductions (`run.comm`), of a size that does not grow with the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Whole:
    """All rows of a point are here. A part of them has the same verbs, each of which all parts call."""

    def sum(self, values: Floats) -> Floats:
        """Element by element, over all parts."""
        return values

    def max(self, values: Floats) -> Floats:
        """Element by element, over all parts."""
        return values

    def all(self, values: NDArray[Any]) -> NDArray[Any]:
        """One after the other, in the order of the ranks: for what is small."""
        return values


WHOLE = Whole()


def least(over: Whole, values: Floats) -> Floats:
    """Element by element, over all parts."""
    return -over.max(-values)


_DIGIT = 12
"""Bits of a value that are looked at together: five times, up to 60 of 64."""


def quantile(values: Floats, share: float, over: Whole = WHOLE) -> float:
    """As np.percentile has it, of values of at least 0 in all parts; 0 without any.

    The order of such numbers is that of their bits, so that counting how often each digit comes, the highest
    first, finds the one at a given place.
    """
    count = int(over.sum(np.array([float(len(values))]))[0])
    if not count:
        return 0.0
    place = share * (count - 1)
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
