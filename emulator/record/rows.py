"""Rows of a structured array as a Parquet file, and back."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.errors import SpecError, storage_error
from emulator.files import replacing


def write_rows(path: Path, rows: NDArray[np.void]) -> None:
    """Write `rows` whole or not at all, a column a field. Raises StorageError."""
    import pyarrow  # here, because a rank has no need of it
    import pyarrow.parquet

    table = pyarrow.table({name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names or ()})
    with replacing(path) as file:
        pyarrow.parquet.write_table(table, file, compression="zstd")


def read_rows(path: Path, dtype: np.dtype[Any], later: Container[str] = ()) -> NDArray[np.void]:
    """The rows of a Parquet file with the columns of `dtype`; NaN for those of `later` that it lacks.

    Raises StorageError when it cannot be read, SpecError when it is damaged or has other columns.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        with path.open("rb") as file:
            # Without threads: a pool that read through a Python file may abort the interpreter at its end, or
            # hang it (apache/arrow issues 34314 and 50482).
            table = pyarrow.parquet.ParquetFile(file, pre_buffer=False).read(use_threads=False)
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise storage_error(error, "cannot read the step log") from None
        # An OSError without a number is pyarrow's own "Couldn't deserialize": damaged, not unreadable.
        raise SpecError(f"{path} is not valid Parquet ({error})", "the file is damaged") from None
    rows = np.zeros(table.num_rows, dtype=dtype)
    for name in dtype.names or ():
        if name not in table.column_names and name in later:
            rows[name] = np.nan
            continue
        if name not in table.column_names:
            raise SpecError(f"{path} has no column {name}", "it is no step log of feedrate")
        column = table[name].to_numpy()
        if column.dtype != dtype[name]:
            raise SpecError(
                f"{path}: column {name} is {column.dtype}, not {dtype[name]}", "it is no step log"
            )
        rows[name] = column
    return rows
