"""Three hosts for all tests of this folder."""

import pytest
from hosts import HOSTS, lab


@pytest.fixture(scope="session")
def hosts():
    """Three hosts on one bridge; gone afterwards."""
    lab("hosts.sh", "up", len(HOSTS))
    yield list(HOSTS)
    lab("hosts.sh", "down")
