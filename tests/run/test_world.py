"""Hosts that run the same software."""

import pytest

from emulator.errors import LaunchError
from emulator.launch.world import differences

SAME = {"feedrate": "0.2.0", "code": "f38c", "Python": "3.11.7", "torch": "2.13.0"}


def test_hosts_with_the_same_software_do_not_differ():
    assert differences({}) == differences({"a": SAME}) == differences({"a": SAME, "b": dict(SAME)}) == ""


@pytest.mark.parametrize("fact", ["feedrate", "code"])
def test_another_feedrate_on_one_host_is_refused_with_its_name(fact):
    hosts = {name: dict(SAME) for name in ("a", "b", "c")}
    hosts["b"][fact] = "other"
    with pytest.raises(LaunchError, match=f"{fact} .* on a, c, other on b"):
        differences(hosts)


def test_other_differences_are_said():
    hosts = {f"n{number}": SAME for number in range(9)} | {"old": SAME | {"torch": "2.4.0"}}
    assert differences(hosts) == "torch 2.13.0 on n0, n1, n2 and 6 more hosts, 2.4.0 on old"
