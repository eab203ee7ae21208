"""Rows of a structured array as a Parquet file, and back, in blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.errors import SpecError, storage_error
from emulator.files import replacing

AT_ONCE = 2**16
"""Rows that are held together: a row group, of a step log 7 MB."""


def write_rows(path: Path, dtype: np.dtype[Any], blocks: Iterable[NDArray[np.void]]) -> None:
    """Write rows of `dtype` atomically, one column per field. Raises StorageError."""
    import pyarrow  # here, because a rank has no need of it
    import pyarrow.parquet

    kinds = [(name, pyarrow.from_numpy_dtype(dtype[name])) for name in dtype.names or ()]
    # Moments and seconds hardly ever come twice: a dictionary of them is work for nothing.
    whole = [name for name in dtype.names or () if dtype[name].kind in "iu"]
    with (
        replacing(path) as file,
        pyarrow.parquet.ParquetWriter(
            file, pyarrow.schema(kinds), compression="zstd", use_dictionary=whole
        ) as writer,
    ):
        for rows in _in_groups(blocks):
            columns = {name: np.ascontiguousarray(rows[name]) for name in dtype.names or ()}
            writer.write_table(pyarrow.table(columns))


def _in_groups(blocks: Iterable[NDArray[np.void]]) -> Iterator[NDArray[np.void]]:
    """The same rows, as many at a time as a row group has."""
    group: list[NDArray[np.void]] = []
    for block in blocks:
        for begin in range(0, len(block), AT_ONCE):
            group.append(block[begin : begin + AT_ONCE])
            if sum(map(len, group)) >= AT_ONCE:
                rows = np.concatenate(group)
                yield rows[:AT_ONCE]
                group = [rows[AT_ONCE:]]
    if any(map(len, group)):
        yield np.concatenate(group)


def read_rows(path: Path, dtype: np.dtype[Any]) -> NDArray[np.void]:
    """Return the rows of a Parquet file with the columns of `dtype`.

    Raises StorageError when it cannot be read, SpecError when it is damaged or has other columns.
    """
    return np.concatenate([np.zeros(0, dtype), *row_blocks(path, dtype)])


def has_columns(path: Path, dtype: np.dtype[Any]) -> bool:
    """Return True for a Parquet file with the columns of `dtype`. Raises OSError."""
    import pyarrow
    import pyarrow.parquet

    with path.open("rb") as file:
        try:
            return tuple(pyarrow.parquet.read_schema(file).names) == dtype.names
        except (pyarrow.ArrowException, UnicodeDecodeError, OSError):
            return False


def row_blocks(
    path: Path, dtype: np.dtype[Any], only: tuple[str, int] | None = None
) -> Iterator[NDArray[np.void]]:
    """Yield the same rows, AT_ONCE at a time; with `only`, those whose column of that name has that value."""
    import pyarrow
    import pyarrow.parquet

    try:
        with path.open("rb") as file:
            # Without threads: a pool that read through a Python file may abort the interpreter at its end, or
            # hang it (apache/arrow issues 34314 and 50482).
            opened = pyarrow.parquet.ParquetFile(file, pre_buffer=False)
            groups = list(range(opened.num_row_groups))
            if only is not None:
                groups = [at for at in groups if _may_hold(opened, at, *only)]
            for batch in opened.iter_batches(AT_ONCE, groups, use_threads=False):
                rows = _structured(path, batch, dtype)
                yield rows if only is None else rows[rows[only[0]] == only[1]]
            if not opened.num_row_groups:
                _structured(path, opened.schema_arrow.empty_table(), dtype)
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:  # a column's name
        if isinstance(error, OSError) and error.errno is not None:
            raise storage_error(error, "cannot read the step log") from None
        # An OSError without a number is pyarrow's own "Couldn't deserialize": damaged, not unreadable.
        raise SpecError(f"{path} is not valid Parquet ({error})", "the file is damaged") from None


def _may_hold(opened: Any, group: int, name: str, value: int) -> bool:
    """Return True if a row group may have rows whose column `name` is `value`, by the file's statistics."""
    columns = opened.metadata.row_group(group)
    for column in map(columns.column, range(columns.num_columns)):
        if column.path_in_schema == name and (known := column.statistics) and known.has_min_max:
            return bool(known.min <= value <= known.max)
    return True


def _structured(path: Path, table: Any, dtype: np.dtype[Any]) -> NDArray[np.void]:
    """Return rows of `dtype` from a batch of columns. Raises SpecError."""
    rows = np.zeros(table.num_rows, dtype=dtype)
    names = table.schema.names
    for name in dtype.names or ():
        if name not in names:
            raise SpecError(f"{path} has no column {name}", "it is no step log of feedrate")
        column = table.column(names.index(name)).to_numpy(zero_copy_only=False)
        if column.dtype != dtype[name]:
            raise SpecError(
                f"{path}: column {name} is {column.dtype}, not {dtype[name]}", "it is no step log"
            )
        rows[name] = column
    return rows
