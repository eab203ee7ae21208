"""Sizes, rates and durations, read and shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import SpecError
from emulator.units import parse_bytes, parse_rate, parse_seconds, show_bytes, show_rate, show_seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512", 512),
        ("4MiB", 4 * 2**20),
        ("2TB", 2 * 10**12),
        ("1.5GB", 1_500_000_000),
        ("146_600_628", 146_600_628),
        ("64k", 64_000),
        (7, 7),
    ],
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "rate"), [("400MB/s", 4e8), ("45GB/s", 45e9), ("200Gb/s", 25e9), ("1GiB/s", 2**30), (5.0, 5.0)]
)
def test_rates(text, rate):
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("text", "seconds"), [("2ms", 0.002), ("500us", 0.0005), ("2h", 7200.0), ("5m", 300.0)]
)
def test_durations(text, seconds):
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "4 MiBs", "1e9", "iB", "nan", "4Mb"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(SpecError, match="is not a size"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["400MB", "0MB/s", "fast", "-1GB/s", "1GB/h"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(SpecError, match="is not a rate"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["2", "ms", "-1s", "1 week"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(SpecError, match="is not a duration"):
        parse_seconds(text)


@given(st.integers(1, 10**21 - 10**19))
def test_what_is_shown_is_what_it_was_to_three_digits(size):
    assert parse_bytes(show_bytes(size)) == pytest.approx(size, rel=0.006)


def test_shown_for_people():
    assert show_rate(4e8) == "400 MB/s"
    assert show_bytes(3.04e21) == "3.04e+03 EB" and show_bytes(999.96e15) == "1 EB"
    assert show_seconds(0.636) == "636 ms"
    assert show_seconds(250) == "4 min 10 s"
    assert show_seconds(7500) == "2 h 05 min"
    assert show_seconds(float("inf")) == "unknown time"
