"""Sizes, rates and durations, read and shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.errors import SpecError
from emulator.units import parse_bytes, parse_rate, parse_seconds, show_bytes, show_rate, show_seconds

PARSED = (
    (parse_bytes, "512", 512),
    (parse_bytes, "4MiB", 4 * 2**20),
    (parse_bytes, "2TB", 2 * 10**12),
    (parse_bytes, "1.5GB", 1_500_000_000),
    (parse_bytes, "146_600_628", 146_600_628),
    (parse_bytes, "64k", 64_000),
    (parse_bytes, 7, 7),
    (parse_rate, "400MB/s", 4e8),
    (parse_rate, "45GB/s", 45e9),
    (parse_rate, "200Gb/s", 25e9),
    (parse_rate, "1GiB/s", 2**30),
    (parse_rate, 5.0, 5.0),
    (parse_seconds, "2ms", 0.002),
    (parse_seconds, "500us", 0.0005),
    (parse_seconds, "2h", 7200.0),
    (parse_seconds, "5m", 300.0),
)
REFUSED = (
    (parse_bytes, "is not a size", ("", "MB", "-1MB", "4 MiBs", "1e9", "iB", "nan", "4Mb")),
    (parse_rate, "is not a rate", ("400MB", "0MB/s", "fast", "-1GB/s", "1GB/h")),
    (parse_seconds, "is not a duration", ("2", "ms", "-1s", "1 week")),
)


@pytest.mark.parametrize(("parse", "text", "value"), PARSED)
def test_quantities(parse, text, value):
    assert parse(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("parse", "said", "text"), [(parse, said, text) for parse, said, texts in REFUSED for text in texts]
)
def test_what_is_no_quantity_is_refused(parse, said, text):
    with pytest.raises(SpecError, match=said):
        parse(text)


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
