"""One device for all tests that need no more than half a gigabyte on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from capped_device import Device, capped


@pytest.fixture(scope="session")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    """512 files of about 1 MB on a device capped to 200 MiB/s."""
    with capped(tmp_path_factory.mktemp("device"), "2G", 512) as found:
        yield found
