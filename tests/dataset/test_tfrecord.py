"""TFRecord files: framed as TensorFlow frames them, read whole, by records and by blocks."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

import google_crc32c
import pytest
from contracts.format_contract import FormatContract, Sample, make_sample, parts_of, peek_into, written
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.dataset.formats import format_named
from emulator.dataset.grow import random_sources
from emulator.errors import DatasetError
from emulator.order import Read
from emulator.plugins.formats.tfrecord import Records, example_bytes

TFRECORD = format_named("tfrecord")


def records_of(data: bytes) -> list[bytes]:
    """The data of each record, as the format's definition says, checksums compared."""

    def masked(part: bytes) -> int:
        crc = google_crc32c.value(part)
        return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF

    found, at = [], 0
    while at < len(data):
        length, crc = struct.unpack_from("<QL", data, at)
        assert crc == masked(data[at : at + 8])
        body = data[at + 12 : at + 12 + length]
        assert struct.unpack_from("<L", data, at + 12 + length) == (masked(body),)
        found.append(body)
        at += 16 + length
    return found


class TestTfRecord(FormatContract):
    name = "tfrecord"

    def open_elsewhere(self, files: list[Path], sample: Sample) -> None:
        (body,) = records_of(files[0].read_bytes())
        assert body.endswith(sample.x.tobytes() + sample.y.tobytes())
        assert len(body) == example_bytes(sample.x.size)

    def test_many_samples_a_file(self) -> None:
        sample = make_sample((4, 9, 8, 7))
        (data,) = parts_of(TFRECORD, sample).values()
        bodies = records_of(data)
        for body, x, y in zip(bodies, sample.x, sample.y, strict=True):
            assert body.endswith(x.tobytes() + y.tobytes())
        assert len(data) == 4 * TFRECORD.planned_bytes(9 * 8 * 7)


def test_what_is_streamed_is_framed_record_by_record():
    sources = random_sources("incompressible", 3, 5)
    ((streamed,), _) = written(TFRECORD, (700, 1, 1, 500), sources)
    assert len({body[-2500:] for body in records_of(streamed)}) == 700


@pytest.fixture(scope="module")
def forty() -> bytes:
    (data,) = parts_of(TFRECORD, make_sample((40, 1, 3, 50))).values()
    return data


def index_of(data: bytes) -> Records:
    found = format_named("tfrecord").index(peek_into(data), len(data), "a.tfrecord", 40, ())
    assert isinstance(found, Records)
    return found


def test_single_records_are_read_alone(forty):
    bodies = records_of(forty)
    for number in (0, 7, 39):
        ((offset, size),) = index_of(forty).extents(Read(0, number, 1), 4096)
        assert records_of(forty[offset : offset + size]) == [bodies[number]]


@settings(max_examples=60)
@given(st.lists(st.integers(0, 40), max_size=8), st.integers(0, 39), st.integers(1, 40))
def test_streams_read_whole_blocks_and_each_of_them_once(forty, cuts, first, length):
    last = min(first + length, 40)
    places = sorted({first, last, *(cut for cut in cuts if first < cut < last)})
    index, block = index_of(forty), 4096
    read = [
        extent
        for number, (begin, end) in enumerate(pairwise(places))
        for extent in index.extents(Read(0, begin, end - begin, "on" if number else "start"), block)
    ]
    assert all(offset % block == 0 and size for offset, size in read)
    assert all(sum(extent) == behind.offset for extent, behind in pairwise(read))
    each = len(forty) // 40
    assert read[0].offset <= first * each and read[-1].offset + read[-1].size >= last * each
    assert read[0].offset > first * each - block and read[-1].offset < last * each


def test_records_of_different_sizes_are_read_as_streams_alone():
    index = Records("b.tfrecord", 1001, 10)
    with pytest.raises(DatasetError, match=r"access\.pattern=sequential"):
        index.extents(Read(0, 3, 1), 4096)
    assert index.extents(Read(0, 0, 10, "start"), 4096) == [(0, 1001)]
