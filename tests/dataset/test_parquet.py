"""Parquet files: any reader opens them, and a read is the chunks of the wanted columns."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from contracts.format_contract import FormatContract, Sample, make_sample, parts_of, peek_into, written

from emulator.config.recipe import load_recipe
from emulator.config.workload import load_workload
from emulator.dataset.formats import format_named
from emulator.dataset.grow import random_sources
from emulator.errors import DatasetError, SpecError
from emulator.order import Read
from emulator.plugins.formats.parquet import RowGroups


class TestParquet(FormatContract):
    name = "parquet"
    exact = False
    head_knows_the_size = False

    def open_elsewhere(self, files: list[Path], sample: Sample) -> None:
        table = pq.read_table(files[0])
        assert np.array_equal(table["x"][0].as_py(), sample.x.reshape(-1))
        assert np.array_equal(table["y"][0].as_py(), sample.y.reshape(-1))

    def test_many_samples_a_file(self) -> None:
        sample = make_sample((4, 9, 8, 7))
        (data,) = parts_of(format_named("parquet"), sample).values()
        table = pq.read_table(io.BytesIO(data))
        assert np.array_equal(table["x"].to_pylist(), sample.x.reshape(4, -1))
        assert np.array_equal(table["y"].to_pylist(), sample.y.reshape(4, -1))


def file_of(recipe_name: str, settings: list[str], samples: int) -> tuple[bytes, object]:
    recipe = load_recipe(recipe_name, [*settings, f"samples_per_file={samples}"])
    form = format_named(recipe.format).of(recipe)
    ((data,), _) = written(form, (samples, 1, 1, 1), random_sources("incompressible", 1, 2))
    assert len(data) <= form.planned_bytes(1, samples)
    return data, form


@pytest.fixture(scope="module")
def clicks() -> bytes:
    return file_of("dlrm", ["row_group=100"], 450)[0]


def chunks_of(data: bytes, groups: range, names: list[str]) -> list[tuple[int, int]]:
    """Return the places of the chunks by pyarrow."""
    metadata = pq.read_metadata(io.BytesIO(data))
    found = []
    for group in groups:
        for number in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(number)
            if chunk.path_in_schema.partition(".")[0] in names:
                start = chunk.dictionary_page_offset or chunk.data_page_offset
                found.append((start, chunk.total_compressed_size))
    return found


def test_clicks_are_read_by_other_programs(clicks):
    file = pq.ParquetFile(io.BytesIO(clicks), page_checksum_verification=True)
    assert [file.metadata.row_group(group).num_rows for group in range(5)] == [100] * 4 + [50]
    assert [str(field.type) for field in file.schema_arrow][:4] == [
        "halffloat",
        "halffloat",
        "double",
        "double",
    ]
    assert file.read().num_rows == 450


def test_a_plan_is_about_as_large_as_the_file():
    data, form = file_of("dlrm", [], 6144)
    assert form.planned_bytes(1, 6144) == pytest.approx(len(data), rel=0.02)


def test_values_do_not_compress():
    import zstandard

    data = bytes(file_of("dlrm", [], 6144)[0])
    assert len(data) < 1.05 * len(zstandard.ZstdCompressor(level=3).compress(data))
    assert len(data) == pytest.approx(761 * 6144, rel=0.02)


def index_of(data: bytes, samples: int, columns: tuple[str, ...]) -> RowGroups:
    found = format_named("parquet").index(peek_into(data), len(data), "a.parquet", samples, columns)
    assert isinstance(found, RowGroups)
    return found


def test_a_read_is_the_chunks_of_the_columns_of_whole_row_groups(clicks):
    columns = load_workload("dlrm-b200").access.columns
    index = index_of(clicks, 450, columns)
    for read, groups in [
        (Read(0, 0, 100, "start"), range(1)),
        (Read(0, 100, 200, "on"), range(1, 3)),
        (Read(0, 110, 80, "on"), range(0)),
        (Read(0, 110, 91, "on"), range(2, 3)),
        (Read(0, 110, 80, "start"), range(1, 2)),
        (Read(0, 449, 1), range(4, 5)),
    ]:
        assert index.extents(read, 4096) == chunks_of(clicks, groups, list(columns)), read


def test_encodings_are_lists_of_fixed_size():
    settings = ["row_group=2", 'columns=[{name="a", dtype="float32", size=3000}, {name="b", dtype="int8"}]']
    data, _ = file_of("flux", settings, 5)
    table = pq.read_table(io.BytesIO(data))
    assert table.num_rows == 5 and len(table["a"][0]) == 3000
    assert index_of(data, 5, ("a",)).starts == [0, 2, 4, 5]


def test_what_does_not_fit_is_one_line(clicks):
    with pytest.raises(DatasetError, match=r"no column 'feature_200', which access\.columns names"):
        index_of(clicks, 450, ("feature_200",))
    with pytest.raises(DatasetError, match="450 rows, but the manifest says 460"):
        index_of(clicks, 460, ())
    with pytest.raises(DatasetError, match="its footer is missing"):
        index_of(clicks[:-100], 450, ())
    with pytest.raises(SpecError, match="columns need the format parquet"):
        load_recipe("dlrm", ["format=tfrecord"])
