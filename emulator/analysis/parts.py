"""Reductions for figures of a point whose rows are spread over ranks.

Figures are written as if all rows of a point were here, and ask for what they need of other ranks: a sum, a
maximum, a few numbers of each. In one process (`Whole`) a reduction returns its argument; among ranks it is
MPI's (`launch.comm`), of a size that does not grow with the rows.
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
